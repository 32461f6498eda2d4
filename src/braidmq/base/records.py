"""What the log's index holds about a record: the terms that log and broker share."""

from typing import Final, final

CLOCK_KIND: Final = 16
"""The type of the record behind which timestamps may be lower than before it."""

GAP_KIND: Final = 127
"""The type of the record that a repair of the log writes in the place of lost ids."""

KIND_NAMES: Final[dict[int, str]] = {
    1: "message",
    2: "dead letter",
    3: "subscribe",
    4: "unsubscribe",
    5: "progress",
    6: "declare",
    7: "delete",
    8: "follow",
    9: "sink row",
    10: "intent",
    11: "done",
    12: "cursor",
    13: "first message",
    14: "declare by",
    15: "end topic",
    CLOCK_KIND: "clock",
    GAP_KIND: "gap",
}
"""The types of records, as they are shown; one that is not here is unknown to this version."""


@final
class Description:
    """Topic, payload and times of one record body.

    `payload_at` is the offset of the message's payload, which runs to the end of the body. A
    record that is not a message has no topic and is all payload.
    """

    def __init__(  # noqa: PLR0917 - made once per record, and keywords cost when compiled
        self,
        topic: bytes,
        payload_at: int,
        timestamp_us: int,
        qos: int,
        priority: int,
        origin: int,
    ) -> None:
        self.topic: bytes = topic
        self.payload_at: int = payload_at
        self.timestamp_us: int = timestamp_us
        self.qos: int = qos
        self.priority: int = priority
        self.origin: int = origin
