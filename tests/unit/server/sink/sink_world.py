"""A sink over a real engine and log on a fake disk; work for threads is done at once.

The log works only when the test lets it, so that a test can stop between any two steps.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

import pyarrow as pa

from braidmq.base.errors import BraidError
from braidmq.broker import records
from braidmq.broker.authorize import Principal
from braidmq.columnar.flight.requests import SinkKey
from braidmq.server.config.config import Config
from braidmq.server.cursors import Cursors
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import recover
from braidmq.server.sink.sink import Sink
from braidmq.server.sink.stages import Stages
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk
from braidmq.testing.simulation import InlineLog

ADA: Final = Principal("ada", publish=["*"], subscribe=["*"])
BOB: Final = Principal("bob", publish=["*"], subscribe=["*"])
OPS: Final = Principal("ops", publish=["*"], subscribe=[], admin=True)
SCHEMA: Final = pa.schema([("value", pa.binary())])
SEGMENT_BYTES: Final = 64 * 1024
"""Less than an operator may configure: segments rotate soon, and the reserve is small."""

KEY: Final = SinkKey("q", "", 1)
ROWS: Final = (b"1", b"2", b"3", b"4", b"5")

Answer = TypeVar("Answer")


class InlineExecutor(ThreadPoolExecutor):
    """Run each call before `submit` returns."""

    def submit(
        self,
        fn: Callable[..., Answer],
        /,
        *args: Any,  # noqa: ANN401 - whatever *fn* takes
        **kwargs: Any,  # noqa: ANN401 - as above
    ) -> "Future[Answer]":
        future: Future[Answer] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - the future passes it on
            future.set_exception(error)
        return future


class SinkWorld:
    """A broker with a sink, from one start to its end."""

    def __init__(
        self,
        disk: FakeDisk | None = None,
        *,
        clock: FakeClock | None = None,
        wal: dict[str, object] | None = None,
    ) -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        self.disk = disk or FakeDisk()
        self.clock = clock or FakeClock()
        self.failures: list[BraidError] = []
        self.largest = 0  # records in one append
        config = Config.model_validate({"dev": True, "wal": wal or {}})
        config = config.model_copy(
            update={"wal": config.wal.model_copy(update={"segment_bytes": SEGMENT_BYTES})}
        )
        found = recover(self.disk, config, now_us=self.clock.now_us(), clock=lambda: 0.0)
        self.wal = found.wal
        self.engine = Engine(
            found.broker,
            now_us=self.clock.now_us,
            find_principal=lambda _: None,
            wake_later=lambda *_: None,
            fail=self.failures.append,
        )
        self.log = InlineLog(found.wal, self.disk, self.engine, self.clock.now_us)
        self.engine.start(self.log)
        self.stages = Stages(self.disk, now_us=self.clock.now_us)
        self.sink = Sink(lambda: self.engine, lambda: self.wal, self.stages)
        self.cursors = Cursors(lambda: self.engine, lambda: self.wal)

    # Rows.

    def stage(
        self, *payloads: bytes, topic: str = "t", by: Principal = ADA, size: int = 2
    ) -> str:
        """Write a stage and return its id."""
        return self.stages.write(by, topic, SCHEMA, batches(payloads, size)).id

    def payloads(self, topic: str = "t") -> list[bytes]:
        """Return the payloads that the log holds for a topic, in order."""
        raw = topic.encode()
        found = self.wal.read(
            0, topic=raw, up_to=self.wal.committed_id, count_max=10**9, bytes_max=10**9
        )
        return [records.StoredMessage(body).body[2 + len(raw) :] for _, body in found.records]

    def kinds(self) -> list[int]:
        """Return the types of all records."""
        found = self.wal.read(
            0, topic=None, up_to=self.wal.committed_id, count_max=10**9, bytes_max=10**9
        )
        return [body[0] for _, body in found.records]

    def files(self) -> list[str]:
        """Return the ids of the stages on disk."""
        names = [path for path in self.disk.paths() if path.startswith("stages/")]
        return [name[len("stages/") :].removesuffix(".arrow") for name in names]

    # Time.

    async def run(self, coroutine: Coroutine[Any, Any, Answer]) -> Answer:
        """Run a coroutine, and let the log work until it is done."""
        task = asyncio.get_running_loop().create_task(coroutine)
        await self.until(task.done)
        return task.result()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let everything run until the condition holds."""
        while not condition():
            await asyncio.sleep(0)
            self.work()

    def work(self) -> None:
        """Let the log do one piece of work, if there is any."""
        if self.log.reports:
            self.log.reports.popleft()()
        elif self.log.jobs:
            waiting = self.engine.broker.outgoing
            self.largest = max(self.largest, len(waiting.pending()))
            self.log.do(self.log.jobs)
        else:
            self.engine.look_for_room()

    async def finish_log(self) -> None:
        """Let the log finish its work."""
        await self.until(lambda: not (self.log.jobs or self.log.reports))

    async def run_without_log(self, turns: int = 50) -> None:
        """Let everything but the log come to rest."""
        for _ in range(turns):
            await asyncio.sleep(0)


def batches(payloads: tuple[bytes, ...], size: int) -> Iterator[pa.RecordBatch]:
    for at in range(0, len(payloads), size):
        yield pa.record_batch({"value": pa.array(payloads[at : at + size], pa.binary())})


def numbered(count: int) -> tuple[bytes, ...]:
    """Return *count* different payloads."""
    return tuple(b"%d" % number for number in range(count))
