"""Metrics in the Prometheus text format: our names, and the nine of BlipMQ under their own.

    GET /metrics    open on a loopback listener; elsewhere it needs a key

`MetricValues` is a plain snapshot. Each scrape takes one, so that all lines of an answer belong
to one moment; nothing is counted here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.base.histogram import Histogram

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The version of the text format that every scraper reads."""

METRICS_PATH: Final = "/metrics"


@dataclass(slots=True, kw_only=True)
class MetricValues:
    """Every number on the page; counters start at 0 with the process."""

    topics: int = 0
    subscriptions: int = 0
    connections: Mapping[str, int] = field(default_factory=dict)  # by strand
    connections_refused: Mapping[str, int] = field(default_factory=dict)  # by reason
    authentication_failures: Mapping[str, int] = field(default_factory=dict)  # by strand
    quic_events: Mapping[str, int] = field(default_factory=dict)  # by event
    messages_published: int = 0
    messages_published_by_strand: Mapping[str, int] = field(default_factory=dict)
    messages_delivered_by_strand: Mapping[str, int] = field(default_factory=dict)
    messages_waiting: int = 0
    dead_letters: int = 0
    messages_nacked: int = 0
    event_loop_lag_seconds: float = 0.0
    messages_published_bytes: int = 0
    messages_refused: int = 0
    messages_duplicate: int = 0
    messages_delivered: int = 0
    messages_redelivered: int = 0
    messages_acknowledged: int = 0
    messages_dead_lettered: int = 0
    acknowledgements_unknown: int = 0
    queues: int = 0
    messages_dropped: Mapping[str, int] = field(default_factory=dict)  # by reason
    subscriptions_ended: Mapping[str, int] = field(default_factory=dict)  # by reason
    cursor_lag: Mapping[str, int] = field(default_factory=dict)  # by cursor
    messages_inflight: int = 0
    expiration_heap_size: int = 0
    retry_heap_size: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    wal_appends: int = 0
    wal_bytes: int = 0
    wal_commits: int = 0
    wal_fsyncs: int = 0
    wal_fsync_seconds: float = 0.0
    wal_fsync_last_seconds: float = 0.0
    wal_fsync_duration: Histogram = field(default_factory=lambda: Histogram(()))
    wal_commit_records: Histogram = field(default_factory=lambda: Histogram(()))
    wal_segments: int = 0
    wal_size_bytes: int = 0
    wal_committed_id: int = 0
    wal_full: bool = False
    wal_poisoned: bool = False
    recovery_seconds: float = 0.0
    torn_tail_bytes: int = 0


Measure = Callable[[], MetricValues]
"""Returns the numbers of this moment."""


@dataclass(frozen=True, slots=True)
class _Shown:
    field: str  # of MetricValues
    name: str
    help: str
    counter: bool = False
    label: str = ""  # for values by strand or by reason


