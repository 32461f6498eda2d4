"""The Flight endpoint of a real broker: correct data, permissions, and misbehaving clients."""

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
from braidmq.broker.authorize import Principal
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
    assert_clean,
    endpoint_of,
    in_thread,
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
    """Write a log of *count* MiB, whose stream exceeds every buffer on the way."""
    (directory / "data").mkdir(parents=True)
    bodies = [message("t", bytes(MIB)) for _ in range(count)]
    return write_log(directory / "data", bodies, segment_bytes=8 * MIB)


async def calls_of(broker: Served) -> int:
    """Return the number of open calls that the broker reports."""
    _, text = await broker.get("/metrics")
    (line,) = (one for one in text.splitlines() if 'connections{strand="flight"}' in one)
    return int(float(line.split()[-1]))


async def until_no_call(broker: Served) -> None:
    async with asyncio.timeout(20):
        while await calls_of(broker):  # noqa: ASYNC110 - in another process
            await asyncio.sleep(0.01)


async def test_flight_and_directory_return_the_same_rows(tmp_path: Path) -> None:
    """For all columns, kinds, sizes and topics; filters, ranges, cuts and advances."""
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
        assert here.offsets() == await in_thread(there.offsets)
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
            found: list[pa.Table] = [
                read(here, **wanted),
                await in_thread(read, there, **wanted),
            ]
            assert found[0].schema == found[1].schema
            assert found[0] == found[1]
            assert found[0].num_rows == found[1].num_rows > 0
        assert here.topic_counts() == await in_thread(there.topic_counts)
        for size in ({"target_bytes": 100_000}, {"parts": 7}, {"parts": 3, "pattern": "m.*"}):
            assert here.cut(5, end, **size) == await in_thread(there.cut, 5, end, **size)
        for limit in ({"messages": 321}, {"payload_bytes": 5_000, "topics": ["a", "b"]}):
            assert here.advance(9, **limit) == await in_thread(there.advance, 9, **limit)
        assert here.offset_at(500) == await in_thread(there.offset_at, 500)
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


