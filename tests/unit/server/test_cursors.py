"""Readers' cursors: opened once, moved forward, protecting the log from retention."""

import asyncio
import errno

import pytest

from braidmq.base.errors import CursorError, LogFullError, NotAllowedError
from braidmq.broker.authorize import SUBSCRIBE, Grant, Principal
from braidmq.broker.topics import Message, body_of
from braidmq.server.cursors import Cursors, CursorState, OpenedCursor
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.clock import FakeClock
from tests.unit.server.sink.sink_world import ADA, BOB, OPS, SEGMENT_BYTES, SinkWorld

pytestmark = pytest.mark.asyncio

HOUR_S = 3600


async def publish(world: SinkWorld, count: int, payload: bytes = b"x") -> None:
    """Publish messages and commit them."""
    topic = world.engine.broker.topics.get("t")
    assert topic is not None
    for _ in range(count):
        world.engine.broker.publish(
            Message(topic, 1, body_of(topic, payload)), world.clock.now_us()
        )
    world.engine.end_turn()
    await world.finish_log()


async def opened(world: SinkWorld, start: int | None, name: str = "night") -> OpenedCursor:
    return await world.run(world.cursors.open(ADA, name, start))


async def test_a_cursor_starts_at_the_end_of_the_log_or_at_a_given_offset() -> None:
    """The end is one past the last record that survives a power cut."""
    world = SinkWorld()
    await publish(world, 3)

    assert OpenedCursor("night", 4, 4, created=True) == await opened(world, None)
    assert OpenedCursor("day", 2, 2, created=True) == await opened(world, 2, "day")


async def test_the_log_ends_for_readers_where_it_is_synced() -> None:
    """External readers see no more: a later offset would be ahead of the log for them."""
    world = SinkWorld(wal={"fsync": "none"})
    await publish(world, 3)

    with pytest.raises(CursorError, match="ends at 1"):
        await world.cursors.open(ADA, "night", 4)
    assert 1 == (await opened(world, None)).initial
    world.wal.sync()
    assert 5 == (await opened(world, None, "day")).initial


async def test_an_existing_cursor_stays_whatever_the_start() -> None:
    """Spark asks for its first offset more than once, and must get the same each time."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, None)
    await publish(world, 3)

    for start in (None, 1, 7):
        assert OpenedCursor("night", 4, 4, created=False) == await opened(world, start)
    await world.run(world.cursors.move(ADA, "night", 6))
    assert OpenedCursor("night", 4, 6, created=False) == await opened(world, None)


async def test_a_cursor_is_durable_when_it_is_answered() -> None:
    """Opened, moved or removed: the change survives a restart."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, 1)
    await opened(world, 1, "gone")
    await world.run(world.cursors.move(ADA, "night", 3))
    await world.run(world.cursors.remove(ADA, "gone"))
    after = SinkWorld(world.disk.kill())

    assert [("night", 1, 3)] == [(c.name, c.initial, c.position) for c in after.cursors.all()]


async def test_a_second_reader_waits_for_the_first_ones_record() -> None:
    """Its answer must be as durable as the first one's."""
    world = SinkWorld()
    first = asyncio.ensure_future(world.cursors.open(ADA, "night", None))
    second = asyncio.ensure_future(world.cursors.open(ADA, "night", None))
    await world.run_without_log()
    assert not second.done()
    await world.finish_log()
    await world.run_without_log()

    assert [True, False] == [(await first).created, (await second).created]


async def test_a_cursor_moves_only_forward_and_not_past_the_log() -> None:
    """A late report changes nothing; an impossible one is refused."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, 2)
    await world.run(world.cursors.move(ADA, "night", 5))
    await world.run(world.cursors.move(ADA, "night", 3))
    assert [5] == [cursor.position for cursor in world.cursors.all()]

    with pytest.raises(CursorError, match="offset 8 is beyond the end of the log"):
        await world.cursors.move(ADA, "night", 8)


async def test_the_list_says_how_far_behind_each_is() -> None:
    """In ids, sorted by name."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, 2)
    await opened(world, None, "day")

    def row(name: str, position: int, lag: int) -> CursorState:
        return CursorState(
            name=name, principal="ada", initial=position, position=position, lag=lag
        )

    assert [row("day", 5, 1), row("night", 2, 4)] == world.cursors.all()


