"""Status: the daemon as its HTTP pages show it."""

from collections import Counter
from collections.abc import Callable

from braidmq import __version__
from braidmq.admin.app import TopicSnapshot, TopicsPage
from braidmq.admin.health import Readiness
from braidmq.admin.metrics import MetricValues
from braidmq.broker.authorize import Principal
from braidmq.server.config import Config
from braidmq.server.cursors import Cursors
from braidmq.server.dead_letters import DeadLetters
from braidmq.server.engine import Engine
from braidmq.server.keys import KeyRing
from braidmq.server.listeners import Listener
from braidmq.server.queue_administration import QueueAdministration
from braidmq.wal.wal import Wal


class Status:
    """What `admin` asks of the daemon; before recovery is done there is no engine."""

    def __init__(self, config: Config, keys: KeyRing) -> None:
        self._config = config
        self._keys = keys
        self.engine: Engine | None = None
        self.wal: Wal | None = None
        self.listeners: list[Listener] = []
        self.recovery_seconds = 0.0
        self._http_failures = 0
        self.queues = QueueAdministration(lambda: self.engine)
        self.letters = DeadLetters(lambda: self.engine, lambda: self.wal)
        self.cursors = Cursors(lambda: self.engine, lambda: self.wal)

    def principal(self, key: str) -> Principal | None:
        """Return whose API key this is, or None, and count when it is nobody's."""
        principal = self._keys.find(key)
        if principal is None:
            self._http_failures += 1
        return principal

    def readiness(self) -> Readiness:
        """Return whether the broker takes work now."""
        if self.engine is None or self.wal is None:
            return Readiness(ready=False, reason="recovering the log")
        if self.engine.failed is not None or self.wal.is_poisoned:
            return Readiness(ready=False, reason="the log is poisoned")
        if self.engine.draining:
            return Readiness(ready=False, reason="shutting down")
        return Readiness(ready=True)

    def overview(self) -> dict[str, object]:
        """Return what is worth knowing at a glance."""
        values = self.metrics()
        readiness = self.readiness()
        return {
            "version": __version__,
            "ready": readiness.ready,
            "reason": readiness.reason,
            "fsync": self._config.wal.fsync,
            "topics": values.topics,
            "subscriptions": values.subscriptions,
            "connections": dict(values.connections),
            "messages_published": values.messages_published,
            "messages_delivered": values.messages_delivered,
            "messages_inflight": values.messages_inflight,
            "log_bytes": values.wal_size_bytes,
            "committed_id": values.wal_committed_id,
        }

    def topics(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> TopicsPage:
        """Return up to *limit* visible topics whose names sort behind *after*."""
        if self.engine is None:
            return TopicsPage([], more=False)
        found = [
            TopicSnapshot(row.name, row.message_count, row.last_id, row.subscriptions)
            for row in self.engine.broker.topic_rows(after)
            if visible(row.name)
        ]
        return TopicsPage(found[:limit], more=len(found) > limit)

    def metrics(self) -> MetricValues:
        """Return the numbers of this moment."""
        values = MetricValues(
            memory_limit_bytes=self._config.limits.max_memory_bytes,
            recovery_seconds=self.recovery_seconds,
            authentication_failures={"http": self._http_failures},
        )
        values.connections = {listener.strand: len(listener) for listener in self.listeners}
        values.connections_refused = _refused(self.listeners)
        if self.engine is not None:
            _fill_from_broker(values, self.engine)
        if self.engine is not None and self.wal is not None:
            values.cursor_lag = {cursor.name: cursor.lag for cursor in self.cursors.all()}
        if self.wal is not None:
            _fill_from_log(values, self.wal)
        return values


def _refused(listeners: list[Listener]) -> dict[str, int]:
    refused: Counter[str] = Counter()
    for listener in listeners:
        refused.update(listener.refused)
    return dict(refused)


def _fill_from_broker(values: MetricValues, engine: Engine) -> None:
    broker = engine.broker
    stats = broker.stats
    values.authentication_failures = {
        **values.authentication_failures,
        **engine.authentication_failures,
    }
    values.topics = len(broker.topics)
    values.subscriptions = broker.subscription_count()
    values.queues = len(broker.deliverer.queues)
    values.messages_published = stats.published
    values.messages_published_bytes = stats.published_bytes
    values.messages_refused = stats.refused
    values.messages_duplicate = stats.duplicates
    values.messages_delivered = stats.delivered
    values.messages_redelivered = stats.redelivered
    values.messages_acknowledged = stats.acknowledged
    values.messages_dead_lettered = stats.dead_lettered
    dropped = {
        "expired": stats.expired,
        "overflow": stats.dropped_overflow,
        "retention": stats.lost_to_retention,
        "unheard": stats.dropped_unheard,
        "purged": stats.purged,
    }
    for reason, count in stats.dropped.items():
        dropped[reason] = dropped.get(reason, 0) + count
    values.messages_dropped = dropped
    values.acknowledgements_unknown = stats.unknown_acks
    values.subscriptions_ended = {
        "request": stats.unsubscribed,
        "lease": stats.leases_ended,
    }
    values.messages_inflight = broker.in_flight_count()
    values.retry_heap_size = len(broker.deliverer.retries)
    values.memory_bytes = broker.deliverer.windows.held_bytes + broker.outgoing.bytes
    values.wal_full = engine.log_is_full


def _fill_from_log(values: MetricValues, wal: Wal) -> None:
    segments = wal.segments()
    values.wal_appends = wal.stats.records
    values.wal_bytes = wal.stats.bytes
    values.wal_commits = wal.stats.commits
    values.wal_fsyncs = wal.stats.fsyncs
    values.wal_fsync_seconds = wal.stats.fsync_seconds_total
    values.wal_fsync_last_seconds = wal.stats.fsync_seconds_last
    values.wal_segments = len(segments)
    values.wal_size_bytes = sum(segment.size for segment in segments)
    values.wal_committed_id = wal.committed_id
    values.wal_poisoned = wal.is_poisoned
    values.torn_tail_bytes = wal.recovered.torn_bytes
