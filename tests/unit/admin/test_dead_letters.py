"""Dead letters over HTTP: where they are, and how each message died."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

import braidmq
from braidmq.admin import dead_letters
from braidmq.admin.dead_letters import open_ranges
from braidmq.admin.messages import SHOWN_BYTES_MAX
from braidmq.base.errors import LogFullError
from braidmq.client.qumbed import KeyPair
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.broker import running_broker
from braidmq.wal.wal import Wal
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.unit.admin.letters import SMALL_WINDOW, ids, letters, named, numbered
from tests.unit.admin.queue_broker import status_of
from tests.unit.admin.world import ADMIN, ORDERS, World

PRIORITY_BASED = 3
REDIRECT_TO_DLQ = 3
LETTERS = "/api/dead-letters"


def test_dead_letter_queues_are_listed_with_counts(client: TestClient, world: World) -> None:
    """Queues below `dlq.`, queues that others name as theirs, and no others; in pages."""
    world.declare("mine")
    world.declare("orders", dead_letter_name="mine")
    world.declare("quiet", dead_letter_name="never")
    world.bury("bills", b"1", b"2")
    world.bury("orders", b"1", letters="mine")
    first = client.get(LETTERS, headers=ADMIN, params={"limit": 1}).json()
    rest = client.get(LETTERS, headers=ADMIN, params={"after": first["next"]}).json()

    row = {"queue": "dlq.bills", "messageCount": 2, "inFlight": 0, "subscriberCount": 0}
    assert {"queues": [row], "next": "dlq.bills", "total": 2} == first
    assert ([("mine", 1)], None, 2) == (
        [(row["queue"], row["messageCount"]) for row in rest["queues"]],
        rest["next"],
        rest["total"],
    )


def test_a_letter_says_how_it_died(client: TestClient, world: World) -> None:
    """The names of the fields are the API; headers are those of the publisher."""
    world.bury("a", b'{"n": 1}')
    page = client.get(LETTERS, headers=ADMIN, params={"queue": "dlq.a"}).json()

    letter = {
        "offset": 2,
        "id": 'id-{"n": 1}',
        "reason": "rejected",
        "deathQueue": "a",
        "attempts": 1,
        "timestamp": "2027-01-15T08:00:00Z",
        "payload": {"n": 1},
        "encoding": "json",
        "size": 8,
        "sealed": False,
        "truncated": False,
        "headers": {"trace": "t"},
    }
    assert {"letters": [letter], "next": None} == page


def test_a_long_letter_is_truncated(client: TestClient, world: World) -> None:
    """As a long message is, and it says so."""
    world.bury("a", (SHOWN_BYTES_MAX + 1) * b"x")
    (letter,) = client.get(LETTERS, headers=ADMIN, params={"queue": "dlq.a"}).json()["letters"]

    assert (SHOWN_BYTES_MAX, SHOWN_BYTES_MAX + 1, True) == (
        len(letter["payload"]),
        letter["size"],
        letter["truncated"],
    )


def test_a_bad_offset_or_limit_is_refused(client: TestClient, world: World) -> None:
    """400, for the letters and for the queues."""
    world.bury("a", b"1")
    queries = [
        {"queue": "dlq.a", "from": "x"},
        {"queue": "dlq.a", "limit": "0"},
        {"limit": "0"},
    ]

    assert [400, 400, 400] == [
        client.get(LETTERS, headers=ADMIN, params=params).status_code for params in queries
    ]


def test_letters_are_for_keys_that_may_consume_or_purge_them(
    client: TestClient, world: World
) -> None:
    """Permission to publish is not enough: letters show the headers of other publishers."""
    world.bury("x", b"1", letters="dlq.a")
    for name in ("orders.dead", "in.dead"):
        world.declare(name)
        world.declare(f"{name}.source", dead_letter_name=name)
        world.bury("x", b"1", letters=name)
    statuses = [
        client.get(LETTERS, headers=ORDERS, params={"queue": queue}).status_code
        for queue in ("dlq.a", "orders.dead", "in.dead")
    ]
    listed = client.get(LETTERS, headers=ORDERS).json()["queues"]

    assert [403, 200, 403] == statuses
    assert ["in.dead", "orders.dead"] == [row["queue"] for row in listed]
    assert 200 == client.get(LETTERS, headers=ADMIN, params={"queue": "dlq.a"}).status_code


@pytest.mark.parametrize("name", ["orders", "dlq.none"])
def test_an_ordinary_queue_holds_no_letters(
    client: TestClient, world: World, name: str
) -> None:
    """404, as for a queue that does not exist."""
    world.declare("orders")
    answer = client.get(LETTERS, headers=ADMIN, params={"queue": name})

    assert (404, {"error": "no such queue of dead letters"}) == (
        answer.status_code,
        answer.json(),
    )


def test_before_recovery_there_are_no_letters() -> None:
    """503, while the log is read."""
    client = World(recovered=False).client()

    assert [503, 503] == [
        client.get(LETTERS, headers=ADMIN, params=params).status_code
        for params in ({}, {"queue": "dlq.a"})
    ]


@pytest.mark.asyncio
async def test_a_letter_without_details_is_shown_as_it_is() -> None:
    """Any permitted client can publish to a dead-letter queue."""
    world = World()
    world.bury("orders")
    world.publish("dlq.orders", b"x")
    (letter,) = (await letters(world, "dlq.orders")).letters

    assert (str(letter.offset), "", "", 0, 1, {}) == (
        letter.id,
        letter.reason,
        letter.death_queue,
        letter.attempts,
        letter.size,
        letter.headers,
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_letters_come_in_pages(limit: int) -> None:
    """Each once, oldest first, whatever is between them in the log."""
    payloads = numbered(10)
    world = World()
    for payload in payloads:
        world.bury("orders", payload)
        world.publish("other", payload)

    assert named(payloads) == await ids(world, "dlq.orders", limit)


@pytest.mark.asyncio
async def test_settled_letters_are_not_listed() -> None:
    """Replayed or purged, they are gone, even after a restart."""
    payloads = numbered(12)
    world = World(**SMALL_WINDOW)
    world.bury("orders", *payloads)
    assert 5 == await world.status.replays.replay("dlq.orders", 5)
    assert named(payloads[5:]) == await ids(world, "dlq.orders")
    world = World(world.disk, **SMALL_WINDOW)
    assert named(payloads[5:]) == await ids(world, "dlq.orders", 2)
    assert 7 == await world.status.queues.purge("dlq.orders")
    assert [] == await ids(world, "dlq.orders")


@pytest.mark.asyncio
async def test_each_priority_has_its_own_letters() -> None:
    """The queue has a lane for each priority, and each lane its own progress."""
    world = World()
    status = world.status
    await status.queues.create("mine", QueueOptions(mode=PRIORITY_BASED))
    await status.queues.create("orders", QueueOptions(dead_letter_name="mine"))
    world.bury("orders", b"a", b"b", letters="mine", priority=0)
    world.bury("orders", b"c", b"d", letters="mine", priority=2)
    world.bury("orders", b"e", letters="mine", priority=0)

    assert named([b"a", b"b", b"c", b"d", b"e"]) == await ids(world, "mine", 2)
    assert 3 == await status.replays.replay("mine", 3)
    assert named([b"b", b"e"]) == await ids(world, "mine", 2)


@pytest.mark.asyncio
async def test_a_page_ends_when_enough_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes read or bytes shown: the page is then short, and says where to continue."""
    payloads = numbered(6)
    world = World()
    world.bury("orders", *payloads)
    for bound in ("READ_BYTES_MAX", "PAGE_BYTES_MAX"):
        with monkeypatch.context() as patch:
            patch.setattr(dead_letters, bound, 1)
            page = await letters(world, "dlq.orders")
            assert (1, 3) == (len(page.letters), page.next)
            assert named(payloads) == await ids(world, "dlq.orders")


