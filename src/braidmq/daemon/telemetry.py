"""Whether traces are on; if not, OpenTelemetry is never imported.

OpenTelemetry's own variables turn them on: OTEL_TRACES_EXPORTER names an exporter, or
OTEL_EXPORTER_OTLP_ENDPOINT is set, which means `otlp`.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

import structlog

from braidmq.server.engine.engine import Engine

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

_log = structlog.get_logger(__name__)


class Telemetry:
    """The traces of one broker, if they are on."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._exporter = wanted_exporter(environment)
        self._provider: TracerProvider | None = None

    def start(self, engine: Engine) -> None:
        """Trace the engine, if traces are on and OpenTelemetry is installed."""
        if not self._exporter:
            return
        try:
            from braidmq.daemon.tracing import (  # noqa: PLC0415 - imported only if traces are on
                Traces,
                make_provider,
            )
        except ModuleNotFoundError as error:
            _log.warning("no traces: not installed", module=error.name)
            return
        self._provider = make_provider(self._exporter)
        if self._provider is not None:
            tracer = self._provider.get_tracer("braidmq")
            engine.tracing = Traces(tracer, topic_of=lambda found: topic_of(engine, found))

    async def stop(self) -> None:
        """Send the last spans."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)


def wanted_exporter(environment: Mapping[str, str]) -> str:
    """Return the name of the exporter in the environment, or an empty string."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    named = environment.get("OTEL_TRACES_EXPORTER", "")
    if named:
        return "" if named == "none" else named
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return "otlp" if any(environment.get(name) for name in endpoints) else ""


def topic_of(engine: Engine, subscription_id: int) -> str:
    """Return the topic of a subscription, or an empty string if it has ended."""
    found = engine.broker.topic_of(subscription_id)
    return "" if found is None else found.name
