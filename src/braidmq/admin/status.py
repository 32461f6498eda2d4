"""The status of the broker: what the HTTP API reads, and the queries that it asks.

Before recovery is done there is neither an engine nor a log, while the API already answers;
everything here copes with that. All of it is on the event loop.
"""

from collections import Counter
from typing import TYPE_CHECKING, Final, cast

import msgspec
from starlette.requests import Request

from braidmq import __version__
from braidmq.admin.backlogs import Backlogs
from braidmq.admin.connections import Connections
from braidmq.admin.dead_letters import DeadLetters
from braidmq.admin.events import Numbers, rss_bytes
from braidmq.admin.health import unready_reason
from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.parameters import iso
from braidmq.admin.keys import Keys
from braidmq.admin.log import Log
from braidmq.admin.messages import Messages
from braidmq.admin.metrics import MetricValues
from braidmq.admin.overview import BrokerFacts, Overview, build
from braidmq.admin.publishing import Publishing
from braidmq.admin.queues import Queues
from braidmq.admin.reloads import Reloads
from braidmq.admin.replays import Replays
from braidmq.admin.subscriptions import Subscriptions
from braidmq.admin.topics import Topics
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.server.access.keys import KeyRing
from braidmq.server.config.config import Config
from braidmq.server.cursors import Cursors
from braidmq.server.engine.clock import BrokerClock
from braidmq.server.engine.engine import Engine
from braidmq.server.strands.listeners import Listener
from braidmq.wal.disk import Files
from braidmq.wal.wal import Wal

if TYPE_CHECKING:  # QUIC is imported where Qumbed is on
    from braidmq.server.strands.qumbed.listener import QumbedListener

_US_PER_S: Final = 1_000_000


class Status:
    """One broker as the API sees it; the daemon sets engine, log and listeners at start."""

    def __init__(
        self, config: Config, keys: KeyRing, files: Files, *, clock: BrokerClock
    ) -> None:
        self._config = config
        self._keys = keys
        self._clock = clock
        self._started_us = clock.now_us()
        self._backlogs = Backlogs()
        self._http_failures = 0
        self.version = __version__
        self.dev = config.dev
        self.addresses: dict[str, str | None] = {}
        self.engine: Engine | None = None
        self.wal: Wal | None = None
        self.listeners: list[Listener] = []
        self.recovery_seconds = 0.0

        # Functions, because neither exists before recovery is done.
        def find_engine() -> Engine | None:
            return self.engine

        def find_wal() -> Wal | None:
            return self.wal

        self.numbers = Numbers(
            self.metrics, now_us=self._now, take_fsyncs=lambda: _fsyncs_of(self.wal)
        )
        self.log = Log(config.wal, files, find_engine, find_wal)
        self.topics = Topics(find_engine, self.log)
        self.messages = Messages(find_engine, self.log)
        self.publishing = Publishing(find_engine)
        self.queues = Queues(find_engine)
        self.letters = DeadLetters(find_engine, self.log)
        self.replays = Replays(find_engine, self.log)
        self.cursors = Cursors(find_engine, find_wal)
        self.connections = Connections(lambda: self.listeners)
        self.subscriptions = Subscriptions(find_engine)
        self.keys = Keys(keys, find_engine)
        self.reloads = Reloads()

    def principal(self, key: str) -> Principal | None:
        """Return the principal of an API key, or None; unknown keys are counted."""
        principal = self._keys.find(key)
        if principal is None:
            self._http_failures += 1
        return principal

    def unready_reason(self) -> str:
        """Return why the broker does not accept work now; empty if it does."""
        return unready_reason(self.engine, self.wal)

    def overview(self) -> BrokerFacts:
        """Return the broker at a glance."""
        values = self.metrics()
        reason = self.unready_reason()
        return BrokerFacts(
            version=self.version,
            dev=self.dev,
            ready=not reason,
            reason=reason,
            alarms=self._clock.alarms,
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
            memory_bytes=values.memory_used_bytes,
            memory_limit_bytes=values.memory_limit_bytes,
            rss_bytes=rss_bytes(),
            recovery_seconds=values.recovery_seconds,
            log_bytes=values.wal_size_bytes,
            committed_id=values.wal_committed_id,
        )

    @keyed("GET /api/overview", refusals=())
    async def get_overview(self, _request: Request, principal: Principal) -> Overview:
        """Show the broker at a glance."""
        is_admin = authorize(principal, ADMIN, "")
        facts = msgspec.structs.asdict(self.overview())
        return Overview(**facts, principal=principal.name, admin=is_admin, build=build())

    def metrics(self) -> MetricValues:
        """Return the numbers of this moment."""
        values = MetricValues(
            memory_limit_bytes=self._config.limits.max_memory_bytes,
            recovery_seconds=self.recovery_seconds,
            authentication_failures={"http": self._http_failures},
            event_loop_lag_seconds=self.numbers.lag_seconds,
            clock_alarms=len(self._clock.alarms),
            clock_ahead_seconds=self._clock.wall_ahead_us / _US_PER_S,
        )
        values.connections = {listener.strand: len(listener) for listener in self.listeners}
        values.connections_refused = _refused(self.listeners)
        for listener in self.listeners:
            if listener.strand == "qumbed":
                values.quic_events = cast("QumbedListener", listener).packet_events()
        if self.engine is not None:
            _fill_from_broker(values, self.engine)
            backlog = self._backlogs.now(self.engine.broker)
            values.messages_waiting = backlog.waiting
            values.dead_letters = backlog.dead_letters
            values.expiration_heap_size = backlog.expiring
        if self.wal is not None:
            _fill_from_log(values, self.wal)
            if self.engine is not None:
                values.cursor_lag = {cursor.name: cursor.lag for cursor in self.cursors.all()}
        return values

    def _now(self) -> int:
        return self._clock.now_us()


