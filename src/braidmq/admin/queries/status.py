"""Status: the daemon as its HTTP pages show it."""

from collections import Counter
from collections.abc import Callable
from typing import Final

from braidmq import __version__
from braidmq.admin.health import Readiness
from braidmq.admin.http.parameters import iso
from braidmq.admin.metrics import MetricValues
from braidmq.admin.overview import BrokerFacts
from braidmq.admin.queries.backlogs import Backlog, Backlogs
from braidmq.admin.queries.connection_list import ConnectionList
from braidmq.admin.queries.dead_letters import DeadLetters
from braidmq.admin.queries.key_list import KeyList
from braidmq.admin.queries.log_facts import LogAdministration
from braidmq.admin.queries.messages import Messages
from braidmq.admin.queries.numbers import Numbers, rss_bytes
from braidmq.admin.queries.queue_administration import QueueAdministration
from braidmq.admin.queries.topics import TopicList
from braidmq.broker.authorize import Principal
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Channel
from braidmq.server.access.keys import KeyRing
from braidmq.server.config.config import Config
from braidmq.server.cursors import Cursors
from braidmq.server.engine.engine import Engine
from braidmq.server.strands.listeners import Listener
from braidmq.wal.files import Files
from braidmq.wal.wal import Wal

_US_PER_S: Final = 1_000_000


class Status:
    """What `admin` asks of the daemon; before recovery is done there is no engine."""

    def __init__(
        self, config: Config, keys: KeyRing, files: Files, *, now_us: Callable[[], int]
    ) -> None:
        self._config = config
        self._keys = keys
        self._now_us = now_us
        self._started_us = now_us()
        self._backlogs = Backlogs()
        self._backlog = Backlog()
        self._expiring = 0
        self.version = __version__
        self.dev = config.dev
        self.addresses: dict[str, str | None] = {}
        self.engine: Engine | None = None
        self.wal: Wal | None = None
        self.listeners: list[Listener] = []
        self.recovery_seconds = 0.0
        self._http_failures = 0
        self.numbers = Numbers(
            self.metrics, now_us=self._now, take_fsyncs=lambda: _fsyncs_of(self.wal)
        )
        self.topics = TopicList(lambda: self.engine, lambda: self.wal)
        self.messages = Messages(lambda: self.engine, lambda: self.wal)
        self.queues = QueueAdministration(lambda: self.engine)
        self.letters = DeadLetters(lambda: self.engine, lambda: self.wal)
        self.cursors = Cursors(lambda: self.engine, lambda: self.wal)
        self.connections = ConnectionList(lambda: self.engine, lambda: self.listeners)
        self.keyring = KeyList(keys, lambda: self.engine)
        self.log = LogAdministration(config.wal, files, lambda: self.engine, lambda: self.wal)

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

    def overview(self) -> BrokerFacts:
        """Return what is worth knowing at a glance."""
        values = self.metrics()
        readiness = self.readiness()
        return BrokerFacts(
            version=self.version,
            dev=self.dev,
            ready=readiness.ready,
            reason=readiness.reason,
            started=iso(self._started_us),
            uptime_s=max(0, self._now() - self._started_us) / _US_PER_S,
            fsync=self._config.wal.fsync,
            topics=values.topics,
            subscriptions=values.subscriptions,
            queues=values.queues,
            connections=dict(values.connections),
            listeners=dict(self.addresses),
            tls=_encrypted(self._config),
            messages_published=values.messages_published,
            messages_delivered=values.messages_delivered,
            messages_inflight=values.messages_inflight,
            backlog=values.messages_waiting,
            dead_letters=values.dead_letters,
            memory_bytes=values.memory_bytes,
            memory_limit_bytes=values.memory_limit_bytes,
            rss_bytes=rss_bytes(),
            recovery_seconds=values.recovery_seconds,
            log_bytes=values.wal_size_bytes,
            committed_id=values.wal_committed_id,
        )

    def metrics(self) -> MetricValues:
        """Return the numbers of this moment."""
        values = MetricValues(
            memory_limit_bytes=self._config.limits.max_memory_bytes,
            recovery_seconds=self.recovery_seconds,
            authentication_failures={"http": self._http_failures},
            event_loop_lag_seconds=self.numbers.lag_seconds,
        )
        values.connections = {listener.strand: len(listener) for listener in self.listeners}
        values.connections_refused = _refused(self.listeners)
        if self.engine is not None:
            _fill_from_broker(values, self.engine)
            backlog = self._backlogs.now(self.engine.broker, self._now())
            if backlog is not self._backlog:  # walked anew; so is this, as seldom
                self._backlog = backlog
                self._expiring = expiring(self.engine.broker)
            values.messages_waiting = backlog.waiting
            values.dead_letters = backlog.dead_letters
            values.expiration_heap_size = self._expiring
        if self.engine is not None and self.wal is not None:
            values.cursor_lag = {cursor.name: cursor.lag for cursor in self.cursors.all()}
        if self.wal is not None:
            _fill_from_log(values, self.wal)
        return values

    def _now(self) -> int:
        # Before recovery the engine's clock, which goes on from the log's, is not there.
        return self._now_us() if self.engine is None else self.engine.now_us()


