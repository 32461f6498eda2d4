"""What the streams of one Qumbed connection share, and the options of the strand.

A peer may open many streams, each served like a connection of its own; its limits are counted
here, over all its streams.
"""

import secrets
from collections.abc import Callable
from typing import Final, Protocol

from braidmq.base.limits import MIB
from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import Quotas
from braidmq.broker.schemas import Schemas
from braidmq.server.engine.connection import Connection, Wire
from braidmq.server.engine.rates import TokenBucket
from braidmq.server.strands.qumbed.gateway import GatewayKey

UNFINISHED_BYTES_MAX: Final = 8 * (MIB + 4)
"""Bytes of unfinished frames on all streams of a connection: eight of the longest, with their
lengths. The stream that exceeds it is closed."""

TOKEN_BYTES: Final = 16

ANONYMOUS: Final = "anonymous"
"""Principal used when authentication is off."""


class StreamWire(Wire, Protocol):
    """What carries a stream's bytes; a connection has several."""

    def stream_unsent_bytes(self) -> int:
        """Return how much the peer has not acknowledged of this stream alone."""

    @property
    def is_stopped(self) -> bool:
        """Whether the peer has announced that it reads no more; it may still send."""

    @property
    def written_bytes(self) -> int:
        """The number of bytes written to this stream."""

    def received_bytes(self) -> int:
        """Return how many of them the peer has received without a gap."""

    def tell_below(self, size: int) -> None:
        """Have `set_writable(True)` called once at most *size* bytes are unacknowledged."""

    def drain_connection(self, code: int = 0, reason: str = "") -> None:
        """Send what is written on every stream, then close the connection."""


class QumbedOptions:
    """The strand's configuration, as every stream needs it."""

    def __init__(
        self,
        *,
        gateway: GatewayKey,
        schemas: Schemas,
        address: str,
        asks_for_key: bool = False,
        is_durable: bool = True,
        window_bytes: int,
        ttl_us: int = 0,
    ) -> None:
        self.gateway: GatewayKey = gateway
        self.schemas: Schemas = schemas
        self.node_id: str = f"braidmq-{gateway.public_key[:8].hex()}"
        self.address: str = address
        self.asks_for_key: bool = asks_for_key
        self.is_durable: bool = is_durable
        self.window_bytes: int = window_bytes
        self.ttl_us: int = ttl_us


class Link:
    """One QUIC connection, as its streams see it."""

    def __init__(
        self,
        principal: Principal | None,
        messages_per_s: int,
        left: Callable[[Connection], None],
    ) -> None:
        self.principal: Principal | None = principal  # None: each stream sends a key
        self.payer: Principal | None = principal  # of the newest stream that has shown one
        self.left: Callable[[Connection], None] = left  # called when a stream has ended
        self.is_authenticated: bool = principal is not None
        self.token: str = secrets.token_hex(TOKEN_BYTES)  # unique to this connection
        self.number: int = 0  # of the connection, and when it was accepted
        self.since_us: int = 0
        self.unfinished_bytes: int = 0
        self.tokens: TokenBucket | None = None  # for the frames of all streams together
        if messages_per_s:
            self.tokens = TokenBucket(messages_per_s)


def anonymous(quotas: Quotas | None = None) -> Principal:
    """Return the principal used when authentication is off: all rights but administration."""
    return Principal(ANONYMOUS, publish=["*"], subscribe=["*"], quotas=quotas)
