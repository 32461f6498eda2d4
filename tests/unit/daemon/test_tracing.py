"""Traces: the spans of a message, from publish to acknowledgement."""

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import SpanKind, StatusCode

import braidmq
from braidmq.broker.delivery.channels import Delivery
from braidmq.broker.topics import Message
from braidmq.daemon import tracing
from braidmq.daemon.telemetry import topic_of
from braidmq.daemon.tracing import Traces, make_provider
from braidmq.testing.broker import RunningBroker, running_broker
from tests.unit.admin.queue_broker import engine_of, publish, status_of

pytestmark = pytest.mark.asyncio


class Traced:
    """The finished spans of a broker."""

    def __init__(self, broker: RunningBroker, sampler: Sampler = ALWAYS_ON) -> None:
        self.exporter = InMemorySpanExporter()
        provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        engine = engine_of(broker)
        self.traces = Traces(
            provider.get_tracer("t"), topic_of=lambda one: topic_of(engine, one)
        )
        engine.tracing = self.traces

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]


def traces_of(spans: list[ReadableSpan]) -> Iterator[int]:
    for span in spans:
        assert span.context is not None
        yield span.context.trace_id


SPANS = {
    "blip": ["publish orders", "commit", "deliver orders", "ack orders"],
    "vibe": ["publish orders", "commit", "deliver orders", "ack orders"],
    "qumbed": ["publish orders", "commit", "deliver orders"],  # it has no acknowledgements
}


@pytest.mark.parametrize("strand", SPANS)
async def test_a_message_is_one_trace_from_publish_to_ack(strand: str) -> None:
    """On every strand, as far as the strand goes; all spans are children of the first."""
    async with running_broker() as broker, braidmq.connect(broker.url(strand)) as client:
        traced = Traced(broker)
        async with client.subscribe("orders") as incoming:
            await client.publish("orders", b"{}")
            message = await anext(aiter(incoming))
            await message.ack()
            await client.publish("other", b"{}")
        found = [span for name in SPANS[strand] for span in traced.spans(name)[:1]]
        publish_span, *others = found

        assert SPANS[strand] == [span.name for span in found]
        assert 1 == len(set(traces_of(found)))
        assert publish_span.context is not None
        assert {publish_span.context.span_id} == {
            span.parent.span_id for span in others if span.parent is not None
        }
        assert [strand] == [
            (span.attributes or {})["network.protocol.name"]
            for span in others
            if span.name == "deliver orders"
        ]


async def test_spans_follow_the_messaging_conventions_of_opentelemetry() -> None:
    """Kind, operation, destination, message id and size."""
    async with running_broker() as broker, braidmq.connect(broker.url()) as client:
        traced = Traced(broker)
        async with client.subscribe("orders", qos=1) as incoming:
            await client.publish("orders", b"hello", qos=1)
            await anext(aiter(incoming))
        (publish_span,), (deliver,) = map(traced.spans, ("publish orders", "deliver orders"))

        assert SpanKind.PRODUCER == publish_span.kind
        assert {
            "messaging.system": "braidmq",
            "messaging.operation.name": "publish",
            "messaging.operation.type": "send",
            "messaging.destination.name": "orders",
            "messaging.message.id": "2",
            "messaging.message.body.size": 5,
        } == dict(publish_span.attributes or {})
        assert {
            "network.protocol.name": "blip",
            "messaging.operation.type": "receive",
        }.items() <= (dict(deliver.attributes or {}).items())


async def test_a_publishers_trace_is_continued() -> None:
    """The span in its header is the parent."""
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with running_broker() as broker:
        traced = Traced(broker)
        await status_of(broker).publishing.publish(
            "t", b"x", headers={"traceparent": parent}, qos=1, priority=1
        )

        assert [int(parent[3:35], 16)] == list(traces_of(traced.spans("publish t")))


async def test_the_span_of_a_refused_publish_ends_as_an_error() -> None:
    """With the reason; the message has no later spans."""
    async with running_broker() as broker:
        traced = Traced(broker)
        engine = engine_of(broker)
        topic = engine.broker.topics.get("t")
        assert topic is not None
        message = Message(topic, 1, b"\0\1tx")
        message.id = 7
        traced.traces.appending([message], 5)
        traced.traces.refused("no space left", 6)
        (span,) = traced.spans("publish t")
        engine.tracing = None

        assert (StatusCode.ERROR, "no space left") == (
            span.status.status_code,
            span.status.description,
        )
        traced.traces.delivered("blip", [Delivery(message, 0, 1)], 7)
        assert [] == traced.spans("deliver t")


async def test_an_unsampled_message_costs_nothing_later() -> None:
    """It has no span, and nothing is remembered of it."""
    async with running_broker() as broker:
        traced = Traced(broker, ALWAYS_OFF)
        await publish(broker, "t", b"x")

        assert () == traced.exporter.get_finished_spans()


async def test_the_number_of_remembered_messages_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest are forgotten, and only part of a large batch is traced."""
    monkeypatch.setattr(tracing, "KNOWN_MAX", 2)
    monkeypatch.setattr(tracing, "SPANS_PER_BATCH_MAX", 3)
    async with running_broker() as broker:
        traced = Traced(broker)
        await publish(broker, "t", *5 * [b"x"])
        await publish(broker, "u", b"x")

        assert 3 == len(traced.spans("publish t"))
        assert 1 == len(traced.spans("publish u"))
        assert 4 == len(traced.spans("commit"))


async def test_an_unknown_exporter_has_no_provider() -> None:
    """A known one has."""
    assert None is make_provider("no-such-exporter")
    provider = make_provider("console")
    assert provider is not None
    provider.shutdown()
