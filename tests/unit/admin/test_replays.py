"""Replays over HTTP: dead letters return to where they came from, all, some, or one."""

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.refusals import (
    FanOutError,
    ForbiddenNameError,
    LetterStaysError,
    UnknownLettersError,
    UnknownThingError,
)
from braidmq.broker.authorize import Principal
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.disk import FakeDisk
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.unit.admin.letters import SMALL_WINDOW, ids, letters, named, numbered
from tests.unit.admin.world import ADMIN, KEYS, ORDERS, ROOT, ROOT_CONFIG, World

FAN_OUT_WITH_ACK = 1
REPLAY = "/api/dead-letters/replay"


@pytest.fixture
def world() -> World:
    """A broker with one more key, that of an administrator that may publish."""
    return World(auth={"keys": [*KEYS, ROOT_CONFIG]})


def test_a_replay_reports_how_many_letters_it_returned(
    client: TestClient, world: World
) -> None:
    """Without a count, or with null, all of them."""
    world.bury("a", *5 * [b"x"])
    bodies: list[dict[str, object]] = [
        {"queue": "dlq.a", "count": 2},
        {"queue": "dlq.a", "count": None},
        {"queue": "dlq.a"},
    ]
    answers = [client.post(REPLAY, headers=ROOT, json=body).json() for body in bodies]

    assert [{"queue": "dlq.a", "replayed": count} for count in (2, 3, 0)] == answers


BAD_REPLAYS: list[tuple[object, str]] = [
    ({}, "queue: must be the name of a queue"),
    ({"queue": "dlq.a", "count": 0}, "count: must be a whole number from 1 to 2147483647"),
    ({"queue": "dlq.a", "count": True}, "count: must be a whole number"),
    ({"queue": "dlq.a", "count": "2"}, "count: must be a whole number"),
    ({"queue": "dlq.a", "count": 2**31}, "count: must be a whole number"),
    ({"queue": "dlq.a", "n": 1}, "n: unknown field; known fields are count, offset, queue"),
]


@pytest.mark.parametrize(("body", "problem"), BAD_REPLAYS)
def test_the_error_names_a_bad_value(
    client: TestClient, world: World, body: object, problem: str
) -> None:
    """400, and nothing is replayed."""
    world.bury("a", b"1")
    answer = client.post(REPLAY, headers=ADMIN, json=body)

    assert 400 == answer.status_code
    assert answer.json()["error"].startswith(problem)
    assert 1 == world.status.queues.facts("dlq.a").waiting


def test_a_replay_needs_a_key_that_may_purge(client: TestClient, world: World) -> None:
    """A replayed letter leaves its queue."""
    world.declare("orders.dead")
    world.declare("x", dead_letter_name="orders.dead")
    world.bury("x", b"1", letters="orders.dead")
    body = {"queue": "orders.dead"}
    answers = [client.post(REPLAY, headers=headers, json=body) for headers in ({}, ORDERS)]

    assert [401, 403] == [answer.status_code for answer in answers]
    assert 1 == world.status.queues.facts("orders.dead").waiting


@pytest.mark.parametrize("which", [{}, {"offset": 3}])
def test_a_replay_needs_a_key_that_may_publish_where_the_letter_came_from(
    client: TestClient, world: World, which: dict[str, object]
) -> None:
    """An administrator without that pattern is refused, and the letter stays."""
    world.bury("a", b"1", b"2", b"3")
    answer = client.post(REPLAY, headers=ADMIN, json={"queue": "dlq.a", **which})

    problem = "this API key lacks the permission publish on a, where a letter came from"
    assert (403, {"error": problem}) == (answer.status_code, answer.json())
    assert 3 == world.status.queues.facts("dlq.a").waiting


@pytest.mark.asyncio
async def test_a_replay_ends_at_the_first_letter_that_it_may_not_send() -> None:
    """Those before it are sent; it and those after it wait for consumers, in their order."""
    world = World()
    world.declare("in.a", dead_letter_name="shared")
    world.declare("b", dead_letter_name="shared")
    for name, payload in (("in.a", b"1"), ("b", b"2"), ("in.a", b"3")):
        world.bury(name, payload, letters="shared")
    by = Principal("ops", publish=["in.*"], subscribe=[], admin=True)
    with pytest.raises(ForbiddenNameError) as refused:
        await world.status.replays.replay("shared", None, by)

    assert "on b, where a letter came from; 1 before it were sent back" in str(refused.value)
    assert [1, 2] == [world.status.queues.facts(name).waiting for name in ("in.a", "shared")]


