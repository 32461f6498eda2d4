"""The frames beyond the original protocol: STATS, UNSUBSCRIBE and CREDIT."""

import struct
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    CREDIT,
    PUBLISH,
    STATS,
    UNSUBSCRIBE,
    ack,
    broker_at,
    connected,
    credit,
    frame,
    nack,
    not_found,
    ping,
    poll,
    pong,
    publish,
    unsubscribe,
    until,
)

pytestmark = pytest.mark.asyncio


REFUSED = {
    "STATS with a payload": (frame(STATS, 7, b"\x00"), (400, "invalid STATS payload")),
    "UNSUBSCRIBE empty": (frame(UNSUBSCRIBE, 7), (400, "invalid UNSUBSCRIBE payload")),
    "UNSUBSCRIBE 9 bytes": (
        frame(UNSUBSCRIBE, 7, bytes(9)),
        (400, "invalid UNSUBSCRIBE payload"),
    ),
    "UNSUBSCRIBE 0": (unsubscribe(7, 0), (400, "subscription_id must be non-zero")),
    "UNSUBSCRIBE unknown": (unsubscribe(7, 5), (404, "unknown subscription or delivery tag")),
    "CREDIT empty": (frame(CREDIT, 7), (400, "invalid CREDIT payload")),
    "CREDIT without a count": (frame(CREDIT, 7, bytes(8)), (400, "invalid CREDIT payload")),
    "CREDIT 13 bytes": (frame(CREDIT, 7, bytes(13)), (400, "invalid CREDIT payload")),
    "CREDIT 0": (credit(7, 0, 1), (400, "subscription_id must be non-zero")),
    "CREDIT unknown": (credit(7, 5, 1), (404, "unknown subscription or delivery tag")),
}


@pytest.mark.parametrize("row", REFUSED)
async def test_invalid_frames_are_refused(broker: RunningBroker, row: str) -> None:
    """Each invalid frame gets its NACK: first its own checks, then those of POLL."""
    sent, (code, text) = REFUSED[row]
    async with connected(broker) as peer:
        peer.send(sent)
        await peer.expect(nack(7, code, text))
        await peer.expect_silence()


# STATS.


async def test_stats_count_from_zero_and_include_redeliveries(broker: RunningBroker) -> None:
    """Topics, subscriptions, published, delivered (every attempt counts), in flight."""
    async with connected(broker) as peer:
        assert (0, 0, 0, 0, 0) == await peer.stats()
        first = await peer.subscribe("a", 1)
        second = await peer.subscribe("a", 0)
        await peer.subscribe("b", 1)
        assert (2, 3, 0, 0, 0) == await peer.stats()
        await peer.publish("a", b"1", b"2")
        await peer.publish("c", b"3", qos=0)
        assert (3, 3, 3, 0, 0) == await peer.stats()
        tag, _ = await peer.take(first)
        await peer.take(second)
        assert (3, 3, 3, 2, 1) == await peer.stats()
        broker.clock.advance(5)
        assert (3, 3, 3, 2, 0) == await peer.stats()
        await peer.take(first)
        assert (3, 3, 3, 3, 1) == await peer.stats()
        await peer.acknowledge(first, tag)
        assert (3, 3, 3, 3, 0) == await peer.stats()


async def test_stats_match_the_metrics(broker: RunningBroker) -> None:
    """STATS reports the same numbers as `/metrics`."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("a")
        await peer.publish("a", b"1", b"2", b"3")
        await peer.take(subscription)
        metrics = broker.daemon.status.metrics()

        assert await peer.stats() == (
            metrics.topics,
            metrics.subscriptions,
            metrics.messages_published,
            metrics.messages_delivered,
            metrics.messages_inflight,
        )


async def test_counters_restart_with_the_process(tmp_path: Path) -> None:
    """Published and delivered count from the start; topics and subscriptions persist."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("a")
        await peer.publish("a", b"1")
        await peer.take(subscription)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        assert (1, 1, 0, 0, 0) == await peer.stats()
        await peer.take(subscription)
        assert (1, 1, 0, 1, 1) == await peer.stats()


