"""The operations page documents the spans of a message correctly."""

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


def documented_spans() -> dict[str, str]:
    """Return the kind of each span, by the first word of its name."""
    rows = re.findall(r"^\| `(\w+)(?: TOPIC)?` \| (\w+) \|", section(), re.MULTILINE)
    return {name: kind.upper() for name, kind in rows}


def documented_attributes() -> dict[str, set[str]]:
    """Return the attributes of each span."""
    found: dict[str, set[str]] = {name: set() for name in SPANS}
    rows = re.findall(r"^\| `(\w+\.[\w.]+)` \| (.*?) \|", section(), re.MULTILINE)
    for attribute, where in rows:
        named = set(re.findall(r"`(\w+)`", where))
        for span in set(SPANS) - named if where.startswith("all") else named:
            found[span].add(attribute)
    return found


@pytest.mark.asyncio
async def test_spans_and_attributes_match_the_page() -> None:
    """Every span with its kind and attributes, and no other."""
    async with running_broker() as broker, braidmq.connect(broker.url()) as client:
        traced = Traced(broker)
        async with client.subscribe("orders", qos=1) as incoming:
            await client.publish("orders", b"hello", qos=1)
            message = await anext(aiter(incoming))
            await message.ack()
            await client.publish("orders", b"fence", qos=1)
        found = {span.name.split()[0]: span for span in traced.exporter.get_finished_spans()}

        assert documented_spans() == {name: span.kind.name for name, span in found.items()}
        assert documented_attributes() == {
            name: set(span.attributes or {}) for name, span in found.items()
        }


def test_limits_match_the_code() -> None:
    """Otherwise the numbers would be forgotten when they change."""
    assert f"first {tracing.SPANS_PER_BATCH_MAX} messages" in section()
    assert f"latest {tracing.KNOWN_MAX:,} messages" in section()


def test_variables_work_as_documented() -> None:
    """The code knows each variable that turns traces on or off."""
    on = re.findall(r"`(OTEL_EXPORTER_OTLP_\w+)`", section())

    assert ["otlp", "otlp"] == [wanted_exporter({name: "http://x"}) for name in on]
    assert "console" == wanted_exporter({"OTEL_TRACES_EXPORTER": "console"})
    assert "" == wanted_exporter({"OTEL_TRACES_EXPORTER": "none", on[0]: "http://x"})
    assert "" == wanted_exporter({"OTEL_SDK_DISABLED": "true", on[0]: "http://x"})
    assert "OTEL_SERVICE_NAME" in read("src/braidmq/daemon/tracing.py")
