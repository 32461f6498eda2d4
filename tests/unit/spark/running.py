"""The real broker with its Flight endpoint, on a thread: callers may block, as Spark does."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from queue import Queue
from threading import Event, Thread
from typing import Any

import pyarrow as pa

from braidmq import columnar
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from braidmq.spark.brokers import patiently
from braidmq.testing import FakeClock, running_broker
from tests.unit.columnar.logs import Row

KEY = "dev-key"
PATIENCE_S = 30
CLOSED_ENDPOINT = "grpc://127.0.0.1:1"
"""An address where nothing listens."""


@dataclass
class Running:
    """A running broker, as its clients see it."""

    path: Path
    address: str
    _numbers: Iterator[int] = field(default_factory=count)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def endpoint(self) -> Endpoint:
        return Endpoint(self.address, KEY)

    def options(self, **more: object) -> dict[str, str]:
        """Options that name the endpoint, as Spark passes them on."""
        given = {"endpoint": self.address, "apiKey": KEY, **more}
        return {name.lower(): str(value) for name, value in given.items()}

    def rows(self) -> list[Row]:
        """The rows of the log, read without the broker."""
        found: list[Row] = columnar.read(self.path, headers=True).to_pylist()
        return found

    def values(self, topic: str) -> list[str]:
        """The payloads on a topic, in order."""
        return [row["value"].decode() for row in self.rows() if row["topic"] == topic]

    def publish(self, values: Sequence[str], topic: str = "t") -> int:
        """Publish messages; return the offset after the last one."""
        schema = pa.schema([("value", pa.string())])
        batch = pa.record_batch([pa.array(values, pa.string())], schema=schema)
        endpoint = self.endpoint()
        stage = endpoint.stage(topic, schema, [batch])
        endpoint.commit(SinkKey("publisher", "", next(self._numbers)), [stage.id])
        return int(self.rows()[-1]["offset"]) + 1

    def cursor(self, name: str) -> dict[str, Any]:
        (found,) = [row for row in self.endpoint().cursors() if row["name"] == name]
        return found


@contextmanager
def running(path: Path, port: int = 0, clock: FakeClock | None = None) -> Iterator[Running]:
    """Run a broker on a data directory until the block ends."""
    started: Queue[Running | BaseException] = Queue()
    loop, over = asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        config: dict[str, object] = {"flight": {"port": port}}
        async with running_broker(data_dir=path, config=config, clock=clock) as broker:
            started.put(Running(path, broker.endpoint))
            await over.wait()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            started.put(error)
        finally:
            loop.close()

    thread = Thread(target=run)
    thread.start()
    found = started.get(timeout=PATIENCE_S)
    if isinstance(found, BaseException):
        raise found
    try:
        yield found
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(PATIENCE_S)


class Waiting:
    """``patiently``, with an event that says when the wait begins."""

    def __init__(self) -> None:
        self.begun = Event()

    def __call__(self, call: Callable[[], object]) -> object:
        self.begun.set()
        return patiently(call)
