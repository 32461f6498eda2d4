"""The Flight endpoint of a real broker: what its clients see, and what they can do to it."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pytest

from braidmq import columnar
from braidmq.base.errors import NotAllowedError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnauthenticatedError, UnavailableError
from braidmq.columnar.flight.requests import SinkKey
from braidmq.columnar.logs import DirectoryLog
from braidmq.columnar.loss import RETAINED
from braidmq.server.flight import calls as flight_calls
from braidmq.server.flight.listener import FlightListener
from braidmq.testing import running_broker
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import connected, ping, pong, until, until_committed
from tests.integration.flights import (
    SCHEMA,
    asked,
    assert_clean,
    endpoint_of,
    rows,
    serving,
)
from tests.integration.served import Served, key_section
from tests.unit.columnar.endpoints import read, skipped_line
from tests.unit.columnar.logs import message, write_log
from tests.unit.columnar.test_reading import mixed

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

MIB: Final = 2**20


def large_log(directory: Path, count: int = 80) -> Path:
    """A log of so many MiB: a stream of it is too long for every buffer on the way."""
    (directory / "data").mkdir(parents=True)
    bodies = [message("t", bytes(MIB)) for _ in range(count)]
    return write_log(directory / "data", bodies, segment_bytes=8 * MIB)


async def calls_of(broker: Served) -> int:
    """Return how many calls the broker says there are."""
    _, text = await broker.get("/metrics")
    (line,) = (one for one in text.splitlines() if 'connections{strand="flight"}' in one)
    return int(float(line.split()[-1]))


async def until_no_call(broker: Served) -> None:
    async with asyncio.timeout(20):
        while await calls_of(broker):  # noqa: ASYNC110 - it is another process
            await asyncio.sleep(0.01)


async def test_flight_equals_path_row_for_row(tmp_path: Path) -> None:
    """All columns, kinds, sizes and topics; filters, ranges, cuts and advances alike."""
    path = tmp_path / "data"
    path.mkdir()
    bodies = mixed(800, seed=5)
    bodies += [message(f"many/{n}", b"%d" % n, 900) for n in range(2_000)]
    bodies += [message("big", Random(n).randbytes(MIB), 901) for n in range(3)]
    bodies += [message("ünïcode/データ", "päylöad".encode(), 902, kept={"key": "ключ"})]
    write_log(path, bodies, segment_bytes=256 * 1024, batch=100)
    async with serving(tmp_path) as broker:
        async with broker.peer() as peer:
            for number in range(50):
                await peer.publish("live", b"%d" % number)
        there, here = endpoint_of(broker), DirectoryLog(path)
        assert here.offsets() == await asked(there.offsets)
        end = here.offsets().latest
        wanted: dict[str, Any]
        for wanted in (
            {"headers": True},
            {"columns": []},
            {"columns": ["offset", "topic"], "start": 100, "end": end - 7},
            {"topics": ["big", "live", "a", "nowhere"]},
            {"pattern": "many/1.*|ü.*"},
            {"qos": 0, "batch_rows": 17},
        ):
            found: list[pa.Table] = [read(here, **wanted), await asked(read, there, **wanted)]
            assert found[0].schema == found[1].schema
            assert found[0] == found[1]
            assert found[0].num_rows == found[1].num_rows > 0
        assert here.topic_counts() == await asked(there.topic_counts)
        for size in ({"target_bytes": 100_000}, {"parts": 7}, {"parts": 3, "pattern": "m.*"}):
            assert here.cut(5, end, **size) == await asked(there.cut, 5, end, **size)
        for limit in ({"messages": 321}, {"payload_bytes": 5_000, "topics": ["a", "b"]}):
            assert here.advance(9, **limit) == await asked(there.advance, 9, **limit)
        assert here.offset_at(500) == await asked(there.offset_at, 500)
        assert 0 == await broker.end()
        assert_clean(broker)


def limited_keys() -> str:
    sections = [
        key_section("everything", "k-all"),
        key_section("reader", "k-read").replace(
            'publish = ["*"]\nsubscribe = ["*"]', 'subscribe = ["orders.*"]'
        ),
        key_section("writer", "k-write").replace(
            'publish = ["*"]\nsubscribe = ["*"]', 'publish = ["out.*"]'
        ),
    ]
    return "\n".join(sections)


async def test_a_key_opens_what_it_may_and_nothing_else(tmp_path: Path) -> None:
    """A table of keys and questions, each answered or refused by name."""
    path = tmp_path / "data"
    path.mkdir()
    names = ["orders.a", "orders.b", "secret"]
    write_log(path, [message(names[n % 3], b"x") for n in range(30)])
    async with serving(tmp_path, config=limited_keys(), dev=False) as broker:
        reader, writer, everybody = (
            endpoint_of(broker, key) for key in ("k-read", "k-write", "k-all")
        )
        assert {"orders.a", "orders.b"} == set(await asked(reader.topic_counts))
        assert {"orders.a"} == set(
            (await asked(read, reader, pattern=".*a"))["topic"].to_pylist()
        )
        assert 20 == (await asked(read, reader)).num_rows
        assert 30 == (await asked(read, everybody)).num_rows
        assert 0 == (await asked(read, writer)).num_rows
        stage = await asked(writer.stage, None, SCHEMA, rows("out.1"))
        assert 1 == (await asked(writer.commit, SinkKey("q", "", 0), [stage.id])).messages
        theirs = await asked(writer.stage, None, SCHEMA, rows("out.2"))
        await asked(everybody.open_cursor, "c", None)
        key = SinkKey("other", "", 0)
        for refusal, call in (
            ("may not subscribe 'secret'", lambda: read(reader, topics=["secret"])),
            ("may not subscribe 'secret'", lambda: reader.cut(topics=["orders.a", "secret"])),
            ("may not subscribe 'orders.a'", lambda: writer.advance(1, topics=["orders.a"])),
            ("may not publish 'orders.a'", lambda: reader.stage("orders.a", SCHEMA, rows("x"))),
            ("may not publish 'in'", lambda: writer.stage(None, SCHEMA, rows("out.1", "in"))),
            ("may not commit stage", lambda: reader.commit(key, [theirs.id])),
            ("may not hold the log", lambda: writer.open_cursor("mine", None)),
            ("may not use cursor 'c'", lambda: reader.move_cursor("c", 3)),
            ("may not use cursor 'c'", lambda: reader.remove_cursor("c")),
        ):
            with pytest.raises(NotAllowedError, match=refusal):
                await asked(call)
        assert [] == await asked(reader.cursors)
        with pytest.raises(UnauthenticatedError, match="the API key is not known"):
            await asked(endpoint_of(broker, "dev-key").offsets)
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_many_streams_at_once_are_each_whole(tmp_path: Path) -> None:
    """More of them than are worked on at a time, while cuts are asked for as well."""
    path = large_log(tmp_path, 20)
    expected = columnar.read(path, columns=["offset", "value"])
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        reads = [asked(read, endpoint, columns=["offset", "value"]) for _ in range(6)]
        cuts = [asked(endpoint.cut, parts=4) for _ in range(6)]
        found = await asyncio.gather(*reads, *cuts)

        assert [True] * 6 == [expected == table for table in found[:6]]
        assert 6 * [columnar.cut(path, parts=4)] == found[6:]
        await until_no_call(broker)


READS_AND_HANGS: Final = """
import sys
from braidmq.columnar.endpoint import Endpoint
batches = Endpoint(sys.argv[1], "dev-key").batches()
next(batches)
print("reading", flush=True)
sys.stdin.read()
"""
SENDS_AND_HANGS: Final = """
import sys
import pyarrow as pa
from braidmq.columnar.endpoint import Endpoint
schema = pa.schema([("value", pa.binary())])
def rows():
    for _ in range(100):
        yield pa.record_batch([pa.array([bytes(100_000)], pa.binary())], schema=schema)
    print("sent", flush=True)
    sys.stdin.read()
