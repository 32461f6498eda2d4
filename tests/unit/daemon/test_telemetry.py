"""Whether traces are wanted, and what it costs when they are not."""

import subprocess
import sys

import pytest

from braidmq.daemon.telemetry import Telemetry, topic_of, wanted_exporter
from braidmq.testing.broker import running_broker
from tests.unit.admin.queue_broker import engine_of

WANTED = {
    "": {},
    "otlp": {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"},
    "console": {"OTEL_TRACES_EXPORTER": "console"},
}
UNWANTED: list[dict[str, str]] = [
    {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"},
    {"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "TRUE"},
    {"OTEL_EXPORTER_OTLP_ENDPOINT": ""},
]


@pytest.mark.parametrize(("exporter", "environment"), WANTED.items())
def test_the_environment_says_which_exporter(
    exporter: str, environment: dict[str, str]
) -> None:
    """With OpenTelemetry's own variables."""
    assert exporter == wanted_exporter(environment)


@pytest.mark.parametrize("environment", UNWANTED)
def test_the_environment_can_turn_traces_off(environment: dict[str, str]) -> None:
    """The more specific variable wins."""
    assert "" == wanted_exporter(environment)


def test_without_traces_opentelemetry_is_not_imported() -> None:
    """The daemon starts without it, so it need not be installed."""
    code = (
        "import sys, braidmq.daemon.daemon;"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )

    assert 0 == subprocess.run([sys.executable, "-c", code], check=False).returncode


@pytest.mark.asyncio
async def test_a_missing_exporter_does_not_prevent_startup() -> None:
    """The broker runs without traces."""
    async with running_broker() as broker:
        engine = engine_of(broker)
        telemetry = Telemetry({"OTEL_TRACES_EXPORTER": "no-such-exporter"})
        telemetry.start(engine)
        assert None is engine.tracing
        await telemetry.stop()


@pytest.mark.asyncio
async def test_an_available_exporter_gets_the_spans() -> None:
    """And the last of them at shutdown."""
    async with running_broker() as broker:
        engine = engine_of(broker)
        telemetry = Telemetry({"OTEL_TRACES_EXPORTER": "console"})
        telemetry.start(engine)
        assert None is not engine.tracing
        assert "" == topic_of(engine, 99)
        engine.tracing = None
        await telemetry.stop()
