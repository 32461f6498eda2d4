"""A Vibe subscription."""

import asyncio
import base64
import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

import braidmq
from braidmq.client import inbox
from braidmq.client import subscription as module
from braidmq.client.vibe.subscription import VibeSubscription, unpacked
from braidmq.wire.vibe import messages
from braidmq.wire.vibe.messages import Body
from tests.unit.client.peer import die, ignore, quick
from tests.unit.client.strands import SUBSCRIBED, offline, online
from tests.unit.client.vibe.peer import Line, Peer, error_frame

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def subscribed(peer: Peer, prefetch: int = 256) -> AsyncIterator[VibeSubscription]:
    async with (
        braidmq.connect(peer.url, **quick()) as client,
        client.subscribe("orders", prefetch=prefetch) as subscription,
    ):
        assert isinstance(subscription, VibeSubscription)
        yield subscription


def requested_prefetches(line: Line) -> list[int]:
    """Return the prefetch of each Subscribe, in order."""
    return [int(body.headers["prefetch"]) for body in line.of(messages.SUBSCRIBE)]


async def test_a_message_has_the_attributes_that_the_broker_sent() -> None:
    """Id, queue, payload, headers and attempt."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b'{"n": 1}', trace="7")
        message = await anext(subscription)

        assert ("orders-1", "orders", b'{"n": 1}', 1, 1) == (
            message.id,
            message.topic,
            message.payload,
            message.qos,
            message.attempt,
        )
        assert {"trace": "7", "deliveryAttempts": "1"} == dict(message.headers)


@pytest.mark.parametrize("attempts", ["", "x", "-1", "²", "9" * 5_000])
async def test_an_attempt_that_is_not_a_number_is_none(attempts: str) -> None:
    """The message itself is still delivered."""
    async with Peer() as peer, subscribed(peer) as subscription:
        odd = {"deliveryAttempts": attempts}
        peer.lines[SUBSCRIBED].answer(delivery(), messages.DELIVER, b"1", odd)

        assert (await anext(subscription)).attempt is None


def delivery() -> Body:
    body = Body()
    body.id, body.queue = "m-1", "orders"
    return body


@pytest.mark.parametrize("payload", [b"", b"\x00\xff", b"hello", bytes(range(256))])
async def test_bytes_of_other_strands_are_unpacked(payload: bytes) -> None:
    """Payloads that are not JSON travel as base64 in a JSON string; consumers get the bytes."""
    body = delivery()
    body.payload = b'"' + base64.b64encode(payload) + b'"'
    body.headers = {"contentEncoding": "base64", "a": "b"}

    assert payload == unpacked(body)
    assert {"a": "b"} == body.headers


@pytest.mark.parametrize(
    ("payload", "headers"),
    [
        (b'"aGk="', {}),
        (b'"aGk="', {"contentEncoding": "gzip"}),
        (b'"not base64"', {"contentEncoding": "base64"}),
        (b'"a"', {"contentEncoding": "base64"}),
    ],
)
async def test_a_payload_that_is_not_base64_stays_as_it_is(
    payload: bytes, headers: dict[str, str]
) -> None:
    """A wrong header does not lose the payload."""
    body = delivery()
    body.payload, body.headers = payload, dict(headers)

    assert payload == unpacked(body)
    assert headers == body.headers


async def test_an_acknowledgement_names_message_and_queue() -> None:
    """It is sent once; a second call does nothing."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        await message.ack(confirmed=True)
        await message.ack()
        await message.nack()
        await subscription.drain()

        assert [("orders-1", "orders", {})] == [
            (body.id, body.queue, body.headers) for body in peer.acked
        ]


