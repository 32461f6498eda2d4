"""What is around a connection: its wire, its bounds, and the daemon that hosts it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Delivery
from braidmq.broker.topics import Pending
from braidmq.server.access.user_administration import Outcome
from braidmq.wire.blip import messages

if TYPE_CHECKING:
    from braidmq.server.engine.connection import Connection


class Wire(Protocol):
    """What carries a connection's bytes."""

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room."""

    def unsent_bytes(self) -> int:
        """Return how much was written and not yet sent."""

    def pause_reading(self) -> None:
        """Deliver no more data for a while."""

    def resume_reading(self) -> None:
        """Deliver data again."""

    def close(self) -> None:
        """Send what is written, then close."""

    def greeted(self) -> None:
        """Stop the clock that strangers are measured by."""


class Limits:
    """The bounds of one connection."""

    def __init__(self, *, output_buffer_bytes: int, messages_per_s: int) -> None:
        self.output_buffer_bytes: int = output_buffer_bytes
        self.messages_per_s: int = messages_per_s


class Tracing(Protocol):
    """Who is told what happens to messages, a batch at a time; times are in microseconds."""

    def appending(self, items: list[Pending], now_us: int) -> None:
        """Note what is handed to the log."""

    def committed(self, up_to: int, now_us: int) -> None:
        """Note that everything up to an id is durable."""

    def refused(self, reason: str, now_us: int) -> None:
        """Note that the log did not take what it was handed."""

    def delivered(self, strand: str, deliveries: list[Delivery], now_us: int) -> None:
        """Note what was handed out to one peer."""


class Host:
    """What a connection asks of the daemon around it."""

    def __init__(self, broker: Broker) -> None:
        self.broker: Broker = broker
        self.uncommitted_bytes_max: int = broker.admission.uncommitted_bytes_max
        self.starved: list[Connection] = []  # publishers that wait for commits
        self.waiting: list[Connection] = []  # connections with replies that wait for commits
        self.tracing: Tracing | None = None
        self.handed_out: dict[str, int] = {  # messages, by strand
            "": 0,
            "blip": 0,
            "vibe": 0,
            "qumbed": 0,
        }
        self.authentication_failures: dict[str, int] = {  # by strand
            "blip": 0,
            "vibe": 0,
            "qumbed": 0,
        }

    def now_us(self) -> int:
        """Return the time."""
        raise NotImplementedError

    def find_principal(self, key: str) -> Principal | None:
        """Return whose key it is."""
        raise NotImplementedError

    def check_password(
        self, name: str, password: str, done: Callable[[Principal | None], None]
    ) -> bool:
        """Have *done* told whose name and password these are; False when too many wait."""
        raise NotImplementedError

    def administer(
        self, principal: Principal, kind: int, payload: bytes, done: Callable[[Outcome], None]
    ) -> None:
        """Do an administrator's command, and tell *done* how it ended."""
        raise NotImplementedError

    def end_turn(self) -> None:
        """Look after what the broker left to do."""
        raise NotImplementedError

    def wake_later(self, connection: "Connection", delay_us: int) -> None:
        """Wake the connection after a while."""
        raise NotImplementedError

    def connection_stats(self) -> messages.Stats:
        """Return the numbers of a STATS reply."""
        raise NotImplementedError