def expiring(broker: Broker) -> int:
    """Return how many messages in memory have a time to live, for each who is to get them.

    There is no timer for each: once a second the first of every window is looked at. So that
    this need not look at all either, the first one speaks for those behind it.
    """
    queues = broker.queues.all_channels()
    return sum(map(_expiring_in, (*broker.subscriptions.by_id.values(), *queues)))


def _expiring_in(channel: Channel) -> int:
    ready, volatile = channel.ready, channel.volatile
    handed_out = channel.in_flight.open
    count = len(ready) if ready and ready[0].message.expires_us else 0
    count += len(volatile) if volatile and volatile[0].expires_us else 0
    if handed_out and next(iter(handed_out.values())).message.expires_us:
        count += len(handed_out)
    return count


def _encrypted(config: Config) -> list[str]:
    """Return which listeners have TLS; QUIC has it always."""
    sections = {
        "blip": config.blip,
        "vibe": config.vibe,
        "http": config.http,
        "flight": config.flight,
    }
    return ["qumbed", *(name for name, one in sections.items() if one.tls_cert is not None)]


def _fsyncs_of(wal: Wal | None) -> list[float]:
    if wal is None:
        return []
    lately = wal.stats.fsync_seconds_lately
    return [lately.popleft() for _ in range(len(lately))]


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
    values.queues = len(broker.queues.by_name)
    values.messages_published = stats.published
    values.messages_published_by_strand = stats.published_by_origin()
    values.messages_delivered_by_strand = {
        strand: count for strand, count in engine.handed_out.items() if strand
    }
    values.messages_published_bytes = stats.published_bytes
    values.messages_refused = stats.refused
    values.messages_duplicate = stats.duplicates
    values.messages_delivered = stats.delivered
    values.messages_redelivered = stats.redelivered
    values.messages_acknowledged = stats.acknowledged
    values.messages_nacked = stats.nacked
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
    values.retry_heap_size = broker.retry_count()
    values.memory_bytes = broker.memory_bytes()
    values.wal_full = engine.log_is_full


def _fill_from_log(values: MetricValues, wal: Wal) -> None:
    segments = wal.segments()
    values.wal_appends = wal.stats.records
    values.wal_bytes = wal.stats.bytes
    values.wal_commits = wal.stats.commits
    values.wal_fsyncs = wal.stats.fsyncs
    values.wal_fsync_seconds = wal.stats.fsync_seconds_total
    values.wal_fsync_last_seconds = wal.stats.fsync_seconds_last
    values.wal_fsync_duration = wal.stats.fsync_seconds
    values.wal_commit_records = wal.stats.batches
    values.wal_segments = len(segments)
    values.wal_size_bytes = sum(segment.size for segment in segments)
    values.wal_committed_id = wal.committed_id
    values.wal_poisoned = wal.is_poisoned
    values.torn_tail_bytes = wal.recovered.torn_bytes
