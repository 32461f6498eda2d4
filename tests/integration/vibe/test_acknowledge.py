"""Ack: which delivery it names, which connection may send it, and reject and requeue."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.vibe.peer import DISCONNECT, PING, connected, stats

pytestmark = pytest.mark.asyncio


async def test_the_frames_id_names_the_message(broker: RunningBroker, dialect: str) -> None:
    """Unless there is a messageId header."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        await peer.settle("m")

        assert (0, 0) == await peer.counts("q")
        assert 1 == stats(broker).acknowledged


async def test_the_message_id_header_takes_precedence(
    broker: RunningBroker, dialect: str
) -> None:
    """It names the message, whatever the frame's id."""
    async with connected(broker, dialect) as peer:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q")
        await peer.payloads(2)
        await peer.settle("m0", messageId="m1")
        await peer.unsubscribe("q")
        await peer.subscribe("q")

        assert [b"0"] == await peer.payloads(1)
        await peer.expect_silence()


async def test_an_ack_settles_the_oldest_delivery_with_its_id(
    broker: RunningBroker, dialect: str
) -> None:
    """Of several deliveries with the same id, the one delivered first."""
    async with connected(broker, dialect) as peer:
        for number in range(3):
            await peer.publish("q", b"%d" % number, "same")
        await peer.subscribe("q")
        await peer.payloads(3)
        await peer.settle("same")
        await peer.unsubscribe("q")
        await peer.subscribe("q")

        assert [b"1", b"2"] == await peer.payloads(2)


async def test_an_ack_may_name_the_queue(broker: RunningBroker, dialect: str) -> None:
    """Then it settles only a delivery from that queue."""
    async with connected(broker, dialect) as peer:
        for queue in ("a", "b"):
            await peer.publish(queue, b"1", "same")
            await peer.subscribe(queue)
            await peer.delivered()
        before = stats(broker).unknown_acks
        await peer.settle("same", "c")
        assert before + 1 == stats(broker).unknown_acks
        await peer.settle("same", "b")
        assert [(0, 1), (0, 0)] == [await peer.counts("a"), await peer.counts("b")]
        await peer.settle("same")

        assert (0, 0) == await peer.counts("a")


@pytest.mark.parametrize("headers", [{}, {"result": "reject"}, {"result": "requeue"}])
async def test_an_ack_for_a_message_that_the_connection_does_not_hold_is_ignored(
    broker: RunningBroker, dialect: str, headers: dict[str, str]
) -> None:
    """Another consumer's, waiting, unknown or settled messages; the broker counts these."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 1)
        await peer.delivered()
        before = stats(broker).unknown_acks
        for message_id in ("m0", "m1", "m2"):
            await other.settle(message_id, **headers)
        assert before + 3 == stats(broker).unknown_acks
        assert (1, 1) == await peer.counts("q")
        peer.ack("m0")
        assert b"1" == (await peer.delivered()).payload
        await peer.settle("m0", **headers)

        assert before + 4 == stats(broker).unknown_acks
        assert (0, 1) == await peer.counts("q")


async def test_a_delivery_may_be_settled_until_another_holds_it(
    broker: RunningBroker, dialect: str
) -> None:
    """Even after its timeout, as long as no other consumer has it."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        await peer.unsubscribe("q")
        broker.clock.advance(100)
        await peer.settle("m")

        assert (0, 0) == await peer.counts("q")
        assert 0 == stats(broker).unknown_acks


async def test_a_redelivery_to_the_same_connection_is_settled_once(
    broker: RunningBroker, dialect: str
) -> None:
    """A late Ack settles the second delivery; another Ack is ignored."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        assert 1 == (await peer.delivered()).attempts
        broker.clock.advance(33)
        assert 2 == (await peer.delivered()).attempts
        await peer.settle("m")
        assert (0, 0) == await peer.counts("q")
        await peer.settle("m")

        assert 1 == stats(broker).unknown_acks


async def test_an_ack_does_not_settle_what_another_consumer_now_holds(
    broker: RunningBroker, dialect: str
) -> None:
    """The first consumer loses the right to settle it."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        await peer.unsubscribe("q")
        await other.subscribe("q")
        await other.delivered()
        await peer.settle("m")
        assert (0, 1) == await other.counts("q")
        await other.settle("m")

        assert (0, 0) == await other.counts("q")


