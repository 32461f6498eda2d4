"""Dead letters as an administrator has them: found, read from the log, sent back."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import braidmq
from braidmq.admin.dead_letters import LettersPage
from braidmq.admin.http.refusals import (
    FanOutError,
    LetterStaysError,
    UnknownQueueError,
    UnknownThingError,
)
from braidmq.admin.queries import dead_letters
from braidmq.admin.queries.dead_letters import open_ranges
from braidmq.base.errors import LogFullError
from braidmq.client.qumbed import KeyPair
from braidmq.daemon import daemon
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.testing.disk import FakeDisk
from braidmq.wal.wal import Wal
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import until
from tests.unit.admin.queries.queue_broker import bury, engine_of, publish, status_of

SMALL_WINDOW: dict[str, object] = {"delivery": {"window": 4}}
PRIORITY_BASED = 3
FAN_OUT_WITH_ACK = 1
REDIRECT_TO_DLQ = 3


async def ids(broker: RunningBroker, queue: str, limit: int = 100) -> list[str]:
    """Return the ids of all letters, asked for page by page."""
    found: list[str] = []
    following: int | None = 1
    while following is not None:
        page = await letters(broker, queue, from_offset=following, limit=limit)
        assert len(page.letters) <= limit
        found += [letter.message_id for letter in page.letters]
        following = page.next_offset
    return found


async def letters(
    broker: RunningBroker, queue: str, *, from_offset: int = 1, limit: int = 100
) -> LettersPage:
    source = status_of(broker).letters
    return await source.letters(queue, from_offset=from_offset, limit=limit)


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def named(payloads: list[bytes]) -> list[str]:
    return [f"id-{payload.decode()}" for payload in payloads]


@pytest.mark.asyncio
async def test_a_letter_says_what_became_of_it() -> None:
    """Its end stands beside the headers, which are what the publisher gave it."""
    async with running_broker() as broker:
        await bury(broker, "orders", b"12345")
        (letter,) = (await letters(broker, "dlq.orders")).letters

        assert ("id-12345", "rejected", "orders", 1, 5, {"trace": "t"}) == (
            letter.message_id,
            letter.reason,
            letter.death_queue,
            letter.attempts,
            len(letter.payload),
            letter.headers,
        )
        assert (2, broker.clock.now_us()) == (letter.offset, letter.timestamp_us)


@pytest.mark.asyncio
async def test_a_letter_that_says_nothing_is_shown_as_it_is() -> None:
    """Anyone who may can publish to a queue of dead letters."""
    async with running_broker() as broker:
        await bury(broker, "orders")
        await publish(broker, "dlq.orders", b"x")
        (letter,) = (await letters(broker, "dlq.orders")).letters

        assert (str(letter.offset), "", "", 0, 1, {}) == (
            letter.message_id,
            letter.reason,
            letter.death_queue,
            letter.attempts,
            len(letter.payload),
            letter.headers,
        )


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_letters_come_in_pages(limit: int) -> None:
    """Each once, oldest first, whatever is between them in the log."""
    payloads = numbered(10)
    async with running_broker() as broker:
        for payload in payloads:
            await bury(broker, "orders", payload)
            await publish(broker, "other", payload)

        assert named(payloads) == await ids(broker, "dlq.orders", limit)


@pytest.mark.asyncio
async def test_settled_letters_are_not_listed(tmp_path: Path) -> None:
    """Sent back or purged, they are gone, and after a restart too."""
    payloads = numbered(12)
    async with running_broker(data_dir=tmp_path, config=SMALL_WINDOW) as broker:
        await bury(broker, "orders", *payloads)
        assert 5 == await status_of(broker).letters.replay("dlq.orders", 5)
        assert named(payloads[5:]) == await ids(broker, "dlq.orders")
        clock = broker.clock
    async with running_broker(data_dir=tmp_path, config=SMALL_WINDOW, clock=clock) as broker:
        assert named(payloads[5:]) == await ids(broker, "dlq.orders", 2)
        assert 7 == await status_of(broker).queues.purge("dlq.orders")
        assert [] == await ids(broker, "dlq.orders")


@pytest.mark.asyncio
async def test_each_priority_has_its_own_letters() -> None:
    """In a queue with a lane for each, one lane's progress is not another's."""
    async with running_broker() as broker:
        status = status_of(broker)
        await status.queues.create("mine", QueueOptions(mode=PRIORITY_BASED))
        await status.queues.create("orders", QueueOptions(dead_letter_name="mine"))
        await bury(broker, "orders", b"a", b"b", letters="mine", priority=0)
        await bury(broker, "orders", b"c", b"d", letters="mine", priority=2)
        await bury(broker, "orders", b"e", letters="mine", priority=0)

        assert named([b"a", b"b", b"c", b"d", b"e"]) == await ids(broker, "mine", 2)
        assert 3 == await status.letters.replay("mine", 3)
        assert named([b"b", b"e"]) == await ids(broker, "mine", 2)


@pytest.mark.asyncio
async def test_a_page_ends_when_enough_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes read and by bytes shown: it is short then, and says where to go on."""
    payloads = numbered(6)
    async with running_broker() as broker:
        await bury(broker, "orders", *payloads)
        for bound in ("READ_BYTES_MAX", "PAGE_BYTES_MAX"):
            with monkeypatch.context() as patch:
                patch.setattr(dead_letters, bound, 1)
                page = await letters(broker, "dlq.orders")
                assert (1, 3) == (len(page.letters), page.next_offset)
                assert named(payloads) == await ids(broker, "dlq.orders")


