"""Helpers of the Flight tests: a broker that serves it, and calls to it."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import pyarrow as pa

from braidmq.columnar.endpoint import Endpoint
from tests.integration.served import Served, served

FLIGHT: Final = ("--flight", "127.0.0.1:0")
Answer = TypeVar("Answer")


async def in_thread(call: Callable[..., Answer], *given: Any, **named: Any) -> Answer:  # noqa: ANN401 - passed on
    """Run a blocking call on a thread."""
    return await asyncio.to_thread(call, *given, **named)


@asynccontextmanager
async def serving(directory: Path, *flags: str, **given: Any) -> AsyncIterator[Served]:  # noqa: ANN401 - passed on
    async with served(directory, *FLIGHT, *flags, **given) as broker:
        await broker.ready()
        yield broker


def endpoint_of(broker: Served, key: str = "dev-key") -> Endpoint:
    return Endpoint(f"grpc://{broker.facts()['flight']}", key)


def assert_clean(broker: Served) -> None:
    """Assert that the broker wrote only JSON log lines, without any traceback."""
    for line in broker.stderr.splitlines():
        assert "Traceback" not in json.dumps(json.loads(line))


SCHEMA: Final = pa.schema([("value", pa.binary()), ("topic", pa.string())])


def rows(*topics: str) -> list[pa.RecordBatch]:
    values = [topic.encode() for topic in topics]
    return [pa.record_batch([pa.array(values, pa.binary()), topics], schema=SCHEMA)]