async def test_only_its_owner_and_administrators_may_use_a_cursor() -> None:
    """By moving it, others could let retention delete messages that the owner still needs."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, 1)
    for use in (
        world.cursors.open(BOB, "night", None),
        world.cursors.move(BOB, "night", 2),
        world.cursors.remove(BOB, "night"),
    ):
        with pytest.raises(NotAllowedError, match="use cursor 'night'"):
            await use

    await world.run(world.cursors.move(OPS, "night", 2))
    assert 2 == (await world.run(world.cursors.open(OPS, "night", None))).position
    await world.run(world.cursors.remove(OPS, "night"))
    assert [] == world.cursors.all()


@pytest.mark.parametrize(
    ("principal", "may"),
    [
        (Principal("p", publish=["*"], subscribe=[]), False),
        (Principal("p", publish=[], subscribe=["a"]), True),
        (Principal("p", publish=[], subscribe=[], admin=True), True),
        (Principal("p", publish=[], subscribe=[], grants=[Grant("a", {SUBSCRIBE})]), True),
        (Principal("p", publish=[], subscribe=[], grants=[Grant("a", {"publish"})]), False),
    ],
)
async def test_a_principal_that_may_read_nothing_may_hold_nothing(
    principal: Principal, *, may: bool
) -> None:
    """A cursor keeps retention from deleting the log."""
    world = SinkWorld()
    if may:
        assert (await world.run(world.cursors.open(principal, "c", None))).created
    else:
        with pytest.raises(NotAllowedError, match="hold the log"):
            await world.cursors.open(principal, "c", None)


async def test_a_deleted_principal_may_hold_nothing() -> None:
    """Its sessions may outlive it for a moment."""
    gone = Principal("p", publish=[], subscribe=["*"])
    gone.gone = True

    with pytest.raises(NotAllowedError):
        await SinkWorld().cursors.open(gone, "c", None)


@pytest.mark.parametrize("name", ["", 256 * "x", 128 * "ä", "\ud800"])
async def test_names_are_bounded(name: str) -> None:
    """Every snapshot holds them, and operators read them."""
    with pytest.raises(CursorError, match="1 to 255 bytes"):
        await SinkWorld().cursors.open(ADA, name, None)


@pytest.mark.parametrize("name", ["a\x1b[2J", "\x9b", "\u202e", "\x7f"])
async def test_a_name_that_controls_a_terminal_is_for_old_cursors_only(name: str) -> None:
    """Such a cursor of an earlier version goes on: its reader still has its place."""
    world = SinkWorld()
    with pytest.raises(CursorError, match="must not hold control characters") as caught:
        await world.cursors.open(ADA, name, None)
    assert str(caught.value).isprintable()
    world.engine.broker.cursors.create(name, "ada", 1)
    opened = await world.run(world.cursors.open(ADA, name, None))

    assert (name, False) == (opened.name, opened.created)


async def test_cursors_are_limited_in_number_and_start_inside_the_log() -> None:
    """The errors say what to do."""
    world = SinkWorld()
    for start in (-1, 2):
        with pytest.raises(CursorError, match="is beyond the log, which ends at 1"):
            await world.cursors.open(ADA, "night", start)
    for number in range(1_000):
        world.engine.broker.cursors.create(str(number), "ada", 1)
    with pytest.raises(CursorError, match="remove an unused one"):
        await world.cursors.open(ADA, "night", None)


@pytest.mark.parametrize("verb", ["move", "remove"])
async def test_an_unknown_cursor_is_an_error(verb: str) -> None:
    """The error names it."""
    world = SinkWorld()
    calls = {
        "move": world.cursors.move(ADA, "night", 1),
        "remove": world.cursors.remove(ADA, "night"),
    }
    with pytest.raises(CursorError, match="cursor 'night': there is none"):
        await calls.pop(verb)
    for coroutine in calls.values():
        coroutine.close()


async def test_a_full_log_refuses_new_cursors_but_lets_existing_ones_move() -> None:
    """A reader that moves on makes room."""
    world = SinkWorld()
    await publish(world, 3)
    await opened(world, 1)
    world.disk.fail("pwrite", errno.ENOSPC, nth=1)
    await world.run(world.cursors.move(ADA, "night", 3))
    assert [3] == [cursor.position for cursor in world.cursors.all()]
    world.engine.log_failed(LogFullError())
    with pytest.raises(UnavailableError):
        await world.run(world.cursors.open(ADA, "day", None))

    after = SinkWorld(world.disk.kill())
    assert [("night", 3)] == [(c.name, c.position) for c in after.cursors.all()]


async def test_a_cursor_that_the_log_refuses_does_not_exist() -> None:
    """The caller gets an error."""
    world = SinkWorld()
    world.disk.fail("pwrite", errno.ENOSPC, nth=1)
    with pytest.raises(UnavailableError, match="no space"):
        await world.run(world.cursors.open(ADA, "night", None))

    assert [] == world.cursors.all()


async def test_cursors_are_unavailable_during_recovery_and_shutdown() -> None:
    """The broker makes no promises then."""
    early = Cursors(lambda: None, lambda: None)
    with pytest.raises(UnavailableError, match="recovering"):
        early.all()
    world = SinkWorld()
    world.engine.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        await world.cursors.open(ADA, "night", None)


@pytest.mark.parametrize(("force", "kept"), [(False, True), (True, False)])
async def test_retention_waits_for_a_cursor_unless_it_is_forced(
    *, force: bool, kept: bool
) -> None:
    """With force the limits win, and the lag shows what the reader lost."""
    clock = FakeClock()
    world = SinkWorld(clock=clock, wal={"retention_hours": 1, "retention_force": force})
    await opened(world, 1)
    for _ in range(8):
        await publish(world, 4, SEGMENT_BYTES // 4 * b"x")
    clock.advance(2 * HOUR_S)
    for _ in range(3):  # a snapshot needs the one before it
        await publish(world, 1)
        world.engine.take_snapshot()
        await world.finish_log()

    assert kept == (world.wal.first_id == 1)
    if kept:
        await world.run(world.cursors.move(ADA, "night", 20))
        world.engine.take_snapshot()
        await world.finish_log()
        assert 1 < world.wal.first_id <= 20


async def test_retention_goes_by_the_durable_position() -> None:
    """If a crash undoes a move, the reader must still find its messages."""
    clock = FakeClock()
    world = SinkWorld(clock=clock, wal={"retention_hours": 1})
    await opened(world, 1)
    for _ in range(8):
        await publish(world, 4, SEGMENT_BYTES // 4 * b"x")
    clock.advance(2 * HOUR_S)
    moving = asyncio.ensure_future(world.cursors.move(ADA, "night", 30))
    await world.run_without_log()
    world.engine.take_snapshot()
    before = SinkWorld(world.disk.kill(), clock=clock)
    assert 1 == before.wal.first_id <= min(c.position for c in before.cursors.all())
    await world.finish_log()
    await moving

    after = SinkWorld(world.disk.kill(), clock=clock)
    assert [30] == [cursor.position for cursor in after.cursors.all()]