@pytest.mark.asyncio
async def test_the_log_is_read_on_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop goes on meanwhile, and an unreadable log is an error."""
    loop_is_running: list[bool] = []

    def read(*_: object, **__: object) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loop_is_running.append(False)
        raise LogFullError("no space left to rebuild an index")

    world = World()
    world.bury("orders", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(Wal, "read", read)
        with pytest.raises(UnavailableError, match="no space left to rebuild"):
            await letters(world, "dlq.orders")

    assert [False] == loop_is_running


@pytest.mark.asyncio
async def test_a_sealed_letter_says_so() -> None:
    """So that no reader takes it for noise or tries to read it."""
    recipient = KeyPair.generate().public_key
    rules = QueueOptions(max_size=1, overflow=REDIRECT_TO_DLQ)
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("qumbed")) as qumbed,
        braidmq.connect(broker.url("blip")) as blip,
    ):
        await status_of(broker).queues.create("mail", rules)
        await blip.publish("mail", b"waits")
        await blip.publish("mail", b"plain")
        await qumbed.publish("mail", b"secret", recipient=recipient)
        page = await letters(broker, "dlq.mail")

        assert [False, True] == [letter.sealed for letter in page.letters]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=8), st.integers(0, 30)
)
def test_open_ranges_are_those_that_are_not_settled(
    found: list[tuple[int, int]], up_to: int
) -> None:
    """Whatever the ranges and their order; none is empty, and no two overlap."""
    settled = [(after, after + count) for after, count in found]
    closed = {number for after, last in settled for number in range(after + 1, last + 1)}
    opened = open_ranges(settled, up_to)
    flat = [number for after, last in opened for number in range(after + 1, last + 1)]

    assert [number for number in range(1, up_to + 1) if number not in closed] == flat
    assert all(after < last for after, last in opened)
