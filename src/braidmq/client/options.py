"""What can be chosen about a client, with defaults; all times are seconds."""

import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Protocol, TypedDict

from braidmq.client.errors import ConnectionLost, InvalidArgument

Callback = Callable[..., object]
"""A plain function or a coroutine function; it never runs inside the reading of a socket."""


class KeyHolder(Protocol):
    """Holds a private key: a :class:`~braidmq.client.qumbed.boxes.KeyPair`."""

    def reveal_private_key(self) -> bytes:
        """Return the private key's 32 bytes."""


class Trusting(Protocol):
    """Says whose messages are taken: a :class:`~braidmq.client.qumbed.trust.TrustList`."""

    def check(self, sender: bytes, topic: str) -> None:
        """Raise SenderRefused for a sender that is certainly not believed."""

    def admit(self, sender: bytes, topic: str) -> None:
        """Believe a sender whose box was opened, or raise SenderRefused."""


PrivateKey = KeyHolder | Path | bytes | str
"""A key pair, the file that `braidmq keygen` wrote, 32 bytes, or 64 hexadecimal digits."""

PublicKey = bytes | str
"""32 bytes, or 64 hexadecimal digits."""

Schema = Mapping[str, object]
"""A JSON Schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The choices that :func:`braidmq.connect` takes."""

    tls: ssl.SSLContext | None = None
    """TLS with this context; None: plain for `blip://`, the system's trust for `blips://`."""

    connect_timeout: float = 10.0
    """One attempt to connect, TLS and authentication included."""

    answer_timeout: float = 30.0
    """A broker that owes an answer and is silent for so long is taken for dead."""

    offline_timeout: float = 30.0
    """How long a call waits for a connection while there is none."""

    keepalive: float = 20.0
    """An idle connection is tried with a PING after so long."""

    close_timeout: float = 5.0
    """How long closing waits for the broker to confirm what was sent."""

    reconnect: bool = True
    """Whether a broken connection is made again; if not, its loss is the end."""

    reconnect_delay: float = 0.05
    """Before the first attempt to connect again; doubles with each attempt, with jitter."""

    reconnect_delay_max: float = 5.0
    """What that delay grows to."""

    compression: bool = False
    """Offer brotli and gzip to a broker that can compress (Vibe), for bodies from 1 KiB on."""

    private_key: PrivateKey | None = field(default=None, repr=False)
    """Seals and opens messages (Qumbed); None: a new one that nobody knows."""

    trust: Trusting | Iterable[PublicKey] | PublicKey | None = None
    """Whose messages are taken (Qumbed): public keys, or a trust list. What its publisher did
    not seal comes from the gateway's key. None: anybody's, and the program looks at senders."""

    ca_file: Path | str | None = None
    """Certificates of the authorities that may vouch for the broker (Qumbed); by default the
    system's. A fingerprint in the URL takes the place of all authorities."""

    certificate: tuple[Path | str, Path | str] | None = None
    """Files of our own certificate and its key, for a broker that asks who we are (Qumbed)."""

    insecure: bool = False
    """Take any certificate (Qumbed): for tests, since anybody may stand in between."""

    schemas: Mapping[str, Schema] | None = None
    """More schemas by their ids, for payloads to be held against (Qumbed)."""

    on_disconnect: Callable[[ConnectionLost], object] | None = None
    """Called when the first of the client's connections breaks."""

    on_reconnect: Callable[[], object] | None = None
    """Called when all of the client's connections are there again."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, float | int) and not isinstance(value, bool) and value <= 0:
                raise InvalidArgument(f"{option.name} is seconds above 0, not {value}")


QUMBED_OPTIONS: Final = (
    "private_key",
    "trust",
    "ca_file",
    "certificate",
    "insecure",
    "schemas",
)
"""Options that mean something on that strand only."""


class Choices(TypedDict, total=False):
    """The names of :class:`Options`, for those who pass them on."""

    tls: ssl.SSLContext | None
    connect_timeout: float
    answer_timeout: float
    offline_timeout: float
    keepalive: float
    close_timeout: float
    reconnect: bool
    reconnect_delay: float
    reconnect_delay_max: float
    compression: bool
    private_key: PrivateKey | None
    trust: Trusting | Iterable[PublicKey] | PublicKey | None
    ca_file: Path | str | None
    certificate: tuple[Path | str, Path | str] | None
    insecure: bool
    schemas: Mapping[str, Schema] | None
    on_disconnect: Callable[[ConnectionLost], object] | None
    on_reconnect: Callable[[], object] | None
