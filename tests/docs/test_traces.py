"""The page on operation tells the spans of a message as they are."""

import re
from typing import Final

import pytest

import braidmq
from braidmq.daemon import tracing
from braidmq.daemon.telemetry import wanted_exporter
from braidmq.testing.broker import running_broker
from tests.docs.test_snippets import read
from tests.unit.daemon.test_tracing import Traced

PAGE: Final = "docs/operations.md"
SPANS: Final = ("publish", "commit", "deliver", "ack")


def section() -> str:
    (found,) = re.findall(r"^## Traces\n(.*?)^## ", read(PAGE), re.MULTILINE | re.DOTALL)
    return str(found)


def spans_told() -> dict[str, str]:
    """Return the kind of each span, by the first word of its name."""
    rows = re.findall(r"^\| `(\w+)(?: TOPIC)?` \| (\w+) \|", section(), re.MULTILINE)
    return {name: kind.upper() for name, kind in rows}


def attributes_told() -> dict[str, set[str]]:
    """Return the attributes of each span."""
    told: dict[str, set[str]] = {name: set() for name in SPANS}
    rows = re.findall(r"^\| `(\w+\.[\w.]+)` \| (.*?) \|", section(), re.MULTILINE)
    for attribute, where in rows:
        named = set(re.findall(r"`(\w+)`", where))
        for span in set(SPANS) - named if where.startswith("all") else named:
            told[span].add(attribute)
    return told


@pytest.mark.asyncio
async def test_spans_and_attributes_are_those_of_the_page() -> None:
    """All of them, each with its kind, and no others."""
    async with running_broker() as broker, braidmq.connect(broker.url()) as client:
        traced = Traced(broker)
        async with client.subscribe("orders", qos=1) as incoming:
            await client.publish("orders", b"hello", qos=1)
            message = await anext(aiter(incoming))
            await message.ack()
            await client.publish("orders", b"fence", qos=1)
        found = {span.name.split()[0]: span for span in traced.exporter.get_finished_spans()}

        assert spans_told() == {name: span.kind.name for name, span in found.items()}
        assert attributes_told() == {
            name: set(span.attributes or {}) for name, span in found.items()
        }


def test_bounds_are_those_of_the_code() -> None:
    """As numbers, which nobody would look for when they change."""
    assert f"first {tracing.SPANS_PER_BATCH_MAX} messages" in section()
    assert f"latest {tracing.KNOWN_MAX:,} messages" in section()


def test_variables_do_what_the_page_says() -> None:
    """Each that turns traces on or off is known by that name."""
    on = re.findall(r"`(OTEL_EXPORTER_OTLP_\w+)`", section())

    assert ["otlp", "otlp"] == [wanted_exporter({name: "http://x"}) for name in on]
    assert "console" == wanted_exporter({"OTEL_TRACES_EXPORTER": "console"})
    assert "" == wanted_exporter({"OTEL_TRACES_EXPORTER": "none", on[0]: "http://x"})
    assert "" == wanted_exporter({"OTEL_SDK_DISABLED": "true", on[0]: "http://x"})
    assert "OTEL_SERVICE_NAME" in read("src/braidmq/daemon/tracing.py")