async def test_acknowledging_waits_only_with_confirmed() -> None:
    """With `confirmed` it returns once the broker has committed it."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1", b"2")
        one, two = await anext(subscription), await anext(subscription)
        peer.hold(messages.PING)
        await one.ack()
        confirming = asyncio.create_task(two.ack(confirmed=True))
        await peer.until(lambda: len(peer.acked) == 2)

        assert not confirming.done()
        peer.release()
        await confirming


@pytest.mark.parametrize(
    ("delay", "dead_letter", "headers"),
    [
        (None, False, {"result": "requeue"}),
        (0.0, False, {"result": "requeue", "delayMs": "0"}),
        (1.5, False, {"result": "requeue", "delayMs": "1500"}),
        (86_400.0, False, {"result": "requeue", "delayMs": "86400000"}),
        (None, True, {"result": "reject"}),
    ],
)
async def test_nack_requeues_or_dead_letters_a_message(
    delay: float | None, dead_letter: bool, headers: dict[str, str]
) -> None:
    """With the headers that the broker understands."""
    async with Peer() as peer, subscribed(peer, prefetch=1) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        await message.nack(delay=delay, dead_letter=dead_letter)
        await subscription.drain()

        assert [headers] == [body.headers for body in peer.acked]


@pytest.mark.parametrize(
    ("delay", "dead_letter"),
    [
        (-0.001, False),
        (86_400.001, False),
        (math.nan, False),
        (math.inf, False),
        (-math.inf, False),
        (1e306, False),
        (1.0, True),
    ],
)
async def test_an_invalid_nack_is_refused(delay: float, dead_letter: bool) -> None:
    """The message can still be acknowledged."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        with pytest.raises(braidmq.InvalidArgument, match="delay"):
            await message.nack(delay=delay, dead_letter=dead_letter)
        await message.ack(confirmed=True)

        assert 1 == len(peer.acked)


async def test_an_exception_requeues_the_message() -> None:
    """The exception reaches the caller, and the broker redelivers the message."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        with pytest.raises(ZeroDivisionError):
            async with (await anext(subscription)).process():
                raise ZeroDivisionError
        again = await anext(subscription)

        assert ("orders-1", 2) == (again.id, again.attempt)
        assert [{"result": "requeue"}] == [body.headers for body in peer.acked]


async def test_a_failed_nack_does_not_hide_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker redelivers the message on its own."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        await subscription.close()
        with pytest.raises(ZeroDivisionError):
            async with message.process():
                raise ZeroDivisionError

        assert "message orders-1 was not given back" in caplog.text
        with pytest.raises(braidmq.Closed):
            await message.ack()


async def test_a_message_of_a_lost_connection_can_no_longer_be_settled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker has requeued it; its redelivery can be settled."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1", b"2")
        old = await anext(subscription)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        with pytest.raises(braidmq.StaleDelivery, match="orders-1"):
            await old.ack(confirmed=True)
        with caplog.at_level(logging.WARNING, "braidmq.client"):
            await old.ack()
        await online(subscription)
        seen = [await anext(subscription) for _ in range(2)]
        for message in seen:
            await message.ack(confirmed=True)

        assert "delivery orders-1 cannot be acknowledged" in caplog.text
        assert [("orders-1", 2), ("orders-2", 2)] == [(one.id, one.attempt) for one in seen]
        assert ["orders-1", "orders-2"] == [body.id for body in peer.acked]


async def test_an_acknowledgement_without_confirmation_raises() -> None:
    """`confirmed` never returns before the broker has confirmed."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        peer.once(messages.PING, die)
        with pytest.raises(braidmq.ConnectionLost):
            await message.ack(confirmed=True)


async def test_two_messages_with_the_same_id_are_two_messages() -> None:
    """Publishers choose the ids."""
    async with Peer() as peer, subscribed(peer) as subscription:
        for payload in (b"1", b"2"):
            peer.lines[SUBSCRIBED].answer(delivery(), messages.DELIVER, payload)

        assert [b"1", b"2"] == [(await anext(subscription)).payload for _ in range(2)]


