"""The client over Vibe: publishing, queues, unsupported features."""

import pytest

import braidmq
from braidmq.client.vibe.strand import CREDENTIAL_BYTES_MAX
from braidmq.wire.vibe import messages
from tests.unit.client.peer import quick
from tests.unit.client.vibe.peer import Peer, frame

pytestmark = pytest.mark.asyncio


async def test_a_receipt_has_the_id_that_consumers_see() -> None:
    """Headers, priority and payload arrive as published."""
    async with (
        Peer() as peer,
        braidmq.connect(peer.url) as client,
        client.subscribe("orders") as subscription,
    ):
        receipt = await client.publish(
            "orders", b'{"n": 1}', headers={"trace": "7"}, priority=braidmq.Priority.CRITICAL
        )
        message = await anext(subscription)

        assert receipt == braidmq.Receipt("orders", 1, durable=True, id=message.id)
        assert ("7", "Critical") == (message.headers["trace"], message.headers["priority"])
        assert b'{"n": 1}' == message.payload


async def test_a_payload_that_is_not_json_is_refused_by_the_client() -> None:
    """Nothing of it is sent; in `publish_many` it keeps its place."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        with pytest.raises(braidmq.InvalidArgument, match="JSON"):
            await client.publish("orders", b"hello")
        results = await client.publish_many("orders", [b"1", b"hello", b""])

        assert [braidmq.Receipt, braidmq.NotSent, braidmq.Receipt] == [
            type(result) for result in results
        ]
        assert [b"1", b""] == peer.payloads()


async def test_features_that_vibe_lacks_are_refused() -> None:
    """An option is never ignored silently."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        for attempt in (
            client.publish("orders", b"1", ttl=1.0),
            client.publish("orders", b"1", qos=0),
            client.publish_many("orders", [b"1"], qos=0),
            client.stats(),
        ):
            with pytest.raises(braidmq.NotSupported, match="vibe does not support"):
                await attempt
        for options in (
            {"qos": 0},
            {"subscription_id": 1},
            {"keep": True},
            {"on_gap": lambda gone, new: None},
        ):
            with pytest.raises(braidmq.NotSupported, match="vibe does not support"):
                client.subscribe("orders", **options)


@pytest.mark.parametrize(("prefetch", "limit"), [(0, "at least 1"), (10_001, "at most 10000")])
async def test_a_prefetch_outside_the_limits_of_the_broker_is_refused(
    prefetch: int, limit: str
) -> None:
    """The error says which limit."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        expected = f"prefetch must be {limit}, not {prefetch}"
        with pytest.raises(braidmq.InvalidArgument, match=expected):
            client.subscribe("orders", prefetch=prefetch)


@pytest.mark.parametrize(
    "url",
    [
        "vibe://127.0.0.1:1",
        "vibe://ada:@127.0.0.1:1",
        f"vibe://{'k' * (CREDENTIAL_BYTES_MAX + 1)}@127.0.0.1:1",
        f"vibe://ada:{'k' * CREDENTIAL_BYTES_MAX}@127.0.0.1:1",
    ],
)
async def test_credentials_that_no_broker_would_accept_are_refused_by_the_client(
    url: str,
) -> None:
    """They are missing, or too long for the frame that an unauthenticated client may send."""
    with pytest.raises(braidmq.InvalidArgument, match="no usable credentials"):
        await braidmq.connect(url)


async def test_credentials_may_fill_the_first_frame() -> None:
    """The broker gets to check them, even if the frame also offers compression."""
    async with Peer() as peer:
        url = f"vibe://ada:{'k' * (CREDENTIAL_BYTES_MAX - 3)}@127.0.0.1:{peer.port}"
        with pytest.raises(braidmq.AuthenticationFailed):
            await braidmq.connect(url, compression=True)

        assert messages.CONNECT == peer.lines[0].seen[0].type


async def test_a_key_with_lone_surrogates_is_refused() -> None:
    """It cannot be encoded as UTF-8."""
    with pytest.raises(braidmq.InvalidArgument, match="no usable credentials"):
        await braidmq.connect("vibe://127.0.0.1:1", key="\ud800")


async def test_a_user_with_a_password() -> None:
    """In the URL, percent-encoded, or as a separate key."""
    async with Peer() as peer:
        address = f"127.0.0.1:{peer.port}"
        async with (
            braidmq.connect(f"vibe://ada:s:e%40cret@{address}"),
            braidmq.connect(f"vibe://ada:@{address}", key="s:e@cret"),
            braidmq.connect(f"vibe://{address}", key="dev-key"),
        ):
            assert 3 == len(peer.open_lines())


async def test_an_answer_of_another_type_confirms_nothing() -> None:
    """Only a PublishAck confirms a publish."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(
            messages.PUBLISH,
            lambda line, body: line.send(frame(messages.SUBSCRIBE_ACK, body.id)),
        )
        with pytest.raises(braidmq.OutcomeUnknown, match="message type 23"):
            await client.publish("orders", b"1")