@pytest.mark.parametrize("name", ["orders", "dlq.none"])
def test_an_ordinary_queue_has_no_letters_to_replay(
    client: TestClient, world: World, name: str
) -> None:
    """404, as for a queue that does not exist."""
    world.declare("orders")
    answer = client.post(REPLAY, headers=ADMIN, json={"queue": name})

    assert (404, {"error": "no such queue of dead letters"}) == (
        answer.status_code,
        answer.json(),
    )


def test_one_letter_is_replayed_by_its_offset(client: TestClient, world: World) -> None:
    """Only that one; an unknown offset is 404, and a count beside it is refused."""
    world.bury("a", b"1", b"2", b"3")  # at the offsets 2 to 4
    bodies: list[dict[str, object]] = [
        {"queue": "dlq.a", "offset": 3},
        {"queue": "dlq.a", "offset": 5},
        {"queue": "dlq.a", "offset": 4, "count": 1},
        {"queue": "dlq.a", "offset": 0},
    ]
    answers = [client.post(REPLAY, headers=ROOT, json=body) for body in bodies]

    assert [200, 404, 400, 400] == [answer.status_code for answer in answers]
    assert {"queue": "dlq.a", "replayed": 1} == answers[0].json()
    assert ["id-1", "id-3"] == asyncio.run(ids(world, "dlq.a"))


@pytest.mark.asyncio
async def test_a_replay_returns_the_oldest_letters_to_their_queue() -> None:
    """However many are only in the log; it ends when everything is committed."""
    payloads = numbered(40)
    world = World(**SMALL_WINDOW)
    status = world.status
    await status.queues.create("orders", QueueOptions())
    world.bury("orders", *payloads)
    assert 15 == await status.replays.replay("dlq.orders", 15)
    assert world.engine.is_committed()
    assert (15, 25) == (
        status.queues.facts("orders").waiting,
        status.queues.facts("dlq.orders").waiting,
    )
    assert [25, 0] == [await status.replays.replay("dlq.orders", None) for _ in range(2)]
    world = World(world.disk, **SMALL_WINDOW)
    status = world.status

    assert (40, 0) == (
        status.queues.facts("orders").waiting,
        status.queues.facts("dlq.orders").waiting,
    )


@pytest.mark.asyncio
async def test_a_count_beyond_the_letters_replays_all_of_them() -> None:
    """The answer says how many there were."""
    world = World()
    world.bury("orders", b"1", b"2")

    assert 2 == await world.status.replays.replay("dlq.orders", 1000)


@pytest.mark.asyncio
async def test_a_letter_without_an_origin_stays() -> None:
    """It does not count as replayed, and does not hold up the others."""
    world = World()
    world.bury("orders")
    world.publish("dlq.orders", b"x")
    world.bury("orders", b"1", b"2")

    assert 2 == await world.status.replays.replay("dlq.orders", None)
    assert 1 == len(await ids(world, "dlq.orders"))


@pytest.mark.asyncio
async def test_replays_of_two_administrators_count_each_letter_once() -> None:
    """One replay runs after the other."""
    world = World()
    source = world.status.replays
    world.bury("orders", *numbered(30))
    counts = await asyncio.gather(
        source.replay("dlq.orders", 20), source.replay("dlq.orders", 20)
    )

    assert (20, 10) == tuple(counts)


@pytest.mark.asyncio
async def test_a_replay_that_the_log_refuses_is_unavailable() -> None:
    """Before anything is replayed; the letters stay."""
    world = World()
    world.bury("orders", b"1")
    world.engine.broker.admission.log_refuses("no space left on the log's disk")
    with pytest.raises(UnavailableError, match="no space left"):
        await world.status.replays.replay("dlq.orders", None)
    world.engine.broker.admission.log_accepts()

    assert ["id-1"] == await ids(world, "dlq.orders")


@pytest.mark.asyncio
async def test_a_fan_out_keeps_its_letters() -> None:
    """Each subscriber acknowledges its own; an answer of 0 replayed would hide that."""
    world = World()
    status = world.status
    await status.queues.create("mine", QueueOptions(mode=FAN_OUT_WITH_ACK))
    await status.queues.create("orders", QueueOptions(dead_letter_name="mine"))
    world.bury("orders", b"1", letters="mine")

    assert ["id-1"] == await ids(world, "mine")
    with pytest.raises(FanOutError):
        await status.replays.replay("mine", None)