async def test_the_prefetch_grows_with_a_fast_handler() -> None:
    """It starts small and stops at the caller's limit."""
    async with Peer() as peer, subscribed(peer, prefetch=100) as subscription:
        peer.put("orders", *[b"1"] * 200)
        for _ in range(200):
            await (await anext(subscription)).ack()
        await subscription.drain()

        assert [16, 32, 64, 100] == requested_prefetches(peer.lines[SUBSCRIBED])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every message count as having waited long."""
    monkeypatch.setattr(inbox, "WAITED_SOON_S", -2.0)
    monkeypatch.setattr(inbox, "WAITED_LONG_S", -1.0)


@pytest.mark.usefixtures("slow")
async def test_the_prefetch_shrinks_with_a_slow_handler() -> None:
    """Messages that have waited long are better off with another consumer."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", *[b"1"] * 10)
        for _ in range(10):
            await (await anext(subscription)).ack()
        await subscription.drain()

        assert [16, 8, 4, 2, 1] == requested_prefetches(peer.lines[SUBSCRIBED])


@pytest.mark.usefixtures("slow")
async def test_settled_messages_do_not_count_as_held() -> None:
    """A consumer that settles one message at a time is never sent two."""
    async with Peer() as peer, subscribed(peer) as subscription:
        for _ in range(10):
            taking = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            peer.put("orders", b"1")
            await (await taking).ack(confirmed=True)

        assert [16, 8, 4, 2, 1] == requested_prefetches(peer.lines[SUBSCRIBED])


@pytest.mark.usefixtures("slow")
async def test_the_prefetch_grows_when_a_consumer_holds_all_messages_and_waits() -> None:
    """A consumer that settles in batches does not deadlock."""
    async with Peer() as peer, subscribed(peer, prefetch=50) as subscription:
        peer.put("orders", *[b"1"] * 50)
        async with asyncio.timeout(10):
            held = [await anext(subscription) for _ in range(50)]
        for message in held:
            await message.ack()
        await subscription.drain()

        assert 50 == len(peer.acked)
        assert 50 == max(requested_prefetches(peer.lines[SUBSCRIBED]))


async def test_fetching_raises_the_prefetch_to_the_requested_number() -> None:
    """It returns available messages at once, or an empty list after the timeout."""
    async with Peer() as peer, subscribed(peer) as subscription:
        assert [] == await subscription.fetch(max=200, timeout=0)
        assert [16, 200] == requested_prefetches(peer.lines[SUBSCRIBED])
        peer.put("orders", *[b"1"] * 150)
        seen = len(await subscription.fetch(max=100, timeout=10))
        while seen < 150:
            seen += len(await subscription.fetch(max=100, timeout=10))

        assert [] == await subscription.fetch(timeout=0.001)
        assert 256 == requested_prefetches(peer.lines[SUBSCRIBED])[-1]
        with pytest.raises(braidmq.InvalidArgument, match="max must be at least 1"):
            await subscription.fetch(max=0)


async def test_fetching_does_not_wait_for_a_broker_that_is_silent_or_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With `timeout=0` the caller does not want to wait."""
    monkeypatch.setattr(module, "FETCH_GRACE_S", 0.01)
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.script(messages.PING, ignore)

        assert [] == await subscription.fetch(timeout=0)
        peer.scripts.clear()
        await peer.stop()
        await offline(subscription)
        assert [] == await subscription.fetch(timeout=0)


async def test_fetching_ends_when_the_subscription_does() -> None:
    """The caller does not wait for messages that cannot arrive."""
    async with Peer() as peer, subscribed(peer) as subscription:
        fetching = asyncio.create_task(subscription.fetch(timeout=60))
        await asyncio.sleep(0)
        await subscription.close()
        with pytest.raises(braidmq.Closed):
            await fetching


async def test_a_refused_prefetch_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Messages keep arriving as before."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.refuse(messages.SUBSCRIBE, "RATE_LIMITED")
        peer.put("orders", b"1", b"2")
        for _ in range(2):
            await (await anext(subscription)).ack(confirmed=True)

        assert "prefetch was refused: RATE_LIMITED because" in caplog.text


async def test_leaving_unsubscribes_and_disconnects() -> None:
    """Messages not yet taken return to the queue."""
    async with Peer() as peer:
        async with subscribed(peer) as subscription:
            peer.put("orders", b"1", b"2")
            await (await anext(subscription)).ack()
        await peer.until(lambda: not peer.open_lines())
        types = peer.lines[SUBSCRIBED].types()

        assert ["orders-1"] == [body.id for body in peer.acked]
        assert types.index(messages.ACK) < types.index(messages.UNSUBSCRIBE)
        assert messages.DISCONNECT == types[-1]
        assert ["orders-2"] == [message_id for message_id, _, _ in peer.queues["orders"].ready]


async def test_leaving_waits_until_acknowledgements_are_confirmed() -> None:
    """The block ends once the broker has committed them."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        peer.hold(messages.PING)
        await (await anext(subscription)).ack()
        leaving = asyncio.create_task(subscription.close())
        await peer.until(lambda: peer.held)

        assert not leaving.done()
        assert messages.UNSUBSCRIBE in peer.lines[SUBSCRIBED].types()
        peer.release()
        await leaving


