"""Counters of what happened since the process started, and snapshots of what is."""

from typing import Final, final

from braidmq.broker.topics import (
    ORIGIN_HTTP,
    ORIGIN_QUMBED,
    ORIGIN_SPARK,
    ORIGIN_VIBE,
    Topics,
)

_ORIGINS: Final = (
    (ORIGIN_VIBE, "vibe"),
    (ORIGIN_QUMBED, "qumbed"),
    (ORIGIN_HTTP, "http"),
    (ORIGIN_SPARK, "spark"),
)


@final
class Dropped:
    """Messages that were dropped and left nothing behind, by the reason."""

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
        # By origin, Blip's left out: it is the rest, and most messages need not be asked.
        self._by_origin: list[int] = [0] * (ORIGIN_SPARK + 1)
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

    def count_origin(self, origin: int) -> None:
        """Count a message that came by another strand than Blip."""
        self._by_origin[origin] += 1

    def published_by_origin(self) -> dict[str, int]:
        """Return how many messages came by each strand; together they are `published`."""
        counts = {name: self._by_origin[origin] for origin, name in _ORIGINS}
        return {"blip": self.published - sum(counts.values()), **counts}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that ended for *reason* and left nothing behind."""
        by_reason = self.dropped.by_reason
        by_reason[reason] = by_reason.get(reason, 0) + count


class TopicRow:
    """One topic as an operator sees it."""

    def __init__(self, name: str, message_count: int, last_id: int, subscriptions: int) -> None:
        self.name: str = name
        self.message_count: int = message_count
        self.last_id: int = last_id
        self.subscriptions: int = subscriptions


def topic_rows(topics: Topics, after: str) -> list[TopicRow]:
    """Return the topics with names above *after*, by name."""
    rows = [
        TopicRow(
            topic.name,
            topic.message_count,
            topic.last_id,
            len(topic.subscriptions) + len(topic.followers),
        )
        for topic in topics.all()
        if topic.name > after
    ]
    rows.sort(key=_row_name)
    return rows


def _row_name(row: TopicRow) -> str:
    return row.name
