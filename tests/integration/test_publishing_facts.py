"""What a publisher may say about each message, and what it is told, on every strand."""

import asyncio
from datetime import UTC, datetime
from typing import get_args

import pytest

import braidmq
from braidmq.cli.api import Api, HttpError
from braidmq.client.options import DeliveryMode, Overflow
from braidmq.testing.broker import running_broker
from braidmq.wire.vibe.queue_options import MODES, STRATEGIES
from tests.integration.vibe_peer import connected, publish

pytestmark = pytest.mark.asyncio

STRANDS = ["blip", "vibe", "qumbed"]


@pytest.mark.parametrize("strand", ["vibe", "qumbed"])
async def test_publisher_and_subscriber_are_told_the_same_time(strand: str) -> None:
    """When the broker accepted the message, to the millisecond, in UTC."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url(strand)) as client,
        client.subscribe("orders") as messages,
    ):
        receipt = await client.publish("orders", b"1")
        broker.clock.advance(7.25)
        (later,) = await client.publish_many("orders", [b"2"])
        first, second = await anext(messages), await anext(messages)

        assert isinstance(later, braidmq.Receipt)
        assert receipt.timestamp is not None
        assert later.timestamp is not None
        assert [receipt.timestamp, later.timestamp] == [first.timestamp, second.timestamp]
        assert UTC == receipt.timestamp.tzinfo
        assert 7.25 == (later.timestamp - receipt.timestamp).total_seconds()
        assert None is not receipt.id


async def test_blip_reports_no_time() -> None:
    """Its frames have no place for it."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("blip")) as client,
        client.subscribe("orders") as messages,
    ):
        receipt = await client.publish("orders", b"1")

        assert (None, None) == (receipt.timestamp, (await anext(messages)).timestamp)


async def test_a_peer_that_does_not_ask_gets_the_same_bytes_as_before() -> None:
    """A PublishAck has two headers, unless its Connect asked for the time."""
    async with running_broker() as broker, connected(broker) as peer:
        peer.send(publish("m-1", "orders"))
        answer = await peer.reply("m-1")

        assert {"messageId": "m-1", "queueName": "orders"} == answer.headers


async def test_messages_of_one_call_have_headers_and_priorities_of_their_own() -> None:
    """They join those of the call; where both have a header, the message's own is sent."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        await client.declare_queue("jobs", mode="priority_based")
        results = await client.publish_many(
            "jobs",
            [
                b"1",
                braidmq.Outgoing(b"2", headers={"kind": "own", "trace": "7"}),
                braidmq.Outgoing(b"3", priority=braidmq.Priority.CRITICAL),
                bytearray(b"4"),
            ],
            headers={"kind": "all"},
            priority=braidmq.Priority.LOW,
        )
        async with client.subscribe("jobs") as messages:
            got = [await anext(messages) for _ in range(4)]

        assert [braidmq.Receipt] * 4 == [type(result) for result in results]
        assert [b"3", b"1", b"2", b"4"] == [one.payload for one in got]
        assert ["all", "all", "own", "all"] == [one.headers["kind"] for one in got]
        assert "7" == got[2].headers["trace"]


@pytest.mark.parametrize("strand", STRANDS)
async def test_a_message_that_a_strand_cannot_send_keeps_its_place(strand: str) -> None:
    """The others are published; an Outgoing that asks for nothing is a plain payload."""
    async with running_broker() as broker, braidmq.connect(broker.url(strand)) as client:
        results = await client.publish_many(
            "orders",
            [
                b"1",
                braidmq.Outgoing(b"2", headers={"": "a header has a name"}),
                braidmq.Outgoing(b"3", headers={}),
                braidmq.Outgoing(b"4", priority=9),
            ],
        )

        kinds = [braidmq.Receipt, braidmq.NotSent, braidmq.Receipt, braidmq.NotSent]
        assert kinds == [type(result) for result in results]
        if strand != "vibe":
            assert f"{strand} does not support headers; vibe does" == str(results[1])
            with pytest.raises(braidmq.NotSupported, match="priority"):
                await client.publish_many("orders", [b"1"], priority=1)
            with pytest.raises(braidmq.NotSupported, match="headers"):
                await client.publish_many("orders", [b"1"], headers={"a": "b"})


async def test_the_blocking_client_has_the_same_options() -> None:
    """Headers and priorities of each message, receipts and messages with their time."""
    async with running_broker() as broker:
        url = broker.url("vibe")

        def work() -> tuple[list[str], bool]:
            with braidmq.sync.connect(url) as client, client.subscribe("orders") as messages:
                own = braidmq.Outgoing(b"2", headers={"kind": "own"})
                (_, receipt) = client.publish_many("orders", [b"1", own], headers={"kind": "a"})
                assert isinstance(receipt, braidmq.Receipt)
                got = [next(messages), next(messages)]
                same = receipt.timestamp == got[1].timestamp
                return [one.headers["kind"] for one in got], same

        assert (["a", "own"], True) == await asyncio.to_thread(work)


async def test_a_publisher_may_set_the_time_that_vibe_shows() -> None:
    """VibeMQ's clients do; what is no time, or of another place, is read as it can be."""
    async with (
        running_broker() as broker,
        braidmq.connect(broker.url("vibe")) as client,
        client.subscribe("orders") as messages,
    ):
        for said in ("2026-01-02T03:04:05", "2026-01-02T04:04:05+01:00", "yesterday"):
            await client.publish("orders", b"1", headers={"timestamp": said})
        times = [(await anext(messages)).timestamp for _ in range(3)]

        expected = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert [expected, expected, None] == times


async def test_queue_options_have_the_names_of_the_wire_and_of_python() -> None:
    """A type checker knows both spellings, and the broker takes both."""
    async with running_broker() as broker, braidmq.connect(broker.url("vibe")) as client:
        for at, (mode, overflow) in enumerate(
            zip(get_args(DeliveryMode), get_args(Overflow), strict=True)
        ):
            queue = await client.declare_queue(
                f"q{at}", mode=mode, overflow=overflow, max_size=9
            )
            assert (MODES[at % 4], STRATEGIES[at % 4]) == (queue.mode, queue.overflow)


async def test_an_http_publisher_asks_for_the_time() -> None:
    """The answer has only the offset otherwise; the message shows the same time."""
    async with running_broker() as broker:
        host, port = broker.address("http")
        api = Api(host, port, "dev-key", tls=False)
        path = "/api/topics/orders/messages"

        def work() -> tuple[dict[str, object], dict[str, object], object]:
            plain = api.ask("POST", path, {"payload": 1})
            asked = api.ask("POST", f"{path}?timestamp=true", {"payload": 2})
            with pytest.raises(HttpError, match="timestamp must be"):
                api.ask("POST", f"{path}?timestamp=perhaps", {"payload": 3})
            page = api.rows_in(api.ask("GET", path), "messages")
            return plain, asked, [(row["offset"], row["timestamp"]) for row in page]

        plain, asked, shown = await asyncio.to_thread(work)

        assert ["offset"] == list(plain)
        assert isinstance(shown, list)
        assert (asked["offset"], asked["timestamp"]) == shown[-1]
        assert [plain["offset"], asked["offset"]] == [offset for offset, _ in shown]
