"""Whether anybody wants traces; if not, nothing of OpenTelemetry is imported.

The environment says so in OpenTelemetry's own words: OTEL_TRACES_EXPORTER names an exporter, or
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
    """The traces of one broker, if there are any."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._exporter = wanted_exporter(environment)
        self._provider: TracerProvider | None = None

    def start(self, engine: Engine) -> None:
        """Trace what the engine does, if that is wanted and possible."""
        if not self._exporter:
            return
        try:
            from braidmq.daemon.tracing import (  # noqa: PLC0415 - only who wants traces pays
                Traces,
                make_provider,
            )
        except ModuleNotFoundError as error:
            _log.warning("no traces: not installed", module=error.name)
            return
        self._provider = make_provider(self._exporter)
        if self._provider is not None:
            tracer = self._provider.get_tracer("braidmq")
            engine.tracing = Traces(tracer, topic_of=lambda one: topic_of(engine, one))

    async def stop(self) -> None:
        """Have the last spans sent."""
        if self._provider is not None:
            await asyncio.to_thread(self._provider.shutdown)


def wanted_exporter(environment: Mapping[str, str]) -> str:
    """Return the name of the exporter that the environment asks for, or nothing."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ""
    named = environment.get("OTEL_TRACES_EXPORTER", "")
    if named:
        return "" if named == "none" else named
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    return "otlp" if any(environment.get(name) for name in endpoints) else ""


def topic_of(engine: Engine, subscription_id: int) -> str:
    """Return the name of the topic that a subscription is of, or nothing when it is gone."""
    found = engine.broker.topic_of(subscription_id)
    return "" if found is None else found.name