async def test_a_key_may_do_only_what_its_patterns_allow(tmp_path: Path) -> None:
    """Each refusal names the topic, stage or cursor."""
    path = tmp_path / "data"
    path.mkdir()
    names = ["orders.a", "orders.b", "secret"]
    write_log(path, [message(names[n % 3], b"x") for n in range(30)])
    async with serving(tmp_path, config=limited_keys(), dev=False) as broker:
        reader, writer, unlimited = (
            endpoint_of(broker, key) for key in ("k-read", "k-write", "k-all")
        )
        assert {"orders.a", "orders.b"} == set(await in_thread(reader.topic_counts))
        assert {"orders.a"} == set(
            (await in_thread(read, reader, pattern=".*a"))["topic"].to_pylist()
        )
        assert 20 == (await in_thread(read, reader)).num_rows
        assert 30 == (await in_thread(read, unlimited)).num_rows
        assert 0 == (await in_thread(read, writer)).num_rows
        stage = await in_thread(writer.stage, None, SCHEMA, rows("out.1"))
        assert 1 == (await in_thread(writer.commit, SinkKey("q", "", 0), [stage.id])).messages
        theirs = await in_thread(writer.stage, None, SCHEMA, rows("out.2"))
        await in_thread(unlimited.open_cursor, "c", None)
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
                await in_thread(call)
        assert [] == await in_thread(reader.cursors)
        with pytest.raises(UnauthenticatedError, match="the API key is not known"):
            await in_thread(endpoint_of(broker, "dev-key").offsets)
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_many_concurrent_streams_are_all_complete(tmp_path: Path) -> None:
    """More of them than there are workers, with cuts in between."""
    path = large_log(tmp_path, 20)
    expected = columnar.read(path, columns=["offset", "value"])
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        reads = [in_thread(read, endpoint, columns=["offset", "value"]) for _ in range(6)]
        cuts = [in_thread(endpoint.cut, parts=4) for _ in range(6)]
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
    """Run a client process that stops in the middle of a call."""
    address = f"grpc://{broker.facts()['flight']}"
    with subprocess.Popen(  # noqa: ASYNC220 - a thread waits for it
        [sys.executable, "-c", script, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert await in_thread(process.stdout.readline)
            yield process
        finally:
            process.kill()


async def test_a_killed_reader_leaves_no_call_behind(tmp_path: Path) -> None:
    """The broker ends its call and serves other clients."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker:
        async with client_that_hangs(READS_AND_HANGS, broker) as reader:
            assert 1 == await calls_of(broker)
            reader.kill()
            await until_no_call(broker)
        assert 80 == (await in_thread(read, endpoint_of(broker), columns=["offset"])).num_rows
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_a_killed_writer_leaves_no_stage_behind(tmp_path: Path) -> None:
    """Even though, to the broker, its stream looks as if it had ended normally."""
    stages = tmp_path / "data" / "stages"
    async with serving(tmp_path) as broker:
        async with client_that_hangs(SENDS_AND_HANGS, broker) as writer:
            await until(lambda: list(stages.iterdir()))
            writer.kill()
            await until_no_call(broker)
        assert [] == list(stages.iterdir())
        assert 0 == await broker.end()
        assert_clean(broker)


async def test_sigterm_ends_the_broker_while_streams_are_open(tmp_path: Path) -> None:
    """It exits with 0; a reader gets an error, not a short result."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker:
        batches = endpoint_of(broker).batches()
        await in_thread(next, batches)
        async with (
            client_that_hangs(READS_AND_HANGS, broker),
            client_that_hangs(SENDS_AND_HANGS, broker),
        ):
            assert 3 == await calls_of(broker)
            broker.tell(signal.SIGTERM)
            with pytest.raises(UnavailableError):
                await in_thread(list, batches)
            assert 0 == await broker.ended()
        assert [] == list((tmp_path / "data" / "stages").iterdir())
        assert_clean(broker)


async def test_the_event_loop_answers_during_a_stream(tmp_path: Path) -> None:
    """A batch, a PING and its PONG, another batch of the same stream, in this order."""
    large_log(tmp_path)
    async with serving(tmp_path) as broker, broker.peer() as peer:
        batches = endpoint_of(broker).batches(batch_rows=1)
        count = 0
        for number in range(100, 120):
            count += len(await in_thread(next, batches))
            peer.send(ping(number))
            await peer.expect(pong(number))
        assert 20 == count
        assert 60 == sum(map(len, await in_thread(list, batches)))


OTHER: Final = Principal("other", publish=[], subscribe=[])


def flight_of(broker: RunningBroker) -> FlightListener:
    (listener,) = (one for one in broker.daemon.status.listeners if one.strand == "flight")
    assert isinstance(listener, FlightListener)
    return listener


async def test_the_event_loop_does_not_wait_for_flight_workers(tmp_path: Path) -> None:
    """When all workers are busy, Flight calls wait for one; publishers do not wait."""
    write_log(tmp_path, [message("t", b"x")] * 30)
    async with running_broker(data_dir=tmp_path, config={"flight": {}}) as broker:
        flight, endpoint = flight_of(broker), Endpoint(broker.endpoint, "dev-key")
        with ExitStack() as held:
            for places, count in (
                (flight.calls.workers, flight_calls.WORKERS_MAX),
                (flight.calls.scans, flight_calls.SCANS_MAX),
            ):
                for _ in range(count):
                    held.enter_context(places.one(OTHER))
            waiting = [
                asyncio.create_task(in_thread(read, endpoint, end=31)),
                asyncio.create_task(in_thread(endpoint.cut, 1, 31)),
            ]
            await until(lambda: flight.calls.count == 2)
            async with connected(broker) as peer:
                await peer.publish("t", b"y")
            assert [False, False] == [task.done() for task in waiting]
        table, parts = await asyncio.gather(*waiting)

        assert 30 == table.num_rows == parts[0].messages


async def test_retention_during_a_stream_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Messages deleted before they were read raise an error or are logged as lost."""
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
        begun = [await in_thread(next, batches) for batches in (strict, lenient)]
        engine = broker.daemon.status.engine
        assert engine is not None
        while columnar.offsets(tmp_path).earliest < end - 100:
            await peer.publish("t", b"more")
            engine.take_snapshot()
            await until_committed(broker)
        with pytest.raises(columnar.DataLossError) as caught:
            await in_thread(list, strict)
        rest: list[pa.RecordBatch] = await in_thread(list, lenient)

    offsets = [row for batch in (begun[1], *rest) for row in batch["offset"].to_pylist()]
    lost = [number for loss in losses for number in range(loss.first_id, loss.last_id + 1)]
    assert RETAINED == caught.value.loss.reason
    assert {RETAINED} == {loss.reason for loss in losses}
    assert {skipped_line(endpoint.address, loss) for loss in losses} <= set(caplog.messages)
    assert set(offsets) | set(lost) >= set(range(offsets[0], end))
    assert set(offsets).isdisjoint(lost)


async def test_a_committed_batch_and_a_cursor_survive_a_kill(tmp_path: Path) -> None:
    """What was confirmed is durable, and repeating the commit changes nothing."""
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        opened = await in_thread(endpoint.open_cursor, "group", None)
        stages = [
            await in_thread(endpoint.stage, "out", SCHEMA, rows("a", "b")) for _ in range(2)
        ]
        key = SinkKey("query", "sink", 7)
        first = await in_thread(endpoint.commit, key, [stages[0].id])
        await in_thread(endpoint.move_cursor, "group", opened.initial + 1)
        await broker.end(signal.SIGKILL)
    async with serving(tmp_path) as broker:
        endpoint = endpoint_of(broker)
        again = await in_thread(endpoint.commit, key, [stages[1].id])
        table = await in_thread(read, endpoint, topics=["out"])
        (cursor,) = await in_thread(endpoint.cursors)

        assert [(2, False), (2, True)] == [
            (one.messages, one.repeated) for one in (first, again)
        ]
        assert [b"a", b"b"] == table["value"].to_pylist()
        assert {"spark"} == set(table["origin"].to_pylist())
        assert ("group", opened.initial, opened.initial + 1) == tuple(
            cursor[name] for name in ("name", "initial", "position")
        )
        assert 0 == await broker.end()
        assert_clean(broker)