@pytest.mark.parametrize("what", ["refused", "lost"])
async def test_leaving_succeeds_even_if_unsubscribing_fails(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the connection requeues all deliveries as well."""
    async with Peer() as peer:
        async with subscribed(peer):
            script = peer.refusing("SERVER_ERROR") if what == "refused" else die
            peer.script(messages.UNSUBSCRIBE, script)
        await peer.until(lambda: not peer.open_lines())

        logged = "unsubscribing was refused: SERVER_ERROR because" in caplog.text
        assert (what == "refused") == logged


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("AUTH_FAILED", braidmq.SubscriptionRefused),
        ("QUEUE_NOT_FOUND", braidmq.SubscriptionGone),
        ("RATE_LIMITED", braidmq.SubscriptionRefused),
    ],
)
async def test_a_refused_subscription_says_why_and_leaves_nothing_behind(
    code: str, error: type[braidmq.SubscriptionRefused]
) -> None:
    """The caller may subscribe again."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(messages.SUBSCRIBE, peer.refusing(code))
        with pytest.raises(braidmq.SubscriptionRefused, match=f"{code} because") as caught:
            await client.subscribe("orders")
        await peer.until(lambda: len(peer.open_lines()) == 1)

        assert error is type(caught.value)
        async with client.subscribe("orders"):
            assert 2 == len(peer.open_lines())


async def test_resubscribing_is_retried_while_the_broker_is_busy() -> None:
    """A temporary limit does not end a long-running subscription."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.once(messages.SUBSCRIBE, peer.refusing("RATE_LIMITED"))
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)
        peer.put("orders", b"1")

        assert b"1" == (await anext(subscription)).payload


async def test_a_forbidden_resubscribe_ends_the_subscription() -> None:
    """The iterating task gets the error: a retry would fail again."""
    async with Peer() as peer, subscribed(peer) as subscription:
        iterating = asyncio.create_task(anext(subscription))
        peer.refuse(messages.SUBSCRIBE, "AUTH_FAILED", "not allowed")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.SubscriptionRefused, match="not allowed"):
            await iterating


async def test_messages_of_a_connection_that_broke_during_preparation_are_dropped() -> None:
    """They are redelivered on the next one, and not twice."""

    def deliver_and_die(line: Line, body: Body) -> None:
        line.answer(delivery(), messages.DELIVER, b"1")
        line.hang_up()

    async with Peer() as peer, subscribed(peer) as subscription:
        peer.once(messages.SUBSCRIBE, deliver_and_die)
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)
        peer.put("orders", b"2")

        assert b"2" == (await anext(subscription)).payload


async def test_an_unrelated_error_does_not_end_a_subscription() -> None:
    """Only an error with the id of a request answers it."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.lines[SUBSCRIBED].send(error_frame("err-1", "INVALID_MESSAGE", "odd"))
        peer.put("orders", b"1")

        assert b"1" == (await anext(subscription)).payload
