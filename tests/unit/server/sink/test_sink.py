"""The sink: batches, repeated batches, full queues, unusable stages and invalid keys."""

import asyncio

import pytest
from structlog.testing import capture_logs

from braidmq.base.errors import (
    ConfigError,
    DamagedStageError,
    NotAllowedError,
    UnknownStageError,
)
from braidmq.broker import records
from braidmq.broker.policy import BLOCK_PUBLISHER
from braidmq.broker.sinks import STAGES_MAX
from braidmq.columnar.flight.requests import SinkCommit, SinkKey
from braidmq.server.engine.requests import UnavailableError
from braidmq.server.sink.sink import CHUNK_BYTES, CHUNK_ROWS
from braidmq.server.sink.stages import LIFE_US
from braidmq.testing.clock import FakeClock
from tests.unit.server.sink.sink_world import ADA, BOB, KEY, OPS, ROWS, SinkWorld, numbered

pytestmark = pytest.mark.asyncio

TWO_DAYS_S = 2 * LIFE_US // 1_000_000


# One batch.


async def test_the_rows_of_the_stages_are_published_in_order() -> None:
    """All of them are durable when the commit is answered, and the stages are gone."""
    world = SinkWorld()
    ids = [world.stage(b"1", b"2"), world.stage(), world.stage(b"3")]

    assert SinkCommit(3, repeated=False) == await world.run(world.sink.commit(ADA, KEY, ids))
    assert [b"1", b"2", b"3"] == world.payloads()
    assert [] == world.files()
    assert [records.INTENT, *(3 * [records.SINK_ROW]), records.DONE] == world.kinds()


async def test_a_batch_without_stages_is_committed() -> None:
    """A micro-batch may be empty."""
    world = SinkWorld()

    assert SinkCommit(0, repeated=False) == await world.run(world.sink.commit(ADA, KEY, []))
    assert SinkCommit(0, repeated=True) == await world.run(world.sink.commit(ADA, KEY, []))


async def test_a_stage_that_is_listed_twice_is_appended_once() -> None:
    """Each row becomes one message."""
    world = SinkWorld()
    stage = world.stage(*ROWS)
    await world.run(world.sink.commit(ADA, KEY, [stage, stage]))

    assert list(ROWS) == world.payloads()


async def test_large_batches_are_appended_in_chunks() -> None:
    """Neither memory use nor a turn of the event loop grows with them."""
    world = SinkWorld()
    count = 10 * CHUNK_ROWS + 7
    ids = [world.stage(*numbered(count), size=count), world.stage(b"a", b"b")]
    await world.run(world.sink.commit(ADA, KEY, ids))

    assert [*numbered(count), b"a", b"b"] == world.payloads()
    assert world.largest <= CHUNK_ROWS + 1


