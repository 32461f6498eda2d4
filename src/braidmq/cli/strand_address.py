"""Where a broker's strands are, for commands that are given the address of its HTTP side.

One BRAIDMQ_URL serves all commands: those that ask over HTTP guess its port from a strand's
address (`api`), and those that speak a strand ask over HTTP where it is. Nothing is published
or subscribed to here.
"""

from typing import Final
from urllib.parse import quote

from braidmq.base.errors import ConfigError
from braidmq.cli.api import Api, api_at

BLIP: Final = "blip"
_USUAL_PORTS: Final = {BLIP: 5555, "vibe": 2925, "qumbed": 6121}
_ALWAYS_TLS: Final = "qumbed"
"""QUIC has no other form, and so no scheme of its own for it."""


def is_http(url: str) -> bool:
    """Say whether this is the address of an HTTP side."""
    return url.partition("://")[0].lower() in {"http", "https"}


def strand_address(url: str, strand: str = BLIP) -> str:
    """Return *url*, or the address of *strand* where the broker has HTTP at *url*.

    The host is that of the URL: what a broker listens on may be all of its addresses.

    Raises:
        ConfigError: The URL cannot be used, or the broker does not listen as it asks for.
        HttpError: The broker cannot be asked.
    """
    if not is_http(url):
        return url
    api = api_at(url)
    port, tls = _listening(api, strand)
    if api.tls and not tls:
        other = f"{strand}://KEY@{_host(api)}:{port}"
        raise ConfigError("--url", f"{strand} has no TLS there; if it needs none: {other}")
    scheme = f"{strand}s" if tls and strand != _ALWAYS_TLS else strand
    return f"{scheme}://{quote(api.key, safe='')}@{_host(api)}:{port}"


def _listening(api: Api, strand: str) -> tuple[int, bool]:
    """Return a strand's port, and whether it has TLS; what is not told is as usual."""
    told = api.ask("GET", "/api/overview")
    listeners, encrypted = told.get("listeners"), told.get("tls")
    tls = strand in encrypted if isinstance(encrypted, list) else api.tls
    if not isinstance(listeners, dict) or strand not in listeners:
        return _USUAL_PORTS[strand], tls
    port = str(listeners[strand]).rpartition(":")[2]
    if not port.isdigit():  # null: it is off
        problem = f"{strand} is off there; give the address of a strand that is on"
        raise ConfigError("--url", problem)
    return int(port), tls


def _host(api: Api) -> str:
    return f"[{api.host}]" if ":" in api.host else api.host