_OURS: Final = (
    _Shown("topics", "braidmq_topics", "Topics the broker knows."),
    _Shown("subscriptions", "braidmq_subscriptions", "Subscriptions that are open."),
    _Shown("connections", "braidmq_connections", "Open connections.", label="strand"),
    _Shown(
        "connections_refused",
        "braidmq_connections_refused",
        "Connections closed on accept or before authentication, by reason.",
        counter=True,
        label="reason",
    ),
    _Shown(
        "authentication_failures",
        "braidmq_authentication_failures",
        "Keys and tokens that the broker did not accept.",
        counter=True,
        label="strand",
    ),
    _Shown(
        "quic_events",
        "braidmq_quic_events",
        "Retry packets and stateless resets sent, datagrams the kernel had no room for, and "
        "writes to streams that the peer had stopped.",
        counter=True,
        label="event",
    ),
    _Shown(
        "messages_published",
        "braidmq_messages_published",
        "Messages accepted from publishers.",
        counter=True,
    ),
    _Shown(
        "messages_published_by_strand",
        "braidmq_strand_messages_published",
        "Messages accepted from publishers, by strand.",
        counter=True,
        label="strand",
    ),
    _Shown(
        "messages_delivered_by_strand",
        "braidmq_strand_messages_delivered",
        "Messages delivered to consumers, by strand.",
        counter=True,
        label="strand",
    ),
    _Shown(
        "messages_published_bytes",
        "braidmq_messages_published_bytes",
        "Payload bytes of the messages accepted from publishers.",
        counter=True,
    ),
    _Shown(
        "messages_refused",
        "braidmq_messages_refused",
        "Messages that the broker refused.",
        counter=True,
    ),
    _Shown(
        "messages_duplicate",
        "braidmq_messages_duplicate",
        "Messages recognised as duplicates and not stored again.",
        counter=True,
    ),
    _Shown(
        "messages_delivered",
        "braidmq_messages_delivered",
        "Deliveries to consumers, redeliveries included.",
        counter=True,
    ),
    _Shown(
        "messages_redelivered",
        "braidmq_messages_redelivered",
        "Deliveries of messages that had been delivered before.",
        counter=True,
    ),
    _Shown(
        "messages_acknowledged",
        "braidmq_messages_acknowledged",
        "Deliveries that consumers acknowledged.",
        counter=True,
    ),
    _Shown(
        "messages_nacked",
        "braidmq_messages_nacked",
        "Deliveries that consumers returned or rejected.",
        counter=True,
    ),
    _Shown(
        "acknowledgements_unknown",
        "braidmq_acknowledgements_unknown",
        "Acknowledgements on the Vibe strand that matched no delivery of the connection.",
        counter=True,
    ),
    _Shown(
        "queues",
        "braidmq_queues",
        "Queues, dead-letter queues included.",
    ),
    _Shown(
        "messages_dead_lettered",
        "braidmq_messages_dead_lettered",
        "Messages moved to a dead-letter topic.",
        counter=True,
    ),
    _Shown(
        "messages_dropped",
        "braidmq_messages_dropped",
        "Messages that ended without acknowledgement, by reason. Only `expired` ones may also "
        "have become dead letters: in a queue they count as both.",
        counter=True,
        label="reason",
    ),
    _Shown(
        "subscriptions_ended",
        "braidmq_subscriptions_ended",
        "Subscriptions that ended, by reason.",
        counter=True,
        label="reason",
    ),
    _Shown(
        "cursor_lag",
        "braidmq_cursor_lag",
        "Log ids that the reader of a cursor has not reached.",
        label="cursor",
    ),
    _Shown(
        "messages_inflight",
        "braidmq_messages_inflight",
        "Messages delivered and not yet settled.",
    ),
    _Shown(
        "messages_waiting",
        "braidmq_messages_waiting",
        "The backlog: messages waiting for a consumer; an upper bound for subscriptions that "
        "are behind, of which only the position in the log is known.",
    ),
    _Shown("dead_letters", "braidmq_dead_letters", "Dead letters waiting in their queues."),
    _Shown(
        "event_loop_lag_seconds",
        "braidmq_event_loop_lag_seconds",
        "Worst delay of the event loop in the last second.",
    ),
    _Shown("memory_bytes", "braidmq_memory_used_bytes", "Memory held by messages and buffers."),
    _Shown(
        "memory_limit_bytes",
        "braidmq_memory_limit_bytes",
        "The limit on that memory, limits.max_memory_bytes.",
    ),
    _Shown("wal_appends", "braidmq_wal_appends", "Records written to the log.", counter=True),
    _Shown(
        "wal_bytes",
        "braidmq_wal_written_bytes",
        "Bytes written to the log, record headers included.",
        counter=True,
    ),
    _Shown("wal_commits", "braidmq_wal_commits", "Batches committed to the log.", counter=True),
    _Shown("wal_fsyncs", "braidmq_wal_fsyncs", "Calls to fdatasync on the log.", counter=True),
    _Shown(
        "wal_fsync_seconds",
        "braidmq_wal_fsync_seconds",
        "Time spent in fdatasync on the log.",
        counter=True,
    ),
    _Shown(
        "wal_fsync_last_seconds",
        "braidmq_wal_fsync_last_seconds",
        "Duration of the latest fdatasync.",
    ),
    _Shown(
        "wal_fsync_duration",
        "braidmq_wal_fsync_duration_seconds",
        "Duration of each fdatasync on the log.",
    ),
    _Shown(
        "wal_commit_records",
        "braidmq_wal_commit_records",
        "Records per commit.",
    ),
    _Shown("wal_segments", "braidmq_wal_segments", "Segment files of the log."),
    _Shown("wal_size_bytes", "braidmq_wal_size_bytes", "Size of the log on the disk."),
    _Shown(
        "wal_committed_id", "braidmq_wal_committed_id", "Id of the latest committed record."
    ),
    _Shown(
        "wal_full",
        "braidmq_wal_full",
        "1 while the disk is full and durable publishes are refused.",
    ),
    _Shown(
        "wal_poisoned", "braidmq_wal_poisoned", "1 once a write or fsync of the log has failed."
    ),
    _Shown(
        "recovery_seconds",
        "braidmq_recovery_seconds",
        "Duration of recovery at start.",
    ),
    _Shown(
        "torn_tail_bytes",
        "braidmq_recovery_torn_tail_bytes",
        "Bytes of an unfinished write that recovery moved to quarantine.",
    ),
)

