"""Find the address of a strand from the broker's HTTP address.

One BRAIDMQ_URL serves all commands. Those that use HTTP assume its default port when they are
given a strand's address (`api`); those that speak a strand ask over HTTP for its port.
"""

from typing import Final
from urllib.parse import quote

from braidmq.base.errors import ConfigError
from braidmq.cli.api import Api, api_at

BLIP: Final = "blip"
_USUAL_PORTS: Final = {BLIP: 5555, "vibe": 2925, "qumbed": 6121}
_ALWAYS_TLS: Final = "qumbed"
"""QUIC is always encrypted, so there is no `qumbeds://`."""


def is_http(url: str) -> bool:
    """Return whether *url* is an HTTP address."""
    return url.partition("://")[0].lower() in {"http", "https"}


def strand_address(url: str, strand: str = BLIP) -> str:
    """Return *url*, or the address of *strand* at the broker whose HTTP address is *url*.

    Only the port is asked for: the broker may listen on 0.0.0.0, which is no address to
    connect to, so the host is taken from the URL.

    Raises:
        ConfigError: The URL is invalid, or the strand is off or has no TLS there.
        HttpError: The broker does not answer.
    """
    if not is_http(url):
        return url
    api = api_at(url)
    port, tls = _listening(api, strand)
    if api.tls and not tls:
        other = f"{strand}://KEY@{_host(api)}:{port}"
        raise ConfigError(
            "--url", f"{strand} has no TLS there; to connect without it, use {other}"
        )
    scheme = f"{strand}s" if tls and strand != _ALWAYS_TLS else strand
    return f"{scheme}://{quote(api.key, safe='')}@{_host(api)}:{port}"


def _listening(api: Api, strand: str) -> tuple[int, bool]:
    """Return a strand's port and whether it has TLS; assume the defaults if not told."""
    told = api.ask("GET", "/api/overview")
    listeners, encrypted = told.get("listeners"), told.get("tls")
    tls = strand in encrypted if isinstance(encrypted, list) else api.tls
    if not isinstance(listeners, dict) or strand not in listeners:
        return _USUAL_PORTS[strand], tls
    port = str(listeners[strand]).rpartition(":")[2]
    if not port.isdigit():  # null: it is off
        problem = f"{strand} is off at that broker; give the address of a strand that is on"
        raise ConfigError("--url", problem)
    return int(port), tls


def _host(api: Api) -> str:
    return f"[{api.host}]" if ":" in api.host else api.host