Endpoint(sys.argv[1], "dev-key").stage("t", schema, rows())
"""


@asynccontextmanager
async def client_that_hangs(
    script: str, broker: Served
) -> AsyncIterator[subprocess.Popen[str]]:
    """A process of its own in the middle of a call."""
    address = f"grpc://{broker.facts()['flight']}"
    with subprocess.Popen(  # noqa: ASYNC220 - it is waited for on a thread
        [sys.executable, "-c", script, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert await asked(process.stdout.readline)
            yield process
        finally:
            process.kill()


async def test_a_reader_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Its call is over, and others are served."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker:
        async with client_that_hangs(READS_AND_HANGS, broker) as reader:
            assert 1 == await calls_of(broker)
            reader.kill()
            await until_no_call(broker)
        assert 80 == (await asked(read, endpoint_of(broker), columns=["offset"])).num_rows
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_a_writer_that_is_killed_leaves_no_stage(tmp_path: Path) -> None:
    """Its stage was being written; to the broker it looks as if it had sent all it had."""
    stages = tmp_path / "data" / "stages"
    async with serving(tmp_path) as broker:
        async with client_that_hangs(SENDS_AND_HANGS, broker) as writer:
            await until(lambda: list(stages.iterdir()))
            writer.kill()
            await until_no_call(broker)
        assert [] == list(stages.iterdir())
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_sigterm_ends_it_with_streams_open(tmp_path: Path) -> None:
    """One that is stuck and one that reads: exit 0, and the reader is told, not cut short."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker:
        batches = endpoint_of(broker).batches()
        await asked(next, batches)
        async with (
            client_that_hangs(READS_AND_HANGS, broker),
            client_that_hangs(SENDS_AND_HANGS, broker),
        ):
            assert 3 == await calls_of(broker)
            broker.tell(signal.SIGTERM)
            with pytest.raises(UnavailableError):
                await asked(list, batches)
            assert 0 == await broker.ended()
        assert [] == list((tmp_path / "data" / "stages").iterdir())
        assert_clean(broker)