_BLIPMQ: Final = (
    _Shown("topics", "topics", "Topics the broker knows."),
    _Shown("subscriptions", "subscribers", "Subscriptions that are open."),
    _Shown(
        "messages_published",
        "messages_published",
        "Messages accepted from publishers.",
        counter=True,
    ),
    _Shown(
        "messages_delivered",
        "messages_delivered",
        "Deliveries to consumers.",
        counter=True,
    ),
    _Shown("messages_inflight", "messages_inflight", "Messages delivered and not yet settled."),
    _Shown(
        "expiration_heap_size",
        "subscriber_expiration_heap_size",
        "Messages in memory that have a time to live, once for each subscription or queue; "
        "estimated from the first message of each.",
    ),
    _Shown(
        "retry_heap_size",
        "subscriber_retry_heap_size",
        "Entries in the retry timer, stale ones included.",
    ),
    _Shown("wal_appends", "wal_appends", "Records written to the log.", counter=True),
    _Shown("wal_bytes", "wal_bytes", "Bytes written to the log.", counter=True),
)


class BrokerCollector(Collector):
    """Turn one snapshot into metric families at each scrape."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of one snapshot."""
        values = self._measure()
        for shown in (*_OURS, *_BLIPMQ):
            yield _family(shown, getattr(values, shown.field))

    def describe(self) -> list[Metric]:
        """Return nothing: registering the collector must not take a snapshot."""
        return []


def _family(shown: _Shown, value: float | Mapping[str, int] | Histogram) -> Metric:
    if isinstance(value, Histogram):
        histogram = HistogramMetricFamily(shown.name, shown.help)
        histogram.add_metric([], value.cumulated(), value.sum)
        return histogram
    kind = CounterMetricFamily if shown.counter else GaugeMetricFamily
    family = kind(shown.name, shown.help, labels=[shown.label] if shown.label else None)
    if isinstance(value, Mapping):
        for label, number in sorted(value.items()):
            family.add_metric([label], number)
    else:
        family.add_metric([], value)
    return family


class MetricsPage:
    """The page that a scrape reads."""

    def __init__(self, measure: Measure) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(measure))
        ProcessCollector(namespace="braidmq", registry=self._registry)

    def render(self) -> bytes:
        """Return the numbers of this moment in the text format."""
        return generate_latest(self._registry)


def metrics_endpoints(
    find_principal: FindPrincipal, measure: Measure, *, loopback: bool
) -> list[Endpoint]:
    """Return `/metrics`; *loopback*: only this machine can reach the listener."""
    page = MetricsPage(measure)

    async def show(request: Request) -> Response:
        if not loopback:
            principal_of(request, find_principal)
        return Response(page.render(), media_type=CONTENT_TYPE)

    return [
        Endpoint(
            method="GET",
            path=METRICS_PATH,
            handler=show,
            summary="All metrics in the Prometheus text format; open on loopback.",
            tag="health",
            media="text/plain",
            key=NO_KEY,
        )
    ]