@pytest.mark.asyncio
async def test_one_letter_is_replayed_and_the_others_stay() -> None:
    """Wherever it stands among those in memory; after a restart it stays replayed."""
    payloads = numbered(4)
    world = World()
    status = world.status
    await status.queues.create("orders", QueueOptions())
    world.bury("orders", *payloads)
    offsets = [letter.offset for letter in (await letters(world, "dlq.orders")).letters]
    await status.replays.replay_one("dlq.orders", offsets[2])
    world = World(world.disk)
    status = world.status
    assert named([payloads[0], payloads[1], payloads[3]]) == await ids(world, "dlq.orders")
    await status.replays.replay_one("dlq.orders", offsets[0])

    assert (2, 2) == (
        status.queues.facts("orders").waiting,
        status.queues.facts("dlq.orders").waiting,
    )


@pytest.mark.asyncio
async def test_any_letter_is_replayed_however_many_wait_before_it() -> None:
    """Few are in memory, before and after; it does not return after a restart."""
    payloads = numbered(20)
    world = World(**SMALL_WINDOW)
    status = world.status
    await status.queues.create("orders", QueueOptions())
    world.bury("orders", *payloads)
    offsets = [letter.offset for letter in (await letters(world, "dlq.orders")).letters]
    for number in (19, 0, 10):
        await status.replays.replay_one("dlq.orders", offsets[number])
        with pytest.raises(UnknownThingError, match="no such letter"):
            await status.replays.replay_one("dlq.orders", offsets[number])
    assert [] == list(world.engine.broker.queues.by_name["dlq.orders"].lanes[0].ready)
    world = World(world.disk, **SMALL_WINDOW)
    status = world.status
    left = named([*payloads[1:10], *payloads[11:19]])

    assert left == await ids(world, "dlq.orders")
    assert 3 == status.queues.facts("orders").waiting
    assert 17 == await status.replays.replay("dlq.orders", None)
    assert 20 == status.queues.facts("orders").waiting


@pytest.mark.asyncio
async def test_a_letter_that_the_log_refuses_stays() -> None:
    """On a full disk it waits where it was, and so do all before it, even after a restart."""
    disk = FakeDisk()
    config: dict[str, Any] = {**SMALL_WINDOW, "wal": {"segment_bytes": 64 * 1024}}
    large = b"9" * 40_000
    world = World(disk, **config)
    status = world.status
    await status.queues.create("orders", QueueOptions())
    world.bury("orders", *numbered(9), large)
    last = (await letters(world, "dlq.orders")).letters[-1].offset
    disk.capacity = disk.used_bytes
    with pytest.raises(UnavailableError, match="no space left"):
        await status.replays.replay_one("dlq.orders", last)
    assert (10, 0) == (
        status.queues.facts("dlq.orders").waiting,
        status.queues.facts("orders").waiting,
    )
    disk.capacity = None
    world.engine.look_for_room()
    world.settle()
    assert not world.status.metrics().wal_full
    world.engine.take_snapshot()
    world = World(world.disk, **config)
    assert named([*numbered(9), large]) == await ids(world, "dlq.orders")
    await world.status.replays.replay_one("dlq.orders", last)

    assert named(numbered(9)) == await ids(world, "dlq.orders")


@pytest.mark.asyncio
async def test_a_letter_that_cannot_be_replayed_is_an_error() -> None:
    """It does not exist, or does not say where it came from."""
    world = World(**SMALL_WINDOW)
    status = world.status
    world.bury("orders", *numbered(20))
    world.publish("dlq.bills", b"x")
    world.bury("bills")
    world.publish("dlq.bills", b"y")
    last = (await letters(world, "dlq.orders")).letters[-1].offset
    (without_origin,) = (await letters(world, "dlq.bills")).letters
    for missing in (last + 1, last - 20):
        with pytest.raises(UnknownThingError, match="no such letter"):
            await status.replays.replay_one("dlq.orders", missing)
    with pytest.raises(LetterStaysError, match="has no valid origin"):
        await status.replays.replay_one("dlq.bills", without_origin.offset)
    with pytest.raises(UnknownLettersError):
        await status.replays.replay_one("orders", last)

    assert named(numbered(20)) == await ids(world, "dlq.orders")
