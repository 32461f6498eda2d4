"""A subscription over the Vibe strand."""

import asyncio
import base64
import logging
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
from tests.unit.client.strands import offline, online
from tests.unit.client.vibe.peer import Line, Peer, error_frame, refusing

pytestmark = pytest.mark.asyncio

SUBSCRIBED = 1
"""The second of a client's connections."""


@asynccontextmanager
async def subscribed(peer: Peer, prefetch: int = 256) -> AsyncIterator[VibeSubscription]:
    async with (
        braidmq.connect(peer.url, **quick()) as client,
        client.subscribe("orders", prefetch=prefetch) as subscription,
    ):
        assert isinstance(subscription, VibeSubscription)
        yield subscription


def wishes(line: Line) -> list[int]:
    """Return the prefetches that were asked for, in order."""
    return [int(body.headers["prefetch"]) for body in line.of(messages.SUBSCRIBE)]


async def test_a_message_says_what_the_broker_said() -> None:
    """Id, queue, payload, headers and attempt come from their places."""
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


@pytest.mark.parametrize("attempts", ["", "x", "-1", "²"])
async def test_an_attempt_that_is_no_number_is_not_known(attempts: str) -> None:
    """The message is worth more than the number."""
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
    """What is not JSON travels as a JSON string of its base64; users get the bytes."""
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
async def test_what_is_not_base64_stays_as_it_is(
    payload: bytes, headers: dict[str, str]
) -> None:
    """Nothing is lost to a header that does not fit."""
    body = delivery()
    body.payload, body.headers = payload, dict(headers)

    assert payload == unpacked(body)
    assert headers == body.headers


async def test_acknowledging_names_message_and_queue() -> None:
    """Once: a second call does nothing."""
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


async def test_acknowledging_does_not_wait_unless_asked_to() -> None:
    """With `confirmed` it returns when the broker has committed it."""
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
async def test_a_message_is_given_back_or_buried(
    delay: float | None, dead_letter: bool, headers: dict[str, str]
) -> None:
    """With the words that the broker knows."""
    async with Peer() as peer, subscribed(peer, prefetch=1) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        await message.nack(delay=delay, dead_letter=dead_letter)
        await subscription.drain()

        assert [headers] == [body.headers for body in peer.acked]


@pytest.mark.parametrize(
    ("delay", "dead_letter"), [(-0.001, False), (86_400.001, False), (1.0, True)]
)
async def test_what_cannot_be_asked_of_a_message_is_refused(
    delay: float, dead_letter: bool
) -> None:
    """The message can still be settled otherwise."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        message = await anext(subscription)
        with pytest.raises(braidmq.InvalidArgument, match="delay"):
            await message.nack(delay=delay, dead_letter=dead_letter)
        await message.ack(confirmed=True)

        assert 1 == len(peer.acked)


async def test_an_exception_gives_the_message_back() -> None:
    """It goes on to the caller, and the message comes again with the next attempt."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.put("orders", b"1")
        with pytest.raises(ZeroDivisionError):
            async with (await anext(subscription)).process():
                raise ZeroDivisionError
        again = await anext(subscription)

        assert ("orders-1", 2) == (again.id, again.attempt)
        assert [{"result": "requeue"}] == [body.headers for body in peer.acked]


async def test_an_exception_is_not_hidden_by_a_message_that_cannot_be_given_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker gives it to another by itself."""
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


async def test_a_message_of_an_old_connection_can_no_longer_be_settled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The broker has taken it back: it comes again, and that one can be."""
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


