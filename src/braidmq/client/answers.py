"""What a broker answers, as users see it on every strand: receipts, numbers, queues."""

from dataclasses import dataclass
from datetime import datetime

from braidmq.client.options import DeliveryMode, Overflow


@dataclass(frozen=True, slots=True)
class Receipt:
    """The outcome of a publish that succeeded."""

    topic: str
    qos: int
    durable: bool
    """Whether the broker has committed the message to its log; with QoS 0 it was only sent."""

    id: int | str | None = None
    """The message's id: text on Vibe and Qumbed, None on Blip, which does not report it."""

    repeated: bool = False
    """Whether it was sent more than once (`retry=True`) and so may be stored twice; on Qumbed
    only if the broker's dedup window has passed meanwhile."""

    delivered: int | None = None
    """How many subscribers got it at once, where the strand reports it (Qumbed)."""

    timestamp: datetime | None = None
    """When the broker accepted it, to the millisecond, as subscribers see it (Vibe, Qumbed).
    None on Blip, for a repetition of what was stored before, and from a broker that does not
    report it."""


@dataclass(frozen=True, slots=True)
class Stats:
    """The broker's numbers, over all strands; counters start at 0 with its process."""

    topics: int
    subscribers: int
    messages_published: int
    messages_delivered: int
    inflight: int


@dataclass(frozen=True, slots=True)
class QueueInfo:
    """A queue: how it was declared, and what is in it."""

    name: str
    waiting: int
    in_flight: int
    """Delivered, and neither acknowledged nor given back."""
    subscribers: int
    mode: DeliveryMode
    """`RoundRobin`, `FanOutWithAck`, `FanOutWithoutAck` or `PriorityBased`."""
    max_size: int | None
    """How many messages may wait; None: no limit."""
    ttl: float | None
    """After how many seconds a message expires; None: never."""
    dead_letters: bool
    dead_letter_name: str | None
    overflow: Overflow
    """`DropOldest`, `DropNewest`, `BlockPublisher` or `RedirectToDlq`."""
    max_attempts: int
    durable: bool
    created: datetime | None
