"""The options of a client, a publish, a subscription and a queue; all times are in seconds.

`Options` is for users. The records below it are what the surface makes of the arguments of a
call, so that a strand takes one value instead of ten parameters; which strand has which option
is in `capabilities`.
"""

import enum
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Final, Literal, NamedTuple, Protocol, TypedDict

from braidmq.client.errors import ConnectionLost, InvalidArgument

Callback = Callable[..., object]
"""A function or a coroutine function. It runs in a task of its own, so that a slow one does
not hold up the reading of a socket."""

Payload = bytes | bytearray | memoryview
"""What can be published; what is received is always bytes."""


class Priority(enum.IntEnum):
    """How urgent a message is, on strands with priorities."""

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


DeliveryMode = Literal[
    "RoundRobin",
    "FanOutWithAck",
    "FanOutWithoutAck",
    "PriorityBased",
    "round_robin",
    "fan_out_with_ack",
    "fan_out_without_ack",
    "priority_based",
]
"""Who gets a queue's messages; each mode has the name of the wire, and Python's spelling."""

Overflow = Literal[
    "DropOldest",
    "DropNewest",
    "BlockPublisher",
    "RedirectToDlq",
    "drop_oldest",
    "drop_newest",
    "block_publisher",
    "redirect_to_dlq",
]
"""What happens to a message for which its queue has no room; spelled like the modes."""


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message for `publish_many` that has headers or a priority of its own."""

    payload: Payload
    headers: Mapping[str, str] | None = None
    """Added to the headers that all messages of the call have; of two with the same name,
    this one is sent."""
    priority: int | None = None
    """None: the priority that all messages of the call have."""


class KeyHolder(Protocol):
    """Holds a private key: a :class:`~braidmq.client.qumbed.boxes.KeyPair`."""

    def reveal_private_key(self) -> bytes:
        """Return the private key's 32 bytes."""


class Trusting(Protocol):
    """Decides which senders to trust: a :class:`~braidmq.client.qumbed.trust.TrustList`."""

    def check(self, sender: bytes, topic: str) -> None:
        """Raise SenderRefused for a sender that is certainly not trusted."""

    def admit(self, sender: bytes, topic: str) -> None:
        """Trust a sender whose box was opened, or raise SenderRefused."""


PrivateKey = KeyHolder | Path | bytes | str
"""A key pair, the file that `braidmq keygen` wrote, 32 bytes, or 64 hexadecimal digits."""

PublicKey = bytes | str
"""32 bytes, or 64 hexadecimal digits."""

Schema = Mapping[str, object]
"""A JSON Schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that :func:`braidmq.connect` takes."""

    tls: ssl.SSLContext | None = None
    """Use TLS with this context. None: plain TCP for `blip://`, and the system's certificate
    authorities for `blips://`."""

    connect_timeout: float = 10.0
    """For one attempt to connect, including TLS and authentication."""

    answer_timeout: float = 30.0
    """How long a broker that owes an answer may be silent before it is considered dead."""

    offline_timeout: float = 30.0
    """How long a call waits for a connection while there is none."""

    keepalive: float = 20.0
    """How long a connection may be idle before the client sends a PING."""

    close_timeout: float = 5.0
    """How long closing waits for the broker to confirm what was sent."""

    reconnect: bool = True
    """Whether to reconnect when a connection breaks; if not, its loss ends the client."""

    reconnect_delay: float = 0.05
    """Before the first attempt to reconnect; doubles with each attempt, with jitter."""

    reconnect_delay_max: float = 5.0
    """The longest delay between two attempts to reconnect."""

    compression: bool = False
    """Offer brotli and gzip to a broker that can compress (Vibe), for bodies from 1 KiB."""

    private_key: PrivateKey | None = field(default=None, repr=False)
    """Seals and opens messages (Qumbed). None: a new key, for this client only."""

    trust: Trusting | Iterable[PublicKey] | PublicKey | None = None
    """The senders whose messages are accepted (Qumbed): public keys, or a trust list. What its
    publisher did not seal comes from the gateway's key. None: accept every sender, and leave
    it to the program to look at `message.sender`."""

    ca_file: Path | str | None = None
    """Certificates of the authorities that may vouch for the broker (Qumbed); by default the
    system's. A fingerprint in the URL takes the place of all authorities."""

    certificate: tuple[Path | str, Path | str] | None = None
    """The files of a client certificate and its key, for a broker that asks (Qumbed)."""

    insecure: bool = False
    """Accept any certificate (Qumbed). For tests only: it allows a man in the middle."""

    schemas: Mapping[str, Schema] | None = None
    """Further schemas by their ids, to validate payloads with (Qumbed)."""

    on_disconnect: Callable[[ConnectionLost], object] | None = None
    """Called when the first of the client's connections breaks."""

    on_reconnect: Callable[[], object] | None = None
    """Called when all of the client's connections are restored."""

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            # Every number is a duration; True and False are ints, too. NaN is not above 0.
            is_number = isinstance(value, float | int) and not isinstance(value, bool)
            if is_number and not value > 0:
                raise InvalidArgument(f"{option.name} must be more than 0 seconds, not {value}")


class Choices(TypedDict, total=False):
    """The names and types of :class:`Options`, as keyword arguments."""

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


class PublishOptions(NamedTuple):
    """The options of `publish` and `publish_many`; the surface documents them."""

    qos: int = 1
    headers: Mapping[str, str] | None = None
    priority: int | None = None
    ttl: float | None = None
    recipient: PublicKey | None = None
    schema: str = ""
    envelope: bool = False
    retry: bool = False


OnGap = Callable[[int, int], object]
"""Called with the id of the subscription that was lost and of the one that replaces it."""

PREFETCH_DEFAULT: Final = 256
"""Messages that wait here for a fast handler; a slow one has fewer waiting."""


class SubscribeOptions(NamedTuple):
    """The options of `subscribe`; the surface documents them."""

    qos: int = 1
    prefetch: int = PREFETCH_DEFAULT
    subscription_id: int | None = None
    keep: bool | None = None
    on_gap: OnGap | None = None
    schema: str = ""
    envelope: bool = False


class QueueOptions(NamedTuple):
    """The options of `declare_queue`; None leaves a choice to the broker."""

    mode: DeliveryMode | None = None
    max_size: int | None = None
    ttl: float | None = None
    dead_letters: bool | None = None
    dead_letter_name: str | None = None
    overflow: Overflow | None = None
    max_attempts: int | None = None
    durable: bool | None = None
