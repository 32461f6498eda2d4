"""Counters of what happened since the process started, and snapshots of what is."""

from braidmq.broker.topics import Topics


class Stats:
    """Plain counters; every end of a message is counted by its reason."""

    def __init__(self) -> None:
        self.published: int = 0
        self.published_bytes: int = 0
        self.delivered: int = 0
        self.acknowledged: int = 0
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