async def test_the_event_loop_answers_while_a_stream_is_under_way(tmp_path: Path) -> None:
    """By order: a batch, a PING and its PONG, another batch of the same stream."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker, broker.peer() as peer:
        batches = endpoint_of(broker).batches(batch_rows=1)
        count = 0
        for number in range(100, 120):
            count += len(await asked(next, batches))
            peer.send(ping(number))
            await peer.expect(pong(number))
        assert 20 == count
        assert 60 == sum(map(len, await asked(list, batches)))


def flight_of(broker: RunningBroker) -> FlightListener:
    (listener,) = (one for one in broker.daemon.status.listeners if one.strand == "flight")
    assert isinstance(listener, FlightListener)
    return listener


async def test_the_event_loop_does_not_wait_for_work_that_is_stuck(tmp_path: Path) -> None:
    """All places for work are taken: calls wait for one, publishers wait for nothing."""
    write_log(tmp_path, [message("t", b"x")] * 30)
    async with running_broker(data_dir=tmp_path, config={"flight": {}}) as broker:
        flight, endpoint = flight_of(broker), Endpoint(broker.endpoint, "dev-key")
        with ExitStack() as held:
            for places, count in (
                (flight.calls.workers, flight_calls.WORKERS_MAX),
                (flight.calls.scans, flight_calls.SCANS_MAX),
            ):
                for _ in range(count):
                    held.enter_context(places.one())
            waiting = [
                asyncio.create_task(asked(read, endpoint, end=31)),
                asyncio.create_task(asked(endpoint.cut, 1, 31)),
            ]
            await until(lambda: len(flight) == 2)
            async with connected(broker) as peer:
                await peer.publish("t", b"y")
            assert [False, False] == [task.done() for task in waiting]
        table, parts = await asyncio.gather(*waiting)

        assert 30 == table.num_rows == parts[0].messages


async def test_retention_under_a_stream_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is deleted before it was read is an error, or passed over aloud: no short read."""
    wal = {"segment_bytes": 65_536, "retention_bytes": 1, "retention_force": True}
    config: dict[str, object] = {"flight": {}, "wal": wal}
    async with (
        running_broker(data_dir=tmp_path, config=config) as broker,
        connected(broker) as peer,
    ):
        for _ in range(8):
            await peer.publish("t", *(100 * [bytes(60_000)]))
        end = columnar.offsets(tmp_path).latest
        endpoint = Endpoint(broker.endpoint, "dev-key")
        losses: list[columnar.Loss] = []
        strict = endpoint.batches(start=1, end=end, batch_rows=1)
        lenient = endpoint.batches(
            start=1, end=end, batch_rows=1, fail_on_data_loss=False, losses=losses
        )
        begun = [await asked(next, batches) for batches in (strict, lenient)]
        engine = broker.daemon.status.engine
        assert engine is not None
        while columnar.offsets(tmp_path).earliest < end - 100:
            await peer.publish("t", b"more")
            engine.take_snapshot()
            await until_committed(broker)
        with pytest.raises(columnar.DataLossError) as caught:
            await asked(list, strict)
        rest: list[pa.RecordBatch] = await asked(list, lenient)

    offsets = [row for batch in (begun[1], *rest) for row in batch["offset"].to_pylist()]
    lost = [number for loss in losses for number in range(loss.first_id, loss.last_id + 1)]
    assert RETAINED == caught.value.loss.reason
    assert {RETAINED} == {loss.reason for loss in losses}
    assert {skipped_line(endpoint.address, loss) for loss in losses} <= set(caplog.messages)
    assert set(offsets) | set(lost) >= set(range(offsets[0], end))
    assert set(offsets).isdisjoint(lost)


async def test_a_batch_is_there_once_and_a_cursor_stays_where_it_is(tmp_path: Path) -> None:
    """Over a kill: what was answered is durable, and asking again changes nothing."""
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        place = await asked(endpoint.open_cursor, "group", None)
        stages = [await asked(endpoint.stage, "out", SCHEMA, rows("a", "b")) for _ in range(2)]
        key = SinkKey("query", "sink", 7)
        first = await asked(endpoint.commit, key, [stages[0].id])
        await asked(endpoint.move_cursor, "group", place.initial + 1)
        await broker.end(signal.SIGKILL)
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        again = await asked(endpoint.commit, key, [stages[1].id])
        table = await asked(read, endpoint, topics=["out"])
        (cursor,) = await asked(endpoint.cursors)

        assert [(2, False), (2, True)] == [
            (one.messages, one.repeated) for one in (first, again)
        ]
        assert [b"a", b"b"] == table["value"].to_pylist()
        assert {"spark"} == set(table["origin"].to_pylist())
        assert ("group", place.initial, place.initial + 1) == tuple(
            cursor[name] for name in ("name", "initial", "position")
        )
        assert 0 == await broker.end()
        assert_clean(broker)