async def test_reject_makes_a_dead_letter(broker: RunningBroker, dialect: str) -> None:
    """result=reject; the reason is "rejected"."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as dlq:
        await dlq.subscribe("dlq.q")
        await peer.publish("q", b"1", "m", mine="x")
        await peer.subscribe("q")
        await peer.delivered()
        peer.ack("m", result="reject")
        letter = await dlq.delivered()

        assert ("m", "dlq.q", b"1", "x") == (*letter[1:4], letter.headers["mine"])
        assert "rejected" == letter.headers["deathReason"]
        await peer.expect_silence()
        assert (0, 0) == await peer.counts("q")


async def test_a_requeued_message_is_redelivered_at_once(
    broker: RunningBroker, dialect: str
) -> None:
    """result=requeue: before newer messages, and the delivery counts as an attempt."""
    async with connected(broker, dialect) as peer:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 1)
        assert 1 == (await peer.delivered()).attempts
        peer.ack("m0", result="requeue")
        again = await peer.delivered()

        assert ("m0", 2) == (again.id, again.attempts)


async def test_a_requeue_may_have_a_delay(broker: RunningBroker, dialect: str) -> None:
    """Redelivery comes after delayMs, at most a sixteenth later; others do not wait."""
    async with connected(broker, dialect) as peer:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 1)
        await peer.delivered()
        peer.ack("m0", result="requeue", delayMs="5000")
        assert b"1" == (await peer.delivered()).payload
        await peer.settle("m1")
        assert (1, 0) == await peer.counts("q")
        broker.clock.advance(4.99)
        await peer.expect_silence()
        broker.clock.advance(0.01 + 5 / 16)
        again = await peer.delivered()

        assert ("m0", 2) == (again.id, again.attempts)


@pytest.mark.parametrize("delay", ["0", "1", "86400000"])
async def test_a_delay_may_be_up_to_a_day(
    broker: RunningBroker, dialect: str, delay: str
) -> None:
    """In ms; 0 is valid as well."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        peer.ack("m", result="requeue", delayMs=delay)
        await peer.ask(PING)
        broker.clock.advance(int(delay) / 1000 * 17 / 16)

        assert 2 == (await peer.delivered()).attempts


@pytest.mark.parametrize("delay", [{}, {"delayMs": "60000"}])
async def test_the_last_attempt_cannot_be_requeued(
    broker: RunningBroker, dialect: str, delay: dict[str, str]
) -> None:
    """After three deliveries it becomes a dead letter with the reason maxRetries."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as dlq:
        await dlq.subscribe("dlq.q")
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        for attempt in (1, 2, 3):
            assert attempt == (await peer.delivered()).attempts
            peer.ack("m", result="requeue", **(delay if attempt == 3 else {}))
        letter = await dlq.delivered()

        assert "maxRetries" == letter.headers["deathReason"]
        assert "3" == letter.headers["deathAttempts"]


async def test_a_delay_without_requeue_is_ignored(broker: RunningBroker, dialect: str) -> None:
    """Even if it is not a number."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")
        await peer.delivered()
        await peer.settle("m", delayMs="whenever")

        assert (0, 0) == await peer.counts("q")


async def test_an_ack_before_a_disconnect_counts(broker: RunningBroker, dialect: str) -> None:
    """It needs no fence."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        for number in range(2):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q")
        await peer.payloads(2)
        peer.ack("m0")
        peer.send(peer.frame(DISCONNECT, "d"))
        await peer.expect_close()
        await other.subscribe("q")

        assert [b"1"] == await other.payloads(1)
        await other.expect_silence()
