"""Messages over HTTP: read from the log, published as by any strand."""

import asyncio
import base64
from typing import Any

import pytest

import braidmq
from braidmq.admin.http.refusals import QueueFullError, UnknownMessageError, UnknownTopicError
from braidmq.admin.messages import StoredPage
from braidmq.admin.queries import messages
from braidmq.admin.queries.log_reading import read_log
from braidmq.admin.queries.messages import is_sealed
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.unit.admin.queries.queue_broker import engine_of, publish, status_of

pytestmark = pytest.mark.asyncio

SECOND_US = 1_000_000
DROP_NEWEST, BLOCK_PUBLISHER = 1, 2


async def page(
    broker: RunningBroker,
    *,
    from_offset: int | None = None,
    time_us: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> StoredPage:
    return await status_of(broker).messages.page(
        "t", from_offset=from_offset, time_us=time_us, limit=limit, newest_first=newest_first
    )


async def payloads(broker: RunningBroker, *, limit: int, newest_first: bool) -> list[bytes]:
    """Return all payloads of `t`, asked for page by page."""
    found: list[bytes] = []
    following: int | None = None
    while True:
        one = await page(broker, from_offset=following, limit=limit, newest_first=newest_first)
        assert len(one.messages) <= limit
        found += [message.payload for message in one.messages]
        following = one.next_offset
        if following is None:
            return found


async def post(broker: RunningBroker, topic: str, payload: bytes, **headers: str) -> int | None:
    return await status_of(broker).messages.publish(
        topic, payload, headers=headers, qos=1, priority=2
    )


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize("segment_bytes", [65_536, 2**20])
async def test_messages_come_in_pages_both_ways(
    limit: int, newest_first: bool, segment_bytes: int
) -> None:
    """Each once, whatever lies between them in the log, over segments too."""
    expected = [b"%02d" % number for number in range(10)]
    async with running_broker(config={"wal": {"segment_bytes": segment_bytes}}) as broker:
        for payload in expected:
            await publish(broker, "t", payload)
            await publish(broker, "other", 20_000 * b"x")
        found = await payloads(broker, limit=limit, newest_first=newest_first)

        assert (expected[::-1] if newest_first else expected) == found


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_ends_when_enough_was_read(
    monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    """By bytes and by ids that were searched: it is short then, and says where to go on."""
    expected = [b"%02d" % number for number in range(7)]
    async with running_broker() as broker:
        for payload in expected:
            await publish(broker, "t", payload)
            await publish(broker, "other", b"x")
        for bound in ("READ_BYTES_MAX", "READ_ROWS_MAX", "GROUP_MESSAGES"):
            with monkeypatch.context() as patch:
                patch.setattr(messages, bound, 2)
                first = await page(broker, newest_first=newest_first)
                if bound == "READ_BYTES_MAX":
                    assert 1 == len(first.messages)
                found = await payloads(broker, limit=100, newest_first=newest_first)
                assert (expected[::-1] if newest_first else expected) == found


async def test_one_page_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one message: what is read is held until it is answered, and that is the bound."""
    began = 0
    may_end = asyncio.Event()

    async def slowly(*given: Any, **named: Any) -> object:  # noqa: ANN401 - handed on as they come
        nonlocal began
        began += 1
        await may_end.wait()
        return await read_log(*given, **named)

    async with running_broker() as broker:
        await publish(broker, "t", b"x")
        monkeypatch.setattr(messages, "read_log", slowly)
        asked = [
            asyncio.ensure_future(asking)
            for asking in (page(broker), status_of(broker).messages.one("t", 1), page(broker))
        ]
        for _ in range(100):  # turns of the loop, in which the others could begin
            await asyncio.sleep(0)
        assert 1 == began
        may_end.set()
        await asyncio.gather(*asked)

        assert 3 == began


async def test_a_page_begins_at_a_time() -> None:
    """Forwards with the first that is not older, backwards with the last that is not newer."""
    async with running_broker() as broker:
        start_us = broker.clock.now_us()
        for number in range(5):
            await publish(broker, "t", b"%d" % number)
            broker.clock.advance(1.0)
        middle_us = start_us + 2 * SECOND_US
        forwards = await page(broker, time_us=middle_us)
        backwards = await page(broker, time_us=middle_us, newest_first=True)

        assert [b"2", b"3", b"4"] == [message.payload for message in forwards.messages]
        assert [b"2", b"1", b"0"] == [message.payload for message in backwards.messages]
        assert [] == (await page(broker, time_us=start_us + 99 * SECOND_US)).messages


async def test_a_message_says_all_that_the_log_knows() -> None:
    """Its publisher's id stands beside the headers, not among them."""
    async with running_broker() as broker:
        async with braidmq.connect(broker.url("vibe")) as client:
            await client.publish("t", b'{"n": 1}', headers={"k": "v"}, priority=2)
        (message,) = (await page(broker)).messages
        alone = await status_of(broker).messages.one("t", message.offset)

        assert message == alone
        assert (b'{"n": 1}', "vibe", 2, "v") == (
            message.payload,
            message.origin,
            message.priority,
            message.headers["k"],
        )
        assert message.message_id
        assert "" not in message.headers


async def test_what_is_not_there_is_told() -> None:
    """An unknown topic, an offset of another topic, one that is not written yet."""
    async with running_broker() as broker:
        await publish(broker, "t", b"x")
        await publish(broker, "other", b"x")
        source = status_of(broker).messages
        with pytest.raises(UnknownTopicError):
            await source.one("none", 1)
        for offset in (2, 3, 2**64 - 1):
            with pytest.raises(UnknownMessageError):
                await source.one("t", offset)
        past = await page(broker, from_offset=2**64 - 1)

        assert ([], None) == (past.messages, past.next_offset)


async def test_what_is_published_is_durable_and_delivered() -> None:
    """To subscribers of any strand, with the origin of HTTP."""
    async with running_broker() as broker, braidmq.connect(broker.url()) as client:
        async with client.subscribe("t", qos=1) as incoming:
            offset = await post(broker, "t", b"hello", k="v")
            assert offset is not None
            assert offset <= engine_of(broker).broker.committed_id
            message = await anext(aiter(incoming))
            await message.ack()
        stored = await status_of(broker).messages.one("t", offset)

        assert (b"hello", b"hello", "http", 2, {"k": "v"}) == (
            message.payload,
            stored.payload,
            stored.origin,
            stored.priority,
            stored.headers,
        )


async def test_a_repeat_is_recognised() -> None:
    """By the same header as on other strands; it gets the same offset."""
    async with running_broker() as broker:
        offsets = [await post(broker, "t", b"x", dedupId="1") for _ in range(3)]

        assert 1 == len(set(offsets))
        assert 1 == len((await page(broker)).messages)


async def test_a_repeat_is_recognised_while_both_wait_for_room() -> None:
    """A client that lost its patience asks again; room for two does not make two of one."""
    async with running_broker() as broker:
        queues = status_of(broker).queues
        await queues.create("q", QueueOptions(max_size=2, overflow=BLOCK_PUBLISHER))
        await publish(broker, "q", b"1", b"2")
        waiting = [
            asyncio.ensure_future(post(broker, "q", b"x", dedupId="1")) for _ in range(2)
        ]
        for _ in range(100):  # turns of the loop, in which both begin to wait
            await asyncio.sleep(0)
        await queues.purge("q")
        first, second = await asyncio.gather(*waiting)

        assert first == second
        assert 1 == engine_of(broker).broker.stats.duplicates


async def test_a_memory_only_message_has_no_offset() -> None:
    """It is handed to who is there, and is not in the log."""
    async with running_broker() as broker:
        given = await status_of(broker).messages.publish(
            "t", b"x", headers={}, qos=0, priority=1
        )

        assert None is given
        assert 1 == engine_of(broker).broker.stats.published
        assert [] == (await page(broker)).messages


async def test_a_full_queue_refuses_waits_or_buries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was declared."""
    monkeypatch.setattr(messages, "ROOM_WAIT_S", 0.05)
    async with running_broker() as broker:
        queues = status_of(broker).queues
        for name, overflow in (("drop", DROP_NEWEST), ("block", BLOCK_PUBLISHER), ("bury", 3)):
            await queues.create(name, QueueOptions(max_size=1, overflow=overflow))
            await post(broker, name, b"1")
        for name in ("drop", "block"):
            with pytest.raises(QueueFullError):
                await post(broker, name, b"2")
        letter = await post(broker, "bury", b"2")
        waiting = asyncio.ensure_future(post(broker, "block", b"3"))
        await queues.purge("block")

        assert await waiting
        assert (
            letter
            == (await status_of(broker).letters.letters("dlq.bury", from_offset=1, limit=9))
            .letters[0]
            .offset
        )


async def test_a_log_that_takes_nothing_is_told() -> None:
    """503, with the reason."""
    async with running_broker() as broker:
        engine_of(broker).broker.admission.log_refuses("no space left")
        with pytest.raises(UnavailableError, match="no space left"):
            await post(broker, "t", b"x")
        engine_of(broker).drain()
        with pytest.raises(UnavailableError, match="shutting down"):
            await post(broker, "t", b"x")


async def post_in_memory(broker: RunningBroker) -> int | None:
    return await status_of(broker).messages.publish("t", b"x", headers={}, qos=0, priority=1)


async def test_a_memory_only_message_needs_no_log() -> None:
    """It goes while the log is behind or refuses, and while the broker drains."""
    async with running_broker() as broker:
        engine = engine_of(broker)
        engine.broker.outgoing.bytes += engine.uncommitted_bytes_max
        given = [await post_in_memory(broker)]
        engine.broker.outgoing.bytes -= engine.uncommitted_bytes_max
        engine.broker.admission.log_refuses("no space left")
        given.append(await post_in_memory(broker))
        engine.drain()
        given.append(await post_in_memory(broker))

        assert ([None] * 3, 3) == (given, engine.broker.stats.published)


async def test_a_repeat_is_acknowledged_while_nothing_is_taken() -> None:
    """It is stored already, and needs neither room nor the log."""
    async with running_broker() as broker:
        first = await post(broker, "t", b"x", dedupId="1")
        engine_of(broker).broker.admission.log_refuses("no space left")
        refusing = await post(broker, "t", b"x", dedupId="1")
        engine_of(broker).drain()

        assert [first] * 2 == [refusing, await post(broker, "t", b"x", dedupId="1")]


async def test_what_is_the_brokers_to_say_is_not_kept() -> None:
    """A forged `deathQueue` would put the dedup id on another queue after a restart."""
    async with running_broker() as broker:
        await post(broker, "t", b"x", dedupId="1", deathQueue="other", deliveryAttempts="9")
        (message,) = (await page(broker)).messages

        assert {"dedupId": "1"} == message.headers


async def test_a_publish_that_waits_too_long_for_the_log_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """503, and counted."""
    monkeypatch.setattr(messages, "ROOM_WAIT_S", 0.0)
    async with running_broker() as broker:
        engine = engine_of(broker)
        engine.broker.outgoing.bytes += engine.uncommitted_bytes_max
        with pytest.raises(UnavailableError, match="does not keep up"):
            await post(broker, "t", b"x")
        engine.broker.outgoing.bytes -= engine.uncommitted_bytes_max

        assert 1 == engine.broker.stats.refused


async def test_sealed_is_a_box_of_a_known_key() -> None:
    """Long enough, with a sender's key, and no JSON."""
    key = {"senderPublicKey": base64.b64encode(bytes(32)).decode()}

    assert is_sealed(bytes(40), key)
    assert not is_sealed(bytes(39), key)
    assert not is_sealed(bytes(40), {})
    assert not is_sealed(bytes(40), {"senderPublicKey": "AA=="})
    assert not is_sealed(bytes(40), {"senderPublicKey": "!"})
    assert not is_sealed(b'"' + 40 * b"x" + b'"', key)