def _encrypted(config: Config) -> list[str]:
    """Return the listeners that accept TLS only; QUIC always does."""
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
    # Popped one by one: the log's writer thread appends meanwhile.
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
    values.strand_messages_published = stats.published_by_origin()
    values.strand_messages_delivered = {
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
    dropped = Counter(
        expired=stats.expired,
        overflow=stats.dropped.overflow,
        retention=stats.dropped.retention,
        unheard=stats.dropped.unheard,
        purged=stats.dropped.purged,
    )
    dropped.update(stats.dropped.by_reason)  # adds
    values.messages_dropped = dropped
    values.acknowledgements_unknown = stats.unknown_acks
    values.subscriptions_ended = {"request": stats.unsubscribed, "lease": stats.leases_ended}
    values.messages_inflight = broker.in_flight_count()
    values.quota_refusals = dict(broker.topics.accounts.refused)
    values.retry_heap_size = broker.retry_count()
    values.memory_used_bytes = broker.memory_bytes()
    values.wal_full = engine.log_is_full


def _fill_from_log(values: MetricValues, wal: Wal) -> None:
    segments = wal.segments()
    values.wal_appends = wal.stats.records
    values.wal_written_bytes = wal.stats.bytes
    values.wal_commits = wal.stats.commits
    values.wal_fsyncs = wal.stats.fsyncs
    values.wal_fsync_seconds = wal.stats.fsync_seconds_total
    values.wal_fsync_last_seconds = wal.stats.fsync_seconds_last
    values.wal_fsync_duration_seconds = wal.stats.fsync_seconds
    values.wal_commit_records = wal.stats.batches
    values.wal_segments = len(segments)
    values.wal_size_bytes = sum(segment.size for segment in segments)
    values.wal_committed_id = wal.committed_id
    values.wal_poisoned = wal.is_poisoned
    values.recovery_torn_tail_bytes = wal.recovered.torn_bytes
