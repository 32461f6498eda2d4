"""The real broker on a machine whose clock is wrong: nothing expires, and it says so.

Each step is made at every time that matters: while the broker runs, and between two starts,
with a killed broker (its data directory is copied while it runs) and with a clean stop.
"""

import asyncio
import http.client
import json
import shutil
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import braidmq
from braidmq.server.engine.durability import SAVES_MAX, Durability
from braidmq.server.engine.engine import Engine
from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import broker_at, until

pytestmark = pytest.mark.asyncio

HOUR_S = 3600
YEAR_S = 365 * 24 * HOUR_S
S = 1_000_000

# An hour to live; a segment for every few messages, which retention deletes after a day.
CONFIG: dict[str, Any] = {
    "delivery": {"message_ttl_ms": HOUR_S * 1000},
    "wal": {"segment_bytes": 65536, "retention_hours": 24.0},
}


@asynccontextmanager
async def broker_of(path: Path, clock: FakeClock) -> AsyncIterator[RunningBroker]:
    async with broker_at(path, clock, **CONFIG) as broker:
        yield broker


async def ask(broker: RunningBroker, path: str) -> Any:  # noqa: ANN401 - any JSON
    host, port = broker.address("http")

    def answered() -> tuple[int, str]:
        connection = http.client.HTTPConnection(host, port)
        connection.request("GET", path, headers={"Authorization": "Bearer dev-key"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text

    status, text = await asyncio.to_thread(answered)
    assert 200 == status, text
    return text if path == "/metrics" else json.loads(text)


async def alarms(broker: RunningBroker) -> list[str]:
    """Return the alarms, which agree on every surface; the broker is ready all the same."""
    assert {"status": "ready"} == await ask(broker, "/readyz")
    found: list[str] = (await ask(broker, "/api/overview"))["alarms"]
    lines = (await ask(broker, "/metrics")).splitlines()
    assert f"braidmq_clock_alarms {float(len(found))}" in lines
    return found


async def publish(broker: RunningBroker, *payloads: bytes, strand: str = "vibe") -> None:
    async with braidmq.connect(broker.url(strand)) as client:
        for payload in payloads:
            await client.publish("jobs", payload)


async def declare(broker: RunningBroker) -> None:
    """Make a queue with a time to live; with many segments it has a backlog in the log."""
    async with braidmq.connect(broker.url("vibe")) as client:
        await client.declare_queue("jobs", ttl=HOUR_S, dead_letters=False)


async def received(broker: RunningBroker, count: int) -> list[bytes]:
    async with (
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("jobs") as messages,
    ):
        found = [await asyncio.wait_for(anext(messages), 20) for _ in range(count)]
        for message in found:
            await message.ack()
        return [message.payload for message in found]


async def timestamps(broker: RunningBroker) -> list[str]:
    page = await ask(broker, "/api/topics/jobs/messages?limit=100")
    return [message["timestamp"] for message in page["messages"]]


async def found_from(broker: RunningBroker, time: str) -> list[int]:
    page = await ask(broker, f"/api/topics/jobs/messages?time={time}")
    return [message["payload"] for message in page["messages"]]


PAYLOADS = [b'"%d %s"' % (number, b"x" * 20_000) for number in range(30)]


@pytest.mark.parametrize("step_s", [10 * YEAR_S, 14 * HOUR_S, -14 * HOUR_S, -10 * YEAR_S])
async def test_a_step_while_it_runs_expires_nothing_then_or_at_the_next_starts(
    tmp_path: Path, step_s: int
) -> None:
    """It is an alarm at once; after a kill or a stop the difference does not count either."""
    clock = FakeClock()
    first, second = tmp_path / "first", tmp_path / "second"
    async with broker_of(first, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS[:15])
        clock.step(step_s)
        (said,) = await alarms(broker)
        assert "the system's clock was set" in said
        await publish(broker, *PAYLOADS[15:])
        shutil.copytree(first, second)  # what kill -9 leaves
    for directory in (first, second):
        async with broker_of(directory, clock) as broker:
            assert [] == await alarms(broker)
            clock.advance(60)
            await publish(broker, b'"last"')
        async with broker_of(directory, clock) as broker:
            assert [*PAYLOADS, b'"last"'] == await received(broker, 31)
    # And the time to live still counts: nothing is left for ever.
    async with broker_of(second, clock) as broker:
        await publish(broker, b'"late"')
        clock.advance(HOUR_S)
        await publish(broker, b'"in time"')
        assert [b'"in time"'] == await received(broker, 1)


def parts_of(broker: RunningBroker) -> tuple[Engine, Durability]:
    engine = broker.daemon.status.engine
    log = broker.daemon._durability  # noqa: SLF001 - a slow disk is nothing to configure
    assert engine is not None
    assert log is not None
    return engine, log


async def until_kept(broker: RunningBroker) -> None:
    """Look at the clock, as happens each second, until a kill would do no harm."""
    engine, log = parts_of(broker)

    def is_kept() -> bool:
        broker.daemon.look_at_clock()
        # The directory is copied next, so no snapshot may be under way.
        no_saves = not log._saves  # noqa: SLF001 - nothing else shows it
        return engine.broker.times.is_ahead_kept and no_saves

    await until(is_kept)


@contextmanager
def writer_held(broker: RunningBroker) -> Iterator[Engine]:
    """Let the log's writer wait, as for a slow disk, until the block ends."""
    engine, log = parts_of(broker)
    go_on = threading.Event()
    log._jobs.put(lambda: assert_woken(go_on))  # noqa: SLF001 - as above
    try:
        yield engine
    finally:
        go_on.set()


def assert_woken(event: threading.Event) -> None:
    assert event.wait(20)


async def assert_all_there(killed: Path, clock: FakeClock) -> None:
    async with broker_of(killed, clock) as broker:
        assert [] == await alarms(broker)
        clock.advance(1)
        assert PAYLOADS[:5] == await received(broker, 5)


@pytest.mark.parametrize(
    "steps_s",
    [[120, 2 * HOUR_S], [-120, 2 * HOUR_S], [120, -120, 2 * HOUR_S], [2 * HOUR_S, -HOUR_S]],
    ids=str,
)
async def test_each_of_several_steps_is_kept_for_the_next_start(
    tmp_path: Path, steps_s: list[int]
) -> None:
    """A second step that leaves the clock wrong is as durable as the first, before a kill."""
    clock = FakeClock()
    first, killed = tmp_path / "first", tmp_path / "killed"
    async with broker_of(first, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS[:5])
        for step_s in steps_s:
            clock.step(step_s)
            await until_kept(broker)
        shutil.copytree(first, killed)
    await assert_all_there(killed, clock)


async def test_a_snapshot_that_was_begun_before_the_step_is_not_enough(tmp_path: Path) -> None:
    """It says where the clock was when it was begun, so another one follows it."""
    clock = FakeClock()
    first, killed = tmp_path / "first", tmp_path / "killed"
    async with broker_of(first, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS[:4])
        with writer_held(broker) as engine:
            late = asyncio.create_task(publish(broker, PAYLOADS[4]))
            await until(lambda: not engine.is_committed())
            engine.take_snapshot()  # waits for that message's commit
            clock.step(2 * HOUR_S)
            assert not engine.broker.times.is_ahead_kept
        await late
        await until_kept(broker)
        shutil.copytree(first, killed)
    await assert_all_there(killed, clock)


async def test_a_snapshot_that_a_slow_disk_does_not_take_is_asked_for_again(
    tmp_path: Path,
) -> None:
    """Only so many wait for the disk: the one after the step was dropped, and is repeated."""
    clock = FakeClock()
    first, killed = tmp_path / "first", tmp_path / "killed"
    async with broker_of(first, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS[:5])
        with writer_held(broker) as engine:
            for _ in range(SAVES_MAX):
                engine.take_snapshot()
            clock.step(2 * HOUR_S)
        await until_kept(broker)
        shutil.copytree(first, killed)
    await assert_all_there(killed, clock)


@pytest.mark.parametrize("step_s", [10 * YEAR_S, -14 * HOUR_S, -10 * YEAR_S])
async def test_a_step_between_two_starts_expires_nothing(tmp_path: Path, step_s: int) -> None:
    """It is an alarm of that start, and messages live as long as they were meant to."""
    clock = FakeClock()
    async with broker_of(tmp_path, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS)
        clock.advance(HOUR_S / 2)
    clock.step(step_s)
    async with broker_of(tmp_path, clock) as broker:
        (said,) = await alarms(broker)
        assert "at the start the system's clock was" in said
        clock.advance(HOUR_S / 4)
    async with broker_of(tmp_path, clock) as broker:
        assert [] == await alarms(broker)
        assert PAYLOADS[:10] == await received(broker, 10)
        clock.advance(HOUR_S / 4)
        await publish(broker, b'"in time"')
        assert [b'"in time"'] == await received(broker, 1)


async def test_a_start_in_the_future_does_not_stamp_what_comes_after_it(
    tmp_path: Path,
) -> None:
    """Once the clock is right again, so are new timestamps; a search by time finds them."""
    clock = FakeClock()
    async with broker_of(tmp_path, clock) as broker:
        await declare(broker)
        await publish(broker, b"1")
    clock.step(10 * YEAR_S)
    async with broker_of(tmp_path, clock) as broker:
        await publish(broker, b"2")
    clock.step(-10 * YEAR_S)
    clock.advance(100)
    async with broker_of(tmp_path, clock) as broker:
        await publish(broker, b"3")
        years = [int(stamp[:4]) for stamp in await timestamps(broker)]

        assert [2027, 2037, 2027] == years
        # From there on no message is older than what was asked for.
        assert [2, 3] == await found_from(broker, "2027-01-15T08:00:50Z")
        assert [] == await found_from(broker, "2030-01-01T00:00:00Z")


def segments_of(path: Path) -> set[Path]:
    return set(path.glob("wal/*.wal"))


@pytest.mark.parametrize("step_s", [10 * YEAR_S, -10 * YEAR_S])
async def test_retention_by_age_counts_the_time_that_passed(
    tmp_path: Path, step_s: int
) -> None:
    """A jump deletes no segment, and keeps none for ever."""
    clock = FakeClock()
    async with broker_of(tmp_path, clock) as broker:
        # On Blip, for no consumer: only their age keeps them.
        await publish(broker, *PAYLOADS, strand="blip")
    segments = segments_of(tmp_path)
    assert len(segments) > 3
    clock.step(step_s)
    async with broker_of(tmp_path, clock):
        pass  # its end takes a snapshot, with which segments are deleted
    assert segments == segments_of(tmp_path)
    async with broker_of(tmp_path, clock) as broker:
        await publish(broker, *PAYLOADS, strand="blip")
        clock.advance(25 * HOUR_S)
    async with broker_of(tmp_path, clock):
        pass
    assert 1 == len(segments_of(tmp_path) & segments)  # that one was still growing


async def test_a_believable_downtime_counts(tmp_path: Path) -> None:
    """Messages expire while the broker is down, if the clock can be believed."""
    clock = FakeClock()
    async with broker_of(tmp_path, clock) as broker:
        await declare(broker)
        await publish(broker, *PAYLOADS)
    clock.advance(2 * HOUR_S)
    async with broker_of(tmp_path, clock) as broker:
        assert [] == await alarms(broker)
        clock.advance(2)
        await publish(broker, b'"new"')
        assert [b'"new"'] == await received(broker, 1)