# UNSUBSCRIBE.


@pytest.mark.parametrize("qos", [0, 1])
async def test_unsubscribe_ends_a_subscription(broker: RunningBroker, qos: int) -> None:
    """The ACK names the id; from then on it and its tags are unknown on every connection."""
    async with connected(broker) as peer, connected(broker) as other:
        subscription = await peer.subscribe("t", qos)
        await peer.publish("t", b"1", b"2", qos=qos)
        tag, _ = await other.take(subscription)
        peer.send(unsubscribe(9, subscription))
        await peer.expect(ack(9, subscription))
        for one in (peer, other):
            one.send(
                ack(tag, subscription),
                poll(5, subscription),
                credit(6, subscription, 1),
                unsubscribe(7, subscription),
            )
            await one.expect(not_found(tag), not_found(5), not_found(6), not_found(7))
        assert (1, 0, 2, 1, 0) == await peer.stats()


async def test_unsubscribe_is_durable(tmp_path: Path) -> None:
    """The ACK follows the commit: a restart does not bring the subscription back."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        other = await peer.subscribe("t")
        peer.send(unsubscribe(9, subscription))
        await peer.expect(ack(9, subscription))
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))
        assert None is await peer.poll(other)
        assert other + 1 < await peer.subscribe("t")


async def test_unsubscribe_stops_pushes(broker: RunningBroker) -> None:
    """Credit lapses with its subscription."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        peer.send(credit(5, subscription, 10), unsubscribe(6, subscription))
        await peer.expect(ack(6, subscription))
        await peer.publish("t", b"x")
        await peer.expect_silence()


# CREDIT.


async def test_credit_pushes_waiting_and_future_messages(broker: RunningBroker) -> None:
    """Up to n further messages arrive as PUBLISH frames, without a POLL for each."""
    async with connected(broker) as peer, connected(broker) as source:
        subscription = await peer.subscribe("t")
        await source.publish("t", b"a", b"b")
        peer.send(credit(5, subscription, 3))
        await peer.expect(publish(2, "t", b"a"), publish(3, "t", b"b"))
        await peer.expect_silence()
        await source.publish("t", b"c", b"d")
        answer = await peer.next()
        assert answer.payload.endswith(b"c")
        await peer.expect_silence()


async def test_credits_add_up(broker: RunningBroker) -> None:
    """Two and three make five; a credit of zero adds nothing."""
    async with connected(broker) as peer, connected(broker) as source:
        subscription = await peer.subscribe("t")
        peer.send(
            credit(5, subscription, 2), credit(6, subscription, 3), credit(7, subscription, 0)
        )
        await peer.expect_silence()
        await source.publish("t", *(b"%d" % number for number in range(8)))
        got = [(await peer.next()).payload[-1:] for _ in range(5)]

        assert [b"%d" % number for number in range(5)] == got
        await peer.expect_silence()


async def test_the_largest_credits_add_up_without_wrapping(broker: RunningBroker) -> None:
    """Each CREDIT adds a u32 to the balance, which does not overflow."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        peer.send(*(credit(5, subscription, 2**32 - 1) for _ in range(3)))
        peer.send(publish(6, "t", b"x"), ping(7))
        answers = {(await peer.next()).kind for _ in range(2)}

        assert {PUBLISH, 8} == answers


async def test_qos_0_pushes_carry_the_latest_credits_correlation_id(
    broker: RunningBroker,
) -> None:
    """With an effective QoS of 0; a CREDIT of another subscription does not count."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
        other = await peer.subscribe("other", 0)
        peer.send(credit(50, subscription, 2), publish(1, "t", b"a", 0), ping(2))
        await peer.expect(publish(50, "t", b"a", 0), pong(2))
        peer.send(credit(60, subscription, 5), credit(70, other, 5), publish(3, "t", b"b", 0))
        await peer.expect(publish(60, "t", b"b", 0))
        peer.send(publish(4, "other", b"c", 0))
        await peer.expect(publish(70, "other", b"c", 0))


