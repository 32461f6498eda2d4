"""POLL and ACK: refusals, empty polls, tags, the window, and a backlog beyond it."""

from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    ACK,
    POLL,
    ack,
    broker_at,
    connected,
    frame,
    nack,
    not_found,
    ping,
    poll,
    pong,
    publish,
)

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize(("kind", "name"), [(POLL, "POLL"), (ACK, "ACK")])
@pytest.mark.parametrize("payload", [b"", b"1234567", b"123456789"])
async def test_a_payload_that_is_not_8_bytes_is_400(
    broker: RunningBroker, kind: int, name: str, payload: bytes
) -> None:
    """The text of the NACK names the frame."""
    async with connected(broker) as peer:
        peer.send(frame(kind, 7, payload))
        await peer.expect(nack(7, 400, f"invalid {name} payload"))


@pytest.mark.parametrize("make", [poll, ack])
async def test_subscription_0_is_400(broker: RunningBroker, make: type) -> None:
    """The broker refuses id 0 before it looks anything up."""
    async with connected(broker) as peer:
        peer.send(make(7, 0))
        await peer.expect(nack(7, 400, "subscription_id must be non-zero"))


@pytest.mark.parametrize("make", [poll, ack])
@pytest.mark.parametrize("subscription_id", [1, 999, 2**64 - 1])
async def test_an_unknown_subscription_is_404(
    broker: RunningBroker, make: type, subscription_id: int
) -> None:
    """The broker never stays silent, so the client learns that its state is stale."""
    async with connected(broker) as peer:
        peer.send(make(7, subscription_id))
        await peer.expect(not_found(7))


async def test_a_message_id_is_not_a_subscription_id(broker: RunningBroker) -> None:
    """All ids come from the log, but only a SUBSCRIBE's names a subscription."""
    async with connected(broker) as peer:
        await peer.subscribe("t")
        await peer.publish("t", b"x")
        peer.send(poll(7, 2))
        await peer.expect(not_found(7))


async def test_a_poll_of_an_empty_subscription_gets_no_reply_and_does_not_wait(
    broker: RunningBroker,
) -> None:
    """A message that arrives later needs another POLL."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        assert None is await peer.poll(subscription)
        await peer.publish("t", b"later")
        await peer.expect_silence()

        assert b"later" == (await peer.take(subscription))[1]


async def test_each_poll_delivers_one_message(broker: RunningBroker) -> None:
    """Oldest first, even when POLLs are pipelined."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b", b"c")
        peer.send(poll(5, subscription), poll(6, subscription), ping(7))
        await peer.expect(publish(2, "t", b"a"), publish(3, "t", b"b"), pong(7))


async def test_an_ack_has_no_reply_and_closes_the_tag(broker: RunningBroker) -> None:
    """The same ACK again finds no open tag."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a")
        tag, _ = await peer.take(subscription)
        peer.send(ack(tag, subscription))
        await peer.expect_silence()
        peer.send(ack(tag, subscription))
        await peer.expect(not_found(tag))


async def test_a_message_that_was_never_delivered_has_no_open_tag(
    broker: RunningBroker,
) -> None:
    """Guessing the id of a waiting message does not settle it."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b")
        assert (2, b"a") == await peer.take(subscription)
        peer.send(ack(3, subscription), ack(4, subscription), ack(1, subscription))
        await peer.expect(not_found(3), not_found(4), not_found(1))

        assert (3, b"b") == await peer.take(subscription)


async def test_a_tag_belongs_to_its_subscription(broker: RunningBroker) -> None:
    """The same message has its own tag, with the same number, in each subscription."""
    async with connected(broker) as peer:
        first = await peer.subscribe("t")
        second = await peer.subscribe("t")
        await peer.publish("t", b"a")
        tag, _ = await peer.take(first)
        peer.send(ack(tag, second))
        await peer.expect(not_found(tag))
        await peer.acknowledge(first, tag)

        assert (tag, b"a") == await peer.take(second)


