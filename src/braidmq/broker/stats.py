"""Counters of what happened since the process started."""

from typing import Final, final

from braidmq.broker.topics import (
    ORIGIN_HTTP,
    ORIGIN_QUMBED,
    ORIGIN_SPARK,
    ORIGIN_VIBE,
)

_ORIGINS: Final = (
    (ORIGIN_VIBE, "vibe"),
    (ORIGIN_QUMBED, "qumbed"),
    (ORIGIN_HTTP, "http"),
    (ORIGIN_SPARK, "spark"),
)


@final
class Dropped:
    """Messages that were dropped without a dead letter, by reason."""

    def __init__(self) -> None:
        self.overflow: int = 0  # the window or the queue was full
        self.unheard: int = 0  # a fan-out without acknowledgement had no subscriber
        self.purged: int = 0
        self.retention: int = 0  # ids that retention deleted before a channel had read them
        self.by_reason: dict[str, int] = {}  # given up on, where dead letters are off


class Stats:
    """Plain counters; every end of a message is counted by its reason."""

    def __init__(self) -> None:
        self.published: int = 0
        self.published_bytes: int = 0
        # Blip is the rest of `published`: the hottest path counts only once.
        self.by_origin: list[int] = [0] * (ORIGIN_SPARK + 1)
        self.delivered: int = 0
        self.acknowledged: int = 0
        self.nacked: int = 0  # returned or rejected by their consumers
        self.redelivered: int = 0
        self.dead_lettered: int = 0
        self.expired: int = 0
        self.dropped: Dropped = Dropped()
        self.refused: int = 0
        self.duplicates: int = 0
        self.unsubscribed: int = 0
        self.leases_ended: int = 0
        self.unknown_acks: int = 0

    def published_by_origin(self) -> dict[str, int]:
        """Return how many messages each strand brought; their sum is `published`."""
        counts = {name: self.by_origin[origin] for origin, name in _ORIGINS}
        return {"blip": self.published - sum(counts.values()), **counts}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that ended for *reason* without a dead letter."""
        by_reason = self.dropped.by_reason
        by_reason[reason] = by_reason.get(reason, 0) + count