async def test_a_poll_mixed_with_credit_has_its_own_correlation_id(
    broker: RunningBroker,
) -> None:
    """POLL and CREDIT can be mixed: each message is delivered once."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
        await peer.publish("t", b"a", b"b", qos=0)
        peer.send(poll(5, subscription), credit(6, subscription, 4), poll(7, subscription))
        await peer.expect(publish(5, "t", b"a", 0), publish(6, "t", b"b", 0))
        await peer.expect_silence()


async def test_credit_ends_with_the_connection(broker: RunningBroker) -> None:
    """The next connection starts without credit."""
    async with connected(broker) as source:
        async with connected(broker) as peer:
            subscription = await peer.subscribe("t")
            peer.send(credit(5, subscription, 100))
            await peer.expect_silence()
        await until(lambda: broker.daemon.status.metrics().connections["blip"] == 1)
        await source.publish("t", b"a")
        async with connected(broker) as peer:
            await peer.expect_silence()
            assert b"a" == (await peer.take(subscription))[1]


async def test_credit_ends_with_half_close(broker: RunningBroker) -> None:
    """On half-close the broker answers everything, ends the credit and then closes."""
    async with connected(broker) as peer, connected(broker) as source:
        subscription = await peer.subscribe("t")
        await source.publish("t", b"a")
        peer.send(credit(5, subscription, 100), ping(6))
        peer.finish()
        await peer.expect(publish(2, "t", b"a"), pong(6))
        await peer.expect_close()
        await source.publish("t", b"b")
        await until(lambda: broker.daemon.status.metrics().connections["blip"] == 1)
        assert b"a" == (await source.take(subscription))[1]
        assert b"b" == (await source.take(subscription))[1]


async def test_redeliveries_are_pushed_too(broker: RunningBroker) -> None:
    """A message whose retry timer has run out is pushed ahead of newer ones."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b")
        peer.send(credit(5, subscription, 1))
        await peer.expect(publish(2, "t", b"a"))
        broker.clock.advance(5)
        peer.send(credit(6, subscription, 2))
        await peer.expect(publish(2, "t", b"a"), publish(3, "t", b"b"))


async def test_pushes_stop_at_the_in_flight_limit_and_resume_after_an_ack() -> None:
    """The window applies to pushes as well; an ACK makes room for the next one."""
    async with broker_at(delivery={"window": 2}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(6)))
        peer.send(credit(5, subscription, 100))
        tags = [(await peer.next()).correlation_id for _ in range(2)]
        await peer.expect_silence()
        for _ in range(4):
            peer.send(ack(tags.pop(0), subscription))
            tags.append((await peer.next()).correlation_id)
        await peer.expect_silence()


@pytest.mark.parametrize("window", [5, 64])
async def test_credit_reads_a_backlog_beyond_the_window(window: int) -> None:
    """Pushes continue through the backlog in the log to its end."""
    count = 40 * window if window < 64 else 1000
    async with broker_at(delivery={"window": window}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(count)))
        peer.send(credit(5, subscription, count))
        for number in range(count):
            answer = await peer.next()
            assert answer.payload.endswith(b"t%d" % number)
            peer.send(ack(answer.correlation_id, subscription))
        await peer.expect_silence()


@pytest.mark.parametrize("qos", [0, 1])
async def test_large_pushes_do_not_stall(broker: RunningBroker, qos: int) -> None:
    """Messages that do not fit into the output buffer are pushed once there is room."""
    count = 60
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", qos)
        for _ in range(count):
            await peer.publish("t", bytes(200_000), qos=qos)
        peer.send(credit(5, subscription, count))
        sizes = {len((await peer.next()).payload) for _ in range(count)}

        assert {struct.calcsize(">BH") + 1 + 200_000} == sizes
