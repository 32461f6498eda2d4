"""Metrics in the Prometheus text format: our names, and the nine of BlipMQ under their own.

    GET /metrics    open on a loopback listener; elsewhere it needs a key

`MetricValues` is a plain snapshot. Each scrape takes one, so that all lines of an answer belong
to one moment; nothing is counted here. `http/exposition.py` writes the text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.base.histogram import Histogram

if TYPE_CHECKING:
    from braidmq.admin.http.exposition import MetricsPage

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"

METRICS_PATH: Final = "/metrics"


def _shown(kind: str, help_text: str, label: str = "", *, is_ours: bool = True) -> Any:  # noqa: ANN401 - the default of a field of any type
    """Return a field of MetricValues; with a *label*, one of numbers by strand or reason."""
    about = {"kind": kind, "help": help_text, "label": label, "is_ours": is_ours}
    if kind == HISTOGRAM:
        return field(default_factory=lambda: Histogram(()), metadata=about)
    if label:
        return field(default_factory=dict, metadata=about)
    return field(default=0, metadata=about)


_counter: Final = partial(_shown, COUNTER)
_gauge: Final = partial(_shown, GAUGE)
_histogram: Final = partial(_shown, HISTOGRAM)


@dataclass(slots=True, kw_only=True)
class MetricValues:
    """Every number on the page, called `braidmq_` and the field's name there.

    Counters start at 0 with the process.
    """

    topics: int = _gauge("Topics the broker knows.")
    subscriptions: int = _gauge("Subscriptions that are open.")
    connections: Mapping[str, int] = _gauge("Open connections.", label="strand")
    connections_refused: Mapping[str, int] = _counter(
        "Connections closed on accept or before authentication, by reason.", label="reason"
    )
    authentication_failures: Mapping[str, int] = _counter(
        "Keys and tokens that the broker did not accept.", label="strand"
    )
    quota_refusals: Mapping[str, int] = _counter(
        "Requests refused because a principal had used up a quota.", label="quota"
    )
    quic_events: Mapping[str, int] = _counter(
        "Retry packets and stateless resets sent, datagrams the kernel had no room for, and "
        "writes to streams that the peer had stopped.",
        label="event",
    )
    messages_published: int = _counter("Messages accepted from publishers.")
    strand_messages_published: Mapping[str, int] = _counter(
        "Messages accepted from publishers, by strand.", label="strand"
    )
    strand_messages_delivered: Mapping[str, int] = _counter(
        "Messages delivered to consumers, by strand.", label="strand"
    )
    messages_published_bytes: int = _counter(
        "Payload bytes of the messages accepted from publishers."
    )
    messages_refused: int = _counter("Messages that the broker refused.")
    messages_duplicate: int = _counter(
        "Messages recognised as duplicates and not stored again."
    )
    messages_delivered: int = _counter("Deliveries to consumers, redeliveries included.")
    messages_redelivered: int = _counter(
        "Deliveries of messages that had been delivered before."
    )
    messages_acknowledged: int = _counter("Deliveries that consumers acknowledged.")
    messages_nacked: int = _counter("Deliveries that consumers returned or rejected.")
    acknowledgements_unknown: int = _counter(
        "Acknowledgements on the Vibe strand that matched no delivery of the connection."
    )
    queues: int = _gauge("Queues, dead-letter queues included.")
    messages_dead_lettered: int = _counter("Messages moved to a dead-letter topic.")
    messages_dropped: Mapping[str, int] = _counter(
        "Messages that ended without acknowledgement, by reason. Only `expired` ones may also "
        "have become dead letters: in a queue they count as both.",
        label="reason",
    )
    subscriptions_ended: Mapping[str, int] = _counter(
        "Subscriptions that ended, by reason.", label="reason"
    )
    cursor_lag: Mapping[str, int] = _gauge(
        "Log ids that the reader of a cursor has not reached.", label="cursor"
    )
    messages_inflight: int = _gauge("Messages delivered and not yet settled.")
    messages_waiting: int = _gauge(
        "The backlog: messages waiting for a consumer; an upper bound for subscriptions that "
        "are behind, of which only the position in the log is known."
    )
    dead_letters: int = _gauge("Dead letters waiting in their queues.")
    event_loop_lag_seconds: float = _gauge("Worst delay of the event loop in the last second.")
    clock_alarms: int = _gauge(
        "Alarms about the system's clock; /api/overview says which. 0 is good."
    )
    clock_ahead_seconds: float = _gauge(
        "How far the system's clock is ahead of the broker's time; negative is behind."
    )
    memory_used_bytes: int = _gauge("Memory held by messages and buffers.")
    memory_limit_bytes: int = _gauge("The limit on that memory, limits.max_memory_bytes.")
    wal_appends: int = _counter("Records written to the log.")
    wal_written_bytes: int = _counter("Bytes written to the log, record headers included.")
    wal_commits: int = _counter("Batches committed to the log.")
    wal_fsyncs: int = _counter("Calls to fdatasync on the log.")
    wal_fsync_seconds: float = _counter("Time spent in fdatasync on the log.")
    wal_fsync_last_seconds: float = _gauge("Duration of the latest fdatasync.")
    wal_fsync_duration_seconds: Histogram = _histogram(  # noqa: RUF009 - it is a field
        "Duration of each fdatasync on the log."
    )
    wal_commit_records: Histogram = _histogram("Records per commit.")  # noqa: RUF009 - as above
    wal_segments: int = _gauge("Segment files of the log.")
    wal_size_bytes: int = _gauge("Size of the log on the disk.")
    wal_committed_id: int = _gauge("Id of the latest committed record.")
    wal_full: bool = _gauge("1 while the disk is full and durable publishes are refused.")
    wal_poisoned: bool = _gauge("1 once a write or fsync of the log has failed.")
    recovery_seconds: float = _gauge("Duration of recovery at start.")
    recovery_torn_tail_bytes: int = _gauge(
        "Bytes of an unfinished write that recovery moved to quarantine."
    )
    expiration_heap_size: int = _gauge(
        "Messages in memory that have a time to live, once for each subscription or queue; "
        "estimated from the first message of each.",
        is_ours=False,
    )
    retry_heap_size: int = _gauge(
        "Entries in the retry timer, stale ones included.", is_ours=False
    )


Measure = Callable[[], MetricValues]
"""Returns the numbers of this moment."""

BLIPMQ_NAMES: Final = {
    "topics": "topics",
    "subscribers": "subscriptions",
    "messages_published": "messages_published",
    "messages_delivered": "messages_delivered",
    "messages_inflight": "messages_inflight",
    "subscriber_expiration_heap_size": "expiration_heap_size",
    "subscriber_retry_heap_size": "retry_heap_size",
    "wal_appends": "wal_appends",
    "wal_bytes": "wal_written_bytes",
}
"""The metrics of BlipMQ, for dashboards that were made for it, and our fields."""


def metrics_endpoints(
    find_principal: FindPrincipal, measure: Measure, *, loopback: bool
) -> list[Endpoint]:
    """Return `/metrics`; *loopback*: only this machine can reach the listener."""

    @cache
    def page() -> "MetricsPage":
        from braidmq.admin.http.exposition import MetricsPage  # noqa: PLC0415 - at the first scrape

        return MetricsPage(measure)

    async def show(request: Request) -> Response:
        if not loopback:
            principal_of(request, find_principal)
        return Response(page().render(), media_type=page().content_type)

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
