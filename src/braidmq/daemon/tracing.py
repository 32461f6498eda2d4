"""Traces: the life of a message as OpenTelemetry spans.

    publish orders ......................   from accepted to committed, or refused
      commit ............                   in the log, with the size of its batch
      deliver orders .                      sent to a consumer
      ack orders .                          settled, before the log has it

All spans of a message belong to one trace: that of its header `traceparent`, if the publisher
set one. Messages in memory only have no id, and no spans. Attributes are named after
OpenTelemetry's conventions for messaging.

This module imports OpenTelemetry, and is imported only if `telemetry` finds that traces are on.
OTEL_TRACES_SAMPLER chooses the sampler.
"""

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from typing import Final

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from braidmq import __version__
from braidmq.broker.delivery.channels import Delivery
from braidmq.broker.outgoing import Advanced, Buried
from braidmq.broker.topics import Message, Pending, decode_headers

SPANS_PER_BATCH_MAX: Final = 256
"""Messages traced per batch; a sampler chooses among them."""

KNOWN_MAX: Final = 10_000
"""Messages whose trace is remembered for their deliveries and acknowledgements."""

_NS_PER_US: Final = 1_000

_log = structlog.get_logger(__name__)


def make_provider(exporter: str) -> TracerProvider | None:
    """Return a provider for an exporter, or None if the exporter is not installed."""
    found = entry_points(group="opentelemetry_traces_exporter", name=exporter)
    if not found:
        _log.warning("no traces: the exporter is not installed", exporter=exporter)
        return None
    named = {"service.name": os.environ.get("OTEL_SERVICE_NAME", "braidmq")}
    provider = TracerProvider(
        resource=Resource.create({**named, "service.version": __version__})
    )
    make = next(iter(found)).load()
    provider.add_span_processor(BatchSpanProcessor(make()))
    return provider


class Traces:
    """The spans of messages in progress; every method runs on the event loop."""

    def __init__(self, tracer: Tracer, *, topic_of: Callable[[int], str]) -> None:
        """*topic_of* returns the topic of a subscription's id, or an empty string."""
        self._tracer = tracer
        self._topic_of = topic_of
        self._propagator = TraceContextTextMapPropagator()
        self._open: list[tuple[int, Span, Span]] = []  # id, publish and commit
        self._contexts: dict[int, tuple[str, Context]] = {}  # by id: topic and publish span
        self._ids: dict[str, deque[int]] = {}  # traced messages of each topic, oldest first

    def appending(self, items: list[Pending], now_us: int) -> None:
        """Begin the spans of messages and acknowledgements that go to the log."""
        traced = 0
        for item in items:
            if isinstance(item, Advanced):
                self._acknowledged(item, now_us)
            elif traced < SPANS_PER_BATCH_MAX:
                message = item.letter if isinstance(item, Buried) else item
                if isinstance(message, Message):
                    traced += 1
                    self._publish(message, len(items), now_us)

    def committed(self, up_to: int, now_us: int) -> None:
        """End the spans of records that are durable."""
        self._end(now_us, up_to, None)

    def refused(self, reason: str, now_us: int) -> None:
        """End the spans of records that the log refused."""
        self._end(now_us, 2**64, Status(StatusCode.ERROR, reason))

    def delivered(self, strand: str, deliveries: list[Delivery], now_us: int) -> None:
        """Note what was sent to a consumer."""
        for delivery in deliveries[:SPANS_PER_BATCH_MAX]:
            known = self._contexts.get(delivery.message.id)
            if known is not None:
                topic, context = known
                attributes = _attributes("deliver", "receive", topic)
                attributes["network.protocol.name"] = strand
                self._point(f"deliver {topic}", attributes, context, now_us)

    def _publish(self, message: Message, batch: int, now_us: int) -> None:
        topic = message.topic.name
        kept = decode_headers(message.headers) if message.headers else {}
        # An empty context, not the current one: whatever task happens to run here has no part
        # in the message's trace.
        parent = self._propagator.extract(kept) if "traceparent" in kept else Context()
        publish = self._tracer.start_span(
            f"publish {topic}",
            context=parent,
            kind=SpanKind.PRODUCER,
            attributes={
                **_attributes("publish", "send", topic),
                "messaging.message.id": str(message.id),
                "messaging.message.body.size": len(message.payload),
            },
            start_time=(message.timestamp_us or now_us) * _NS_PER_US,
        )
        if not publish.is_recording():
            return
        context = set_span_in_context(publish, Context())
        commit = self._tracer.start_span(
            "commit",
            context=context,
            attributes={
                "messaging.system": "braidmq",
                "messaging.batch.message_count": batch,
            },
            start_time=now_us * _NS_PER_US,
        )
        self._open.append((message.id, publish, commit))
        self._remember(message.id, topic, context)

    def _remember(self, message_id: int, topic: str, context: Context) -> None:
        if len(self._contexts) >= KNOWN_MAX:
            oldest = next(iter(self._contexts))
            self._forget(oldest)
        self._contexts[message_id] = topic, context
        self._ids.setdefault(topic, deque()).append(message_id)

    def _forget(self, message_id: int) -> None:
        known = self._contexts.pop(message_id, None)
        if known is None:
            return
        topic, _ = known
        ids = self._ids[topic]
        ids.remove(message_id)  # usually the first: the oldest is forgotten to make room
        if not ids:
            del self._ids[topic]

    def _end(self, now_us: int, up_to: int, status: Status | None) -> None:
        waiting = self._open
        self._open = [one for one in waiting if one[0] > up_to]
        for message_id, publish, commit in waiting:
            if message_id <= up_to:
                if status is not None:
                    publish.set_status(status)
                    self._forget(message_id)
                commit.end(now_us * _NS_PER_US)
                publish.end(now_us * _NS_PER_US)

    def _acknowledged(self, item: Advanced, now_us: int) -> None:
        for subscription_id, made in item.progress.items():
            topic = self._topic_of(subscription_id)
            for after, last in made.ranges:
                for message_id in self._known_in(topic, after, last):
                    _, context = self._contexts[message_id]
                    attributes = _attributes("ack", "settle", topic)
                    self._point(f"ack {topic}", attributes, context, now_us)

    def _known_in(self, topic: str, after: int, last: int) -> Iterator[int]:
        ids = self._ids.get(topic)
        if ids is None:
            return
        for at in range(bisect_right(ids, after), len(ids)):
            if ids[at] > last:
                return
            yield ids[at]

    def _point(
        self, name: str, attributes: dict[str, str], context: Context, now_us: int
    ) -> None:
        """Record a span without duration."""
        span = self._tracer.start_span(
            name,
            context=context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            start_time=now_us * _NS_PER_US,
        )
        span.end(now_us * _NS_PER_US)


def _attributes(name: str, kind: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": "braidmq",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": topic,
    }