@pytest.mark.asyncio
async def test_the_log_is_read_on_a_thread_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has better things to do, and a log that cannot be read is told."""
    loop_is_running: list[bool] = []

    def read(*_: object, **__: object) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            loop_is_running.append(False)
        raise LogFullError("no space left to rebuild an index")

    async with running_broker() as broker:
        await bury(broker, "orders", b"1")
        with monkeypatch.context() as patch:
            patch.setattr(Wal, "read", read)
            with pytest.raises(UnavailableError, match="no space left to rebuild"):
                await letters(broker, "dlq.orders")

    assert [False] == loop_is_running


@pytest.mark.asyncio
async def test_a_letter_that_is_sealed_says_so() -> None:
    """As it was when it was a message: nobody takes it for noise, or tries to read it."""
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


@pytest.mark.asyncio
async def test_queues_of_dead_letters_are_listed() -> None:
    """Those below `dlq.`, those that others declare as theirs, and no other."""
    async with running_broker() as broker:
        status = status_of(broker)
        await status.queues.create("mine", QueueOptions())
        await status.queues.create("orders", QueueOptions(dead_letter_name="mine"))
        await status.queues.create("quiet", QueueOptions(dead_letter_name="never"))
        await bury(broker, "bills", b"1", b"2")
        await bury(broker, "orders", b"1", letters="mine")
        first = await status.letters.page(after="", limit=1, visible=lambda _: True)
        rest = await status.letters.page(after="dlq.bills", limit=9, visible=lambda _: True)

        assert ([("dlq.bills", 2)], "dlq.bills", 2) == (
            [(facts.name, facts.waiting) for facts in first.queues],
            first.next,
            first.total,
        )
        assert ([("mine", 1)], None) == (
            [(facts.name, facts.waiting) for facts in rest.queues],
            rest.next,
        )


@pytest.mark.asyncio
async def test_a_replay_sends_the_oldest_back_to_where_they_came_from(tmp_path: Path) -> None:
    """However many are in the log only; it is over when all of it is committed."""
    payloads = numbered(40)
    async with running_broker(data_dir=tmp_path, config=SMALL_WINDOW) as broker:
        status = status_of(broker)
        await status.queues.create("orders", QueueOptions())
        await bury(broker, "orders", *payloads)
        assert 15 == await status.letters.replay("dlq.orders", 15)
        assert engine_of(broker).is_committed()
        assert (15, 25) == (
            status.queues.facts("orders").waiting,
            status.queues.facts("dlq.orders").waiting,
        )
        assert [25, 0] == [await status.letters.replay("dlq.orders", None) for _ in range(2)]
        clock = broker.clock
    async with running_broker(data_dir=tmp_path, config=SMALL_WINDOW, clock=clock) as broker:
        status = status_of(broker)

        assert (40, 0) == (
            status.queues.facts("orders").waiting,
            status.queues.facts("dlq.orders").waiting,
        )


@pytest.mark.asyncio
async def test_more_than_there_are_is_all_of_them() -> None:
    """The answer says how many went."""
    async with running_broker() as broker:
        await bury(broker, "orders", b"1", b"2")

        assert 2 == await status_of(broker).letters.replay("dlq.orders", 1000)


@pytest.mark.asyncio
async def test_what_does_not_say_where_it_came_from_stays() -> None:
    """It does not count as sent back, and does not keep the others from going."""
    async with running_broker() as broker:
        await bury(broker, "orders")
        await publish(broker, "dlq.orders", b"x")
        await bury(broker, "orders", b"1", b"2")

        assert 2 == await status_of(broker).letters.replay("dlq.orders", None)
        assert 1 == len(await ids(broker, "dlq.orders"))


@pytest.mark.asyncio
async def test_replays_of_two_administrators_count_each_letter_once() -> None:
    """One goes after the other."""
    async with running_broker() as broker:
        source = status_of(broker).letters
        await bury(broker, "orders", *numbered(30))
        counts = await asyncio.gather(
            source.replay("dlq.orders", 20), source.replay("dlq.orders", 20)
        )

        assert (20, 10) == tuple(counts)


@pytest.mark.asyncio
async def test_a_log_that_refuses_is_told() -> None:
    """Before anything is sent back; and the letters stay."""
    async with running_broker() as broker:
        await bury(broker, "orders", b"1")
        engine_of(broker).broker.admission.log_refuses("no space left on the log's disk")
        with pytest.raises(UnavailableError, match="no space left"):
            await status_of(broker).letters.replay("dlq.orders", None)
        engine_of(broker).broker.admission.log_accepts()

        assert ["id-1"] == await ids(broker, "dlq.orders")


@pytest.mark.asyncio
async def test_a_fan_out_keeps_its_letters() -> None:
    """Each subscriber has its own to acknowledge; to say that none went would hide it."""
    async with running_broker() as broker:
        status = status_of(broker)
        await status.queues.create("mine", QueueOptions(mode=FAN_OUT_WITH_ACK))
        await status.queues.create("orders", QueueOptions(dead_letter_name="mine"))
        await bury(broker, "orders", b"1", letters="mine")

        assert ["id-1"] == await ids(broker, "mine")
        with pytest.raises(FanOutError):
            await status.letters.replay("mine", None)


@pytest.mark.asyncio
async def test_an_ordinary_queue_holds_no_letters() -> None:
    """Neither does one that is not there."""
    async with running_broker() as broker:
        status = status_of(broker)
        await status.queues.create("orders", QueueOptions())
        for name in ("orders", "dlq.none"):
            with pytest.raises(UnknownQueueError, match="no such queue of dead letters"):
                await status.letters.letters(name, from_offset=1, limit=1)
            with pytest.raises(UnknownQueueError):
                await status.letters.replay(name, None)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 5)), max_size=8), st.integers(0, 30)
)
def test_open_is_what_is_not_settled(found: list[tuple[int, int]], up_to: int) -> None:
    """Whatever the ranges, in whatever order; none is empty, and none meets another."""
    settled = [(after, after + count) for after, count in found]
    closed = {number for after, last in settled for number in range(after + 1, last + 1)}
    opened = open_ranges(settled, up_to)
    flat = [number for after, last in opened for number in range(after + 1, last + 1)]

    assert [number for number in range(1, up_to + 1) if number not in closed] == flat
    assert all(after < last for after, last in opened)


@pytest.mark.asyncio
async def test_one_letter_is_sent_back_and_the_others_stay(tmp_path: Path) -> None:
    """Wherever it stands among those that are held, and after a restart it stays sent."""
    payloads = numbered(4)
    async with running_broker(data_dir=tmp_path) as broker:
        status = status_of(broker)
        await status.queues.create("orders", QueueOptions())
        await bury(broker, "orders", *payloads)
        offsets = [letter.offset for letter in (await letters(broker, "dlq.orders")).letters]
        await status.letters.replay_one("dlq.orders", offsets[2])
        clock = broker.clock
    async with running_broker(data_dir=tmp_path, clock=clock) as broker:
        status = status_of(broker)
        assert named([payloads[0], payloads[1], payloads[3]]) == await ids(broker, "dlq.orders")
        await status.letters.replay_one("dlq.orders", offsets[0])

        assert (2, 2) == (
            status.queues.facts("orders").waiting,
            status.queues.facts("dlq.orders").waiting,
        )


@pytest.mark.asyncio
async def test_any_letter_is_sent_back_however_many_wait_before_it(tmp_path: Path) -> None:
    """Few are held in memory, before and after; it is not met again after a restart."""
    payloads = numbered(20)
    async with running_broker(config=SMALL_WINDOW, data_dir=tmp_path) as broker:
        status = status_of(broker)
        await status.queues.create("orders", QueueOptions())
        await bury(broker, "orders", *payloads)
        offsets = [letter.offset for letter in (await letters(broker, "dlq.orders")).letters]
        for number in (19, 0, 10):
            await status.letters.replay_one("dlq.orders", offsets[number])
            with pytest.raises(UnknownThingError, match="no such letter"):
                await status.letters.replay_one("dlq.orders", offsets[number])
        assert [] == list(engine_of(broker).broker.queues.by_name["dlq.orders"].lanes[0].ready)
        clock = broker.clock
    async with running_broker(config=SMALL_WINDOW, data_dir=tmp_path, clock=clock) as broker:
        status = status_of(broker)
        left = named([*payloads[1:10], *payloads[11:19]])

        assert left == await ids(broker, "dlq.orders")
        assert 3 == status.queues.facts("orders").waiting
        assert 17 == await status.letters.replay("dlq.orders", None)
        assert 20 == status.queues.facts("orders").waiting


@pytest.mark.asyncio
async def test_a_letter_that_the_log_does_not_take_is_not_told_to_be_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A full disk refuses it; it waits where it was, and all before it, after a restart too."""
    disk = FakeDisk()
    monkeypatch.setattr(daemon, "Disk", lambda _: disk)
    config = {**SMALL_WINDOW, "wal": {"segment_bytes": 64 * 1024}}
    large = b"9" * 40_000
    async with running_broker(config=config, data_dir=tmp_path) as broker:
        status = status_of(broker)
        await status.queues.create("orders", QueueOptions())
        await bury(broker, "orders", *numbered(9), large)
        last = (await letters(broker, "dlq.orders")).letters[-1].offset
        disk.capacity = disk.used_bytes
        with pytest.raises(UnavailableError, match="no space left"):
            await status.letters.replay_one("dlq.orders", last)
        assert (10, 0) == (
            status.queues.facts("dlq.orders").waiting,
            status.queues.facts("orders").waiting,
        )
        disk.capacity = None
        await until(lambda: not status.metrics().wal_full)
        engine_of(broker).take_snapshot()
        clock = broker.clock
    async with running_broker(config=config, data_dir=tmp_path, clock=clock) as broker:
        assert named([*numbered(9), large]) == await ids(broker, "dlq.orders")
        await status_of(broker).letters.replay_one("dlq.orders", last)

        assert named(numbered(9)) == await ids(broker, "dlq.orders")


@pytest.mark.asyncio
async def test_a_letter_that_cannot_go_alone_is_named() -> None:
    """It is not there, or says nothing of where it came from."""
    async with running_broker(config=SMALL_WINDOW) as broker:
        status = status_of(broker)
        await bury(broker, "orders", *numbered(20))
        await publish(broker, "dlq.bills", b"x")
        await bury(broker, "bills")
        await publish(broker, "dlq.bills", b"y")
        last = (await letters(broker, "dlq.orders")).letters[-1].offset
        (strange,) = (await letters(broker, "dlq.bills")).letters
        for missing in (last + 1, last - 20):
            with pytest.raises(UnknownThingError, match="no such letter"):
                await status.letters.replay_one("dlq.orders", missing)
        with pytest.raises(LetterStaysError, match="does not say where it came from"):
            await status.letters.replay_one("dlq.bills", strange.offset)
        with pytest.raises(UnknownQueueError):
            await status.letters.replay_one("orders", last)

        assert named(numbered(20)) == await ids(broker, "dlq.orders")
