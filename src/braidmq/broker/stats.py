"""Counters of what happened since the process started, and snapshots of what is."""

from braidmq.broker.topics import (
    ORIGIN_HTTP,
    ORIGIN_QUMBED,
    ORIGIN_SPARK,
    ORIGIN_VIBE,
    Topics,
)


class Stats:
    """Plain counters; every end of a message is counted by its reason."""

    def __init__(self) -> None:
        self.published: int = 0
        self.published_bytes: int = 0
        # What of `published` did not come by Blip: there every message would have to be asked.
        self.published_vibe: int = 0
        self.published_qumbed: int = 0
        self.published_http: int = 0
        self.published_spark: int = 0
        self.delivered: int = 0
        self.acknowledged: int = 0
        self.nacked: int = 0  # given back or rejected by their consumers
        self.redelivered: int = 0
        self.dead_lettered: int = 0
        self.expired: int = 0
        self.dropped_overflow: int = 0
        self.refused: int = 0
        self.duplicates: int = 0
        self.unsubscribed: int = 0
        self.leases_ended: int = 0
        self.dropped: dict[str, int] = {}  # by reason, where dead letters are off
        self.dropped_unheard: int = 0  # fan-out without acknowledgement, and nobody there
        self.purged: int = 0
        self.unknown_acks: int = 0
        self.lost_to_retention: int = 0  # ids that a laggard did not get to read

    def count_origin(self, origin: int) -> None:
        """Count a message that came by another strand than Blip."""
        if origin == ORIGIN_VIBE:
            self.published_vibe += 1
        elif origin == ORIGIN_QUMBED:
            self.published_qumbed += 1
        elif origin == ORIGIN_HTTP:
            self.published_http += 1
        elif origin == ORIGIN_SPARK:
            self.published_spark += 1

    def published_by_origin(self) -> dict[str, int]:
        """Return how many messages came by each strand; together they are `published`."""
        others = {
            "vibe": self.published_vibe,
            "qumbed": self.published_qumbed,
            "http": self.published_http,
            "spark": self.published_spark,
        }
        return {"blip": self.published - sum(others.values()), **others}

    def drop(self, reason: str, count: int = 1) -> None:
        """Count messages that ended for *reason* and left nothing behind."""
        self.dropped[reason] = self.dropped.get(reason, 0) + count


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