async def test_acks_in_any_order_settle_exactly_what_they_name(tmp_path: Path) -> None:
    """After a restart exactly the unacknowledged messages are delivered again."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(10)))
        tags = [(await peer.take(subscription))[0] for _ in range(10)]
        await peer.acknowledge(subscription, *(tags[i] for i in (9, 0, 4, 3, 5, 7)))
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        again = [await peer.take(subscription) for _ in range(4)]

        assert [(tags[i], b"%d" % i) for i in (1, 2, 6, 8)] == again
        assert None is await peer.poll(subscription)


async def test_another_connection_may_acknowledge(broker: RunningBroker) -> None:
    """A tag belongs to the subscription, not to the connection."""
    async with connected(broker) as one, connected(broker) as other:
        subscription = await one.subscribe("t")
        await one.publish("t", b"a")
        tag, _ = await one.take(subscription)
        await other.acknowledge(subscription, tag)
        one.send(ack(tag, subscription))
        await one.expect(not_found(tag))


async def test_poll_gets_no_reply_at_the_in_flight_limit() -> None:
    """At most `delivery.window` messages are in flight; an ACK makes room for one more."""
    async with broker_at(delivery={"window": 3}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(20)))
        tags = [(await peer.take(subscription))[0] for _ in range(3)]

        assert None is await peer.poll(subscription)
        await peer.acknowledge(subscription, tags[1])
        assert b"3" == (await peer.take(subscription))[1]
        assert None is await peer.poll(subscription)


async def test_the_in_flight_limit_counts_bytes_too() -> None:
    """`delivery.window_bytes` limits the bytes in flight; one message always fits."""
    settings = {"window_bytes": 1000}
    async with broker_at(delivery=settings) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", bytes(5000), bytes(5000))
        tag, _ = await peer.take(subscription)

        assert None is await peer.poll(subscription)
        await peer.acknowledge(subscription, tag)
        assert None is not await peer.poll(subscription)


@pytest.mark.parametrize("window", [1, 7, 100])
async def test_poll_reads_a_backlog_beyond_the_window(window: int) -> None:
    """POLL sees every committed message: the PONG waits for a message read from the log."""
    count = 30 * window if window < 100 else 2500
    async with broker_at(delivery={"window": window}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("other", b"not for us")
        await peer.publish("t", *(b"%d" % number for number in range(count)))
        for number in range(count):
            tag, message = await peer.take(subscription)
            assert b"%d" % number == message
            peer.send(ack(tag, subscription))

        assert None is await peer.poll(subscription)


async def test_pipelined_polls_read_a_backlog_to_its_end() -> None:
    """Many POLLs in one segment wait for the log just as a single one does."""
    count = 500
    async with broker_at(delivery={"window": 600}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(count)))
    async with broker_at(delivery={"window": 10}) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(count)))
        peer.send(*(poll(5, subscription) for _ in range(count)), ping(6))
        for number in range(10):
            await peer.expect(publish(subscription + 1 + number, "t", b"%d" % number))
        await peer.expect(pong(6))


async def test_qos_0_overflow_drops_the_oldest_and_counts() -> None:
    """QoS 0 beyond the window drops the oldest QoS 0 message, in a QoS 1 subscription too."""
    async with broker_at(delivery={"window": 3}) as broker, connected(broker) as peer:
        durable = await peer.subscribe("t", 1)
        volatile = await peer.subscribe("t", 0)
        await peer.publish("t", b"kept")
        await peer.publish("t", *(b"%d" % number for number in range(5)), qos=0)
        seen = [(await peer.take(durable))[1] for _ in range(4)]

        assert [b"kept", b"2", b"3", b"4"] == seen
        assert [b"2", b"3", b"4"] == [(await peer.take(volatile))[1] for _ in range(3)]
        assert None is await peer.poll(volatile)
        assert 2 + 3 == broker.daemon.status.metrics().messages_dropped["overflow"]


async def test_durable_and_memory_only_messages_keep_their_common_order(
    broker: RunningBroker,
) -> None:
    """A QoS 1 subscription gets QoS 0 and QoS 1 messages in the order of publishing."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        for number in range(6):
            await peer.publish("t", b"%d" % number, qos=number % 2)
        seen = [(await peer.take(subscription))[1] for _ in range(6)]

        assert [b"%d" % number for number in range(6)] == seen