async def test_large_messages_may_be_sent_compressed() -> None:
    """An option of the connection; the payload arrives unchanged."""
    large = b'"' + b"x" * 500_000 + b'"'
    async with (
        Peer() as peer,
        braidmq.connect(peer.url, compression=True) as client,
        client.subscribe("orders") as subscription,
    ):
        await client.publish("orders", large)

        assert large == (await anext(subscription)).payload


async def test_queues_are_declared_inspected_listed_and_deleted() -> None:
    """Declaring returns the queue's present options."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        declared = await client.declare_queue(
            "jobs",
            mode="FanOutWithAck",
            max_size=10,
            ttl=60.0,
            dead_letters=True,
            dead_letter_name="graves",
            overflow="drop_oldest",
            max_attempts=7,
            durable=True,
        )

        assert ("jobs", "FanOutWithAck", 10, 60.0, True, "graves", "DropOldest", 7, True) == (
            declared.name,
            declared.mode,
            declared.max_size,
            declared.ttl,
            declared.dead_letters,
            declared.dead_letter_name,
            declared.overflow,
            declared.max_attempts,
            declared.durable,
        )
        assert declared == await client.queue_info("jobs")
        assert ["jobs"] == await client.list_queues()
        await client.delete_queue("jobs")
        assert await client.queue_info("jobs") is None
        assert [] == await client.list_queues()


async def test_a_refused_request_about_a_queue_says_why() -> None:
    """With the code and text of the broker."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        for kind in (
            messages.CREATE_QUEUE,
            messages.QUEUE_INFO,
            messages.LIST_QUEUES,
            messages.DELETE_QUEUE,
        ):
            peer.refuse(kind, "AUTH_FAILED", "not allowed")
        for attempt in (
            client.declare_queue("jobs"),
            client.queue_info("jobs"),
            client.list_queues(),
            client.delete_queue("jobs"),
        ):
            with pytest.raises(braidmq.QueueRefused, match="AUTH_FAILED not allowed"):
                await attempt


async def test_declaring_a_queue_fails_if_it_is_deleted_meanwhile() -> None:
    """Another client may delete it between declaration and inspection."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.script(messages.QUEUE_INFO, lambda line, body: line.answer(body, body.type))
        with pytest.raises(braidmq.QueueRefused, match="QUEUE_NOT_FOUND"):
            await client.declare_queue("jobs")


async def test_queue_names_are_checked_by_the_client() -> None:
    """Nothing is sent for an invalid name."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        for attempt in (
            client.declare_queue("a b"),
            client.queue_info(""),
            client.delete_queue("a/b"),
            client.publish("a b", b"1"),
            client.publish_many("a b", [b"1"]),
        ):
            with pytest.raises(braidmq.InvalidArgument, match="a queue name"):
                await attempt
        with pytest.raises(braidmq.InvalidArgument, match="a queue name"):
            client.subscribe("a b")


async def test_a_lost_connection_fails_the_request() -> None:
    """The client does not repeat a declaration by itself."""
    async with Peer() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.script(messages.CREATE_QUEUE, lambda line, body: line.hang_up())
        with pytest.raises(braidmq.ConnectionLost):
            await client.declare_queue("jobs")

        assert 1 == peer.count(messages.CREATE_QUEUE)
