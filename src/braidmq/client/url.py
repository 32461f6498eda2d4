"""URLs of brokers: `strand://key@host:port`, parsed into an endpoint.

A strand over TCP with an `s` appended (`blips://`) asks for TLS; Qumbed is always encrypted. On
strands with users the key may be `user:password`; a separate key is then the password. Each
part is percent-decoded. The address of a Qumbed broker may be followed by `?fingerprint=` and
the SHA-256 of its certificate in hexadecimal digits. Anything else after the address is refused
rather than ignored.
"""

import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from braidmq.client.errors import InvalidArgument
from braidmq.transport.binding import shown

DEFAULT_PORTS: Final = {"blip": 5555, "vibe": 2925, "qumbed": 6121}
STRANDS_OVER_TCP: Final = frozenset({"blip", "vibe"})
"""The others are encrypted always, so that there is nothing to ask for."""
STRANDS_WITH_USERS: Final = frozenset({"vibe"})
STRANDS_WITH_FINGERPRINTS: Final = frozenset({"qumbed"})
DEFAULT_HOST: Final = "127.0.0.1"

_PORT_MAX: Final = 65_535
_FINGERPRINT: Final = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of a broker, the strand to speak, and the credentials."""

    strand: str
    host: str
    port: int
    tls: bool
    key: str = field(repr=False)
    """An API key or token; with a user, the password."""
    user: str = field(default="", repr=False)
    fingerprint: str = ""
    """Of the certificate that the broker must show, in lower-case hex; "" if not pinned."""

    @property
    def address(self) -> str:
        """Host and port, with brackets around an IPv6 address."""
        return shown(self.host, self.port)


def parse(url: str, *, key: str | None = None) -> Endpoint:
    """Return the endpoint that *url* names; *key* overrides the one in the URL.

    Raises:
        InvalidArgument: The URL is malformed. The text never repeats its key.
    """
    scheme, separator, _ = url.partition("://")
    strand, tls = _strand(scheme.lower() if separator else "")
    try:
        parts = urlsplit(url)
        host = parts.hostname or DEFAULT_HOST
        host.encode("idna")  # as for the lookup, which requires labels of 1 to 63 bytes
    except ValueError:
        # The original error is dropped: its text may repeat a misplaced key.
        raise InvalidArgument(f"{strand} URL: the address is malformed") from None
    port = _port(strand, parts)
    if parts.path not in {"", "/"} or parts.fragment:
        raise InvalidArgument(f"{strand} URL: nothing may follow host and port")
    # Split by hand: `urlsplit` would take the part of a Blip key before a colon for a user.
    user, colon, secret = parts.netloc.rpartition("@")[0].partition(":")
    if not colon or strand not in STRANDS_WITH_USERS:
        user, secret = "", f"{user}{colon}{secret}"
    return Endpoint(
        strand=strand,
        host=host,
        port=DEFAULT_PORTS[strand] if port is None else port,
        tls=tls,
        key=_unquoted(strand, secret) if key is None else key,
        user=_unquoted(strand, user),
        fingerprint=_fingerprint(strand, parts.query) if parts.query else "",
    )


def _strand(scheme: str) -> tuple[str, bool]:
    if scheme in DEFAULT_PORTS:
        return scheme, False
    if scheme.endswith("s") and scheme[:-1] in STRANDS_OVER_TCP:
        return scheme[:-1], True
    known = ", ".join(f"{strand}://" for strand in DEFAULT_PORTS)
    example = f"blip://KEY@{DEFAULT_HOST}:{DEFAULT_PORTS['blip']}"
    raise InvalidArgument(f"a broker URL starts with one of {known}, for example {example}")


def _port(strand: str, parts: SplitResult) -> int | None:
    try:
        port = parts.port
    except ValueError:  # not a number, or too large
        port = 0
    if port == 0:
        # The error does not repeat the text: it may be a misplaced key.
        problem = f"the port must be a number from 1 to {_PORT_MAX}"
        raise InvalidArgument(f"{strand} URL: {problem}")
    return port


def _fingerprint(strand: str, query: str) -> str:
    if strand not in STRANDS_WITH_FINGERPRINTS:
        raise InvalidArgument(f"{strand} URL: nothing may follow host and port")
    options = parse_qsl(query, keep_blank_values=True)
    if [name for name, _ in options] != ["fingerprint"]:
        raise InvalidArgument(f"{strand} URL: only a fingerprint may follow host and port")
    fingerprint = options[0][1].lower().replace(":", "")
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise InvalidArgument(f"{strand} URL: a fingerprint is 64 hexadecimal digits")
    return fingerprint


def _unquoted(strand: str, quoted: str) -> str:
    try:
        return unquote(quoted, errors="strict")
    except UnicodeDecodeError:
        raise InvalidArgument(f"{strand} URL: the key is not UTF-8") from None