async def test_an_acknowledgement_that_was_not_confirmed_says_so() -> None:
    """Nothing is confirmed that the broker has not confirmed."""
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
    """It begins small, and ends at what the user allows."""
    async with Peer() as peer, subscribed(peer, prefetch=100) as subscription:
        peer.put("orders", *[b"1"] * 200)
        for _ in range(200):
            await (await anext(subscription)).ack()
        await subscription.drain()

        assert [16, 32, 64, 100] == wishes(peer.lines[SUBSCRIBED])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message has waited long."""
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

        assert [16, 8, 4, 2, 1] == wishes(peer.lines[SUBSCRIBED])


@pytest.mark.usefixtures("slow")
async def test_what_is_settled_is_not_held() -> None:
    """Whoever settles one message after the other is never sent two."""
    async with Peer() as peer, subscribed(peer) as subscription:
        for _ in range(10):
            taking = asyncio.create_task(anext(subscription))
            await asyncio.sleep(0)
            peer.put("orders", b"1")
            await (await taking).ack(confirmed=True)

        assert [16, 8, 4, 2, 1] == wishes(peer.lines[SUBSCRIBED])


@pytest.mark.usefixtures("slow")
async def test_who_holds_all_that_was_asked_for_and_waits_gets_more() -> None:
    """A consumer that settles in batches is not left waiting for itself."""
    async with Peer() as peer, subscribed(peer, prefetch=50) as subscription:
        peer.put("orders", *[b"1"] * 50)
        async with asyncio.timeout(10):
            held = [await anext(subscription) for _ in range(50)]
        for message in held:
            await message.ack()
        await subscription.drain()

        assert 50 == len(peer.acked)
        assert 50 == max(wishes(peer.lines[SUBSCRIBED]))


async def test_fetching_asks_for_as_many_as_are_wanted() -> None:
    """A list of what is there, at once; an empty one when nothing comes in time."""
    async with Peer() as peer, subscribed(peer) as subscription:
        assert [] == await subscription.fetch(max=200, timeout=0)
        assert [16, 200] == wishes(peer.lines[SUBSCRIBED])
        peer.put("orders", *[b"1"] * 150)
        seen = len(await subscription.fetch(max=100, timeout=10))
        while seen < 150:
            seen += len(await subscription.fetch(max=100, timeout=10))

        assert [] == await subscription.fetch(timeout=0.001)
        assert 256 == wishes(peer.lines[SUBSCRIBED])[-1]
        with pytest.raises(braidmq.InvalidArgument, match="max must be at least 1"):
            await subscription.fetch(max=0)


async def test_fetching_does_not_wait_for_a_broker_that_is_silent_or_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`timeout=0` is for those who will not wait."""
    monkeypatch.setattr(module, "FETCH_GRACE_S", 0.01)
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.script(messages.PING, ignore)

        assert [] == await subscription.fetch(timeout=0)
        peer.scripts.clear()
        await peer.stop()
        await offline(subscription)
        assert [] == await subscription.fetch(timeout=0)


async def test_fetching_ends_when_the_subscription_does() -> None:
    """Nobody waits for messages that cannot come."""
    async with Peer() as peer, subscribed(peer) as subscription:
        fetching = asyncio.create_task(subscription.fetch(timeout=60))
        await asyncio.sleep(0)
        await subscription.close()
        with pytest.raises(braidmq.Closed):
            await fetching


async def test_a_prefetch_that_is_refused_is_logged_and_changes_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The messages go on coming as before."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.refuse(messages.SUBSCRIBE, "RATE_LIMITED")
        peer.put("orders", b"1", b"2")
        for _ in range(2):
            await (await anext(subscription)).ack(confirmed=True)

        assert "prefetch was refused: RATE_LIMITED because" in caplog.text


async def test_leaving_unsubscribes_and_takes_leave() -> None:
    """What was not handed out goes back uncounted."""
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
    """The block ends when the broker has committed them."""
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
async def test_leaving_ends_also_when_the_broker_does_not_agree(
    what: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The end of the connection gives everything back as well."""
    async with Peer() as peer:
        async with subscribed(peer):
            script = refusing("SERVER_ERROR") if what == "refused" else die
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
    """It can be tried again, with a new one."""
    async with Peer() as peer, braidmq.connect(peer.url) as client:
        peer.once(messages.SUBSCRIBE, refusing(code))
        with pytest.raises(braidmq.SubscriptionRefused, match=f"{code} because") as caught:
            await client.subscribe("orders")
        await peer.until(lambda: len(peer.open_lines()) == 1)

        assert error is type(caught.value)
        async with client.subscribe("orders"):
            assert 2 == len(peer.open_lines())


async def test_subscribing_again_is_tried_again_when_the_broker_is_busy() -> None:
    """A limit that passes does not end what has run for days."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.once(messages.SUBSCRIBE, refusing("RATE_LIMITED"))
        peer.lines[SUBSCRIBED].die()
        await offline(subscription)
        await online(subscription)
        peer.put("orders", b"1")

        assert b"1" == (await anext(subscription)).payload


async def test_subscribing_again_that_is_forbidden_is_the_end() -> None:
    """Who iterates gets the error: it would come again."""
    async with Peer() as peer, subscribed(peer) as subscription:
        iterating = asyncio.create_task(anext(subscription))
        peer.refuse(messages.SUBSCRIBE, "AUTH_FAILED", "not allowed")
        peer.lines[SUBSCRIBED].die()
        with pytest.raises(braidmq.SubscriptionRefused, match="not allowed"):
            await iterating


async def test_messages_of_a_connection_that_broke_while_it_was_prepared_are_forgotten() -> (
    None
):
    """They come again on the next one, and not twice."""

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


async def test_an_error_for_something_else_does_not_end_a_subscription() -> None:
    """Only answers to what was asked are answers."""
    async with Peer() as peer, subscribed(peer) as subscription:
        peer.lines[SUBSCRIBED].send(error_frame("err-1", "INVALID_MESSAGE", "odd"))
        peer.put("orders", b"1")

        assert b"1" == (await anext(subscription)).payload