async def test_large_rows_are_appended_in_chunks_of_bytes() -> None:
    """The next chunk follows once this one is in the log."""
    world = SinkWorld()
    stage = world.stage(*(8 * [CHUNK_BYTES // 2 * b"x"]))
    await world.run(world.sink.commit(ADA, KEY, [stage]))

    assert 8 == len(world.payloads())
    assert world.largest <= 4


async def test_many_small_stages_share_a_commit_of_the_log() -> None:
    """A job may have hundreds of tasks with a row each."""
    world = SinkWorld()
    ids = [world.stage(payload) for payload in numbered(200)]
    before = world.wal.stats.commits
    await world.run(world.sink.commit(ADA, KEY, ids))

    assert list(numbered(200)) == world.payloads()
    assert world.wal.stats.commits - before <= 3


# Repeated batches.


async def test_a_repeated_batch_changes_nothing_however_it_is_split() -> None:
    """Its stages are dropped, because no batch needs them."""
    world = SinkWorld()
    await world.run(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    again = [world.stage(b"3", b"1"), world.stage(b"5", b"4", b"2")]

    assert SinkCommit(5, repeated=True) == await world.run(world.sink.commit(ADA, KEY, again))
    assert list(ROWS) == world.payloads()
    assert [] == world.files()


async def test_a_repeated_batch_changes_nothing_after_a_restart() -> None:
    """Whether the broker knows the batch from the records or from a snapshot."""
    world = SinkWorld()
    await world.run(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    for _ in range(2):
        world = SinkWorld(world.disk.kill())
        stage = world.stage(*ROWS)
        repeated = await world.run(world.sink.commit(ADA, KEY, [stage]))

        assert SinkCommit(5, repeated=True) == repeated
        assert list(ROWS) == world.payloads()
        world.engine.take_snapshot()
        await world.finish_log()


async def test_an_older_batch_changes_nothing() -> None:
    """The query has moved on, and the broker no longer knows how large the old batch was."""
    world = SinkWorld()
    await world.run(world.sink.commit(ADA, SinkKey("q", "", 7), [world.stage(b"7")]))
    late = world.sink.commit(ADA, SinkKey("q", "", 6), [world.stage(b"6")])

    assert SinkCommit(0, repeated=True) == await world.run(late)
    assert [b"7"] == world.payloads()


async def test_other_sinks_and_queries_are_other_batches() -> None:
    """Two writes in one foreachBatch differ only in their sink."""
    world = SinkWorld()
    for number, key in enumerate((KEY, SinkKey("q", "s", 1), SinkKey("r", "", 1))):
        committed = world.sink.commit(ADA, key, [world.stage(b"%d" % number)])
        assert SinkCommit(1, repeated=False) == await world.run(committed)

    assert [b"0", b"1", b"2"] == world.payloads()


async def test_batches_wait_for_their_turn() -> None:
    """One is appended at a time, in the order in which they were committed."""
    world = SinkWorld()
    payloads = [b"%d" % number for number in range(4)]
    tasks = [
        asyncio.ensure_future(
            world.sink.commit(ADA, SinkKey("q", "", number), [world.stage(payload, payload)])
        )
        for number, payload in enumerate(payloads)
    ]
    await world.until(lambda: all(task.done() for task in tasks))

    assert [one for payload in payloads for one in (payload, payload)] == world.payloads()
    kinds = [kind for kind in world.kinds() if kind != records.SINK_ROW]
    assert 4 * [records.INTENT, records.DONE] == kinds


async def test_a_batch_that_is_committed_twice_at_once_is_appended_once() -> None:
    """A driver that was cut off may retry before its first call has ended."""
    world = SinkWorld()
    tasks = [
        asyncio.ensure_future(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
        for _ in range(2)
    ]
    await world.until(lambda: all(task.done() for task in tasks))

    assert [False, True] == [task.result().repeated for task in tasks]
    assert list(ROWS) == world.payloads()


# Queues.


async def test_a_batch_waits_for_room_in_a_queue() -> None:
    """It goes on as messages leave the queue; other batches wait behind it."""
    world = SinkWorld()
    broker = world.engine.broker
    topic = broker.topics.get("t")
    assert topic is not None
    policy = broker.queues.new_policy("t")
    policy.max_size, policy.overflow = 2, BLOCK_PUBLISHER
    queue = broker.queues.declare(topic, policy, world.clock.now_us())
    first = asyncio.ensure_future(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    second = asyncio.ensure_future(
        world.sink.commit(ADA, SinkKey("r", "", 1), [world.stage(b"else", topic="u")])
    )
    await world.until(lambda: queue.waiting() == 2)
    await world.run_without_log()
    assert [b"1", b"2"] == world.payloads()
    assert [] == world.payloads("u")

    def take() -> bool:
        if queue.waiting() == 2:
            broker.queues.purge(queue, world.clock.now_us())
            world.engine.end_turn()
        return first.done() and second.done()

    await world.until(take)
    assert list(ROWS) == world.payloads()
    assert [b"else"] == world.payloads("u")


# Stages that do not exist, belong to another principal, or are aborted.


async def test_a_batch_with_an_unknown_stage_is_refused_and_not_begun() -> None:
    """Even when its other stages exist."""
    world = SinkWorld()
    stage = world.stage(*ROWS)
    with pytest.raises(UnknownStageError):
        await world.run(world.sink.commit(ADA, KEY, [stage, 32 * "0"]))

    assert world.engine.broker.sinks.open is None
    assert [] == world.kinds()
    await world.run(world.sink.abort(ADA, [stage]))
    assert [] == world.files()


async def test_only_its_owner_may_commit_or_drop_a_stage() -> None:
    """And an administrator."""
    world = SinkWorld()
    stage = world.stage(*ROWS)
    with pytest.raises(NotAllowedError, match="commit stage"):
        await world.run(world.sink.commit(BOB, KEY, [stage]))
    await world.run(world.sink.abort(BOB, [stage]))
    assert [stage] == world.files()

    assert 5 == (await world.run(world.sink.commit(OPS, KEY, [stage]))).messages


async def test_only_its_owner_may_continue_a_query() -> None:
    """Another principal could make its next batches look done."""
    world = SinkWorld()
    await world.run(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    with pytest.raises(NotAllowedError, match="query 'q'"):
        await world.run(world.sink.commit(BOB, SinkKey("q", "", 2), []))

    assert not (await world.run(world.sink.commit(OPS, SinkKey("q", "", 2), []))).repeated


async def test_an_abort_drops_the_attempts_stages() -> None:
    """Stages that are already gone do not matter."""
    world = SinkWorld()
    ids = [world.stage(*ROWS), world.stage(b"6")]
    kept = world.stage(b"7")
    await world.run(world.sink.abort(ADA, [*ids, 32 * "0", "nonsense"]))

    assert [kept] == world.files()


async def test_an_abort_does_not_touch_a_batch_that_has_begun() -> None:
    """Spark aborts after a failed commit, but the failure does not tell the batch's outcome."""
    world = SinkWorld()
    ids = [world.stage(*ROWS), world.stage(b"6")]
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, ids))
    await world.until(lambda: world.engine.broker.sinks.open is not None)
    await world.run(world.sink.abort(ADA, ids))
    await world.run(asyncio.wait_for(task, None))

    assert [*ROWS, b"6"] == world.payloads()


async def test_a_batch_that_waits_for_its_turn_can_be_aborted() -> None:
    """It has not begun; its commit fails because its stage is gone."""
    world = SinkWorld()
    first = asyncio.ensure_future(world.sink.commit(ADA, KEY, [world.stage(*ROWS)]))
    waiting = world.stage(b"6")
    second = asyncio.ensure_future(world.sink.commit(ADA, SinkKey("r", "", 1), [waiting]))
    await world.run_without_log()
    await world.sink.abort(ADA, [waiting])
    await world.until(lambda: first.done() and second.done())

    assert isinstance(second.exception(), UnknownStageError)
    assert list(ROWS) == world.payloads()


async def test_stages_of_an_open_batch_never_expire() -> None:
    """Not even when it cannot be finished for days."""
    clock = FakeClock()
    world = SinkWorld(clock=clock)
    ids = [world.stage(*numbered(CHUNK_ROWS), size=1000), world.stage(b"last")]
    forgotten = world.stage(b"forgotten")
    path = f"stages/{ids[1]}.arrow"
    whole = world.disk.content(path)
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, ids))
    await world.until(lambda: world.engine.broker.sinks.open is not None)
    world.disk.put(path, b"rotten")
    await world.until(task.done)
    assert isinstance(task.exception(), DamagedStageError)

    clock.advance(TWO_DAYS_S)
    after = SinkWorld(world.disk.kill(), clock=clock)
    with pytest.raises(DamagedStageError):
        await after.run(after.sink.resume())
    assert sorted(ids) == sorted(after.files())
    assert forgotten not in after.files()
    after.disk.put(path, whole)
    await after.run(after.sink.resume())
    assert [*numbered(CHUNK_ROWS), b"last"] == after.payloads()
    assert [] == after.files()


async def test_a_batch_that_cannot_be_finished_is_logged() -> None:
    """The broker goes on; so does the batch, once its stage is back."""
    world = SinkWorld()
    stage = world.stage(*numbered(3 * CHUNK_ROWS), size=1000)
    task = asyncio.ensure_future(world.sink.commit(ADA, KEY, [stage]))
    await world.until(lambda: len(world.payloads()) >= CHUNK_ROWS)
    await world.sink.stop()
    disk = world.disk.kill()
    whole = disk.content(f"stages/{stage}.arrow")
    disk.remove(f"stages/{stage}.arrow")
    after = SinkWorld(disk)
    with capture_logs() as logs:
        after.sink.start()
        await after.run_without_log()
    assert task.cancelled()
    assert ["cannot finish the sink's batch"] == [entry["event"] for entry in logs]
    with pytest.raises(UnknownStageError):
        await after.run(after.sink.commit(ADA, SinkKey("r", "", 1), []))
    after.disk.put(f"stages/{stage}.arrow", whole)
    await after.run(after.sink.commit(ADA, SinkKey("r", "", 1), []))
    await after.sink.stop()

    assert list(numbered(3 * CHUNK_ROWS)) == after.payloads()


# Keys.


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (SinkKey("", "", 1), "query"),
        (SinkKey(1_025 * "q", "", 1), "query"),
        (SinkKey("\ud800", "", 1), "query"),
        (SinkKey("q", 1_025 * "s", 1), "sink"),
        (SinkKey("q", "", -1), "batch"),
        (SinkKey("q", "", 2**64), "batch"),
    ],
)
async def test_an_invalid_key_is_refused(key: SinkKey, field: str) -> None:
    """The error names the invalid part."""
    with pytest.raises(ConfigError) as refused:
        await SinkWorld().sink.commit(ADA, key, [])
    assert field == refused.value.key


async def test_a_batch_of_too_many_stages_is_refused() -> None:
    """Its intent would not fit into a record."""
    with pytest.raises(ConfigError, match="too many"):
        await SinkWorld().sink.commit(ADA, KEY, map(str, range(STAGES_MAX + 1)))


async def test_too_many_queries_are_refused() -> None:
    """The broker never forgets a query."""
    world = SinkWorld()
    known = [(str(number), "", "bob", 1, 1) for number in range(100_000)]
    world.engine.broker.sinks.restore(None, known)

    with pytest.raises(UnavailableError, match="too many queries"):
        await world.run(world.sink.commit(ADA, KEY, []))
