"""Metrics in Prometheus text: our names, and the nine of BlipMQ under their own.

The numbers are a plain snapshot that the source fills in; each scrape asks once, so that
all lines of one answer belong to one moment. Nothing is counted here.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from braidmq.base.histogram import Histogram

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4
"""The text format that every scraper reads."""


@dataclass(slots=True, kw_only=True)
class MetricValues:
    """Every number that is shown; counters start at 0 with the process."""

    topics: int = 0
    subscriptions: int = 0
    connections: Mapping[str, int] = field(default_factory=dict)  # by strand
    connections_refused: Mapping[str, int] = field(default_factory=dict)  # by reason
    authentication_failures: Mapping[str, int] = field(default_factory=dict)  # by strand
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


class MetricsSource(Protocol):
    """What the metrics page asks."""

    def metrics(self) -> MetricValues:
        """Return the numbers of this moment."""
        ...


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
        "Keys and tokens that were not accepted.",
        counter=True,
        label="strand",
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
        "Messages accepted from publishers, by the strand that they came by.",
        counter=True,
        label="strand",
    ),
    _Shown(
        "messages_delivered_by_strand",
        "braidmq_strand_messages_delivered",
        "Messages handed out to consumers, by their strand.",
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
        "Messages that publishers were told were not accepted.",
        counter=True,
    ),
    _Shown(
        "messages_duplicate",
        "braidmq_messages_duplicate",
        "Messages recognised as sent before and not accepted twice.",
        counter=True,
    ),
    _Shown(
        "messages_delivered",
        "braidmq_messages_delivered",
        "Messages handed out to consumers, every hand-out counted.",
        counter=True,
    ),
    _Shown(
        "messages_redelivered",
        "braidmq_messages_redelivered",
        "Hand-outs of messages that had been handed out before.",
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
        "Deliveries that consumers gave back or rejected.",
        counter=True,
    ),
    _Shown(
        "acknowledgements_unknown",
        "braidmq_acknowledgements_unknown",
        "Acknowledgements on the Vibe strand of nothing that the connection held.",
        counter=True,
    ),
    _Shown(
        "queues",
        "braidmq_queues",
        "Queues, those of dead letters included.",
    ),
    _Shown(
        "messages_dead_lettered",
        "braidmq_messages_dead_lettered",
        "Messages given up on and kept on their dead-letter topic.",
        counter=True,
    ),
    _Shown(
        "messages_dropped",
        "braidmq_messages_dropped",
        "Messages that ended without acknowledgement, by reason. Of these only `expired` may "
        "have left a dead letter: in a queue it is counted as both.",
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
        "Ids of the log that the reader of a cursor has not passed.",
        label="cursor",
    ),
    _Shown(
        "messages_inflight",
        "braidmq_messages_inflight",
        "Messages handed out and not yet settled.",
    ),
    _Shown(
        "messages_waiting",
        "braidmq_messages_waiting",
        "The backlog: messages that wait for a consumer; at most so many where a subscription "
        "is behind and only its place in the log is known.",
    ),
    _Shown("dead_letters", "braidmq_dead_letters", "Dead letters that wait on their queues."),
    _Shown(
        "event_loop_lag_seconds",
        "braidmq_event_loop_lag_seconds",
        "How late the event loop was at worst, in the last second.",
    ),
    _Shown(
        "memory_bytes", "braidmq_memory_used_bytes", "Memory that messages and buffers hold."
    ),
    _Shown("memory_limit_bytes", "braidmq_memory_limit_bytes", "limits.max_memory_bytes."),
    _Shown("wal_appends", "braidmq_wal_appends", "Records written to the log.", counter=True),
    _Shown(
        "wal_bytes",
        "braidmq_wal_written_bytes",
        "Bytes written to the log, record headers included.",
        counter=True,
    ),
    _Shown("wal_commits", "braidmq_wal_commits", "Batches committed to the log.", counter=True),
    _Shown("wal_fsyncs", "braidmq_wal_fsyncs", "Calls of fdatasync on the log.", counter=True),
    _Shown(
        "wal_fsync_seconds",
        "braidmq_wal_fsync_seconds",
        "Time spent in fdatasync on the log.",
        counter=True,
    ),
    _Shown(
        "wal_fsync_last_seconds",
        "braidmq_wal_fsync_last_seconds",
        "Time that the latest fdatasync took.",
    ),
    _Shown(
        "wal_fsync_duration",
        "braidmq_wal_fsync_duration_seconds",
        "Time that each fdatasync on the log took.",
    ),
    _Shown(
        "wal_commit_records",
        "braidmq_wal_commit_records",
        "Records that were committed together.",
    ),
    _Shown("wal_segments", "braidmq_wal_segments", "Segment files of the log."),
    _Shown("wal_size_bytes", "braidmq_wal_size_bytes", "Size of the log on the disk."),
    _Shown(
        "wal_committed_id", "braidmq_wal_committed_id", "Id of the latest committed record."
    ),
    _Shown("wal_full", "braidmq_wal_full", "1 while publishers are refused for want of disk."),
    _Shown(
        "wal_poisoned", "braidmq_wal_poisoned", "1 once a write or fsync of the log has failed."
    ),
    _Shown(
        "recovery_seconds",
        "braidmq_recovery_seconds",
        "Time that recovery took when the broker started.",
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
        "Messages handed out to consumers.",
        counter=True,
    ),
    _Shown(
        "messages_inflight", "messages_inflight", "Messages handed out and not yet settled."
    ),
    _Shown(
        "expiration_heap_size",
        "subscriber_expiration_heap_size",
        "Messages in memory that have a time to live, once for each subscription or queue; "
        "the first of each speaks for those behind it.",
    ),
    _Shown(
        "retry_heap_size",
        "subscriber_retry_heap_size",
        "Entries of the retry timers, stale ones included.",
    ),
    _Shown("wal_appends", "wal_appends", "Records written to the log.", counter=True),
    _Shown("wal_bytes", "wal_bytes", "Bytes written to the log.", counter=True),
)


class BrokerCollector(Collector):
    """Turn one snapshot into metric families, whenever a scrape asks."""

    def __init__(self, source: MetricsSource) -> None:
        self._source = source

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of one snapshot."""
        values = self._source.metrics()
        for shown in (*_OURS, *_BLIPMQ):
            yield _family(shown, getattr(values, shown.field))

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not take a snapshot."""
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
    """The text that a scrape gets."""

    def __init__(self, source: MetricsSource) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(BrokerCollector(source))
        ProcessCollector(namespace="braidmq", registry=self._registry)

    def render(self) -> bytes:
        """Return the numbers of this moment in the text format."""
        return generate_latest(self._registry)
