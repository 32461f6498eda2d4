"""What Blip answers while the log is slow or refuses; the rest is tested over sockets."""

from braidmq.base.errors import LogPoisonedError
from braidmq.broker.admission import UNCOMMITTED_BYTES_MAX
from braidmq.broker.topics import TOO_MANY, TOPIC_NAMES_BYTES_MAX
from tests.integration.blip.peer import (
    ack,
    nack,
    ping,
    poll,
    pong,
    publish,
    subscribe,
)
from tests.integration.vibe_peer import create
from tests.integration.vibe_peer import publish as vibe_publish
from tests.unit.server.by_hand import DISK_FULL_NACK, Hand, frames
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand


def test_a_full_log_refuses_only_durable_publishes() -> None:
    """At once; QoS 0 and ACK go on, and durable publishes do when there is room again."""
    hand = Hand()
    connection, wire = hand.subscriber()
    connection.receive(publish(3, "t", b"b"))
    hand.fill_disk()
    wire.take()
    connection.receive(
        publish(4, "t", b"c") + publish(5, "t", b"m", 0) + poll(6, 1) + poll(7, 1)
    )
    assert wire.take() == frames(
        nack(4, 500, DISK_FULL_NACK), publish(2, "t", b"a"), publish(7, "t", b"m", 0)
    )
    connection.receive(ack(2, 1) + ping(8))
    hand.commit()
    assert wire.take() == frames(pong(8))
    hand.engine.room_made()
    connection.receive(publish(9, "t", b"d") + ping(10))
    hand.commit()
    assert wire.take() == frames(pong(10))


def test_a_memory_only_queue_takes_durable_publishes_while_the_log_is_full() -> None:
    """On such a queue every publish is in effect QoS 0, and needs no log."""
    hand = VibeHand()
    declaring, _ = hand.vibe()
    declaring.receive(create("1", "q", durable="false"))
    hand.settle()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    hand.fill_disk()
    wire.take()
    connection.receive(publish(2, "q", b"b") + publish(3, "t", b"c"))

    assert wire.take() == frames(nack(3, 500, DISK_FULL_NACK))
    assert 1 == hand.engine.broker.queues.by_name["q"].waiting()


def test_a_blocked_publisher_is_listed_once() -> None:
    """However often it is woken meanwhile; once it is gone, it is not listed."""
    hand = VibeHand()
    declaring, _ = hand.vibe()
    declaring.receive(create("1", "q", maxQueueSize="1", overflowStrategy="BlockPublisher"))
    hand.settle()
    connection, wire = hand.connect()
    connection.receive(publish(1, "q", b"a") + publish(2, "q", b"b") + ping(3))
    for _ in range(3):
        connection.wake()
    queue = hand.engine.broker.queues.by_name["q"]
    assert [connection] == queue.blocked
    hand.settle()
    assert [] == wire.take()
    connection.lost()

    assert [] == queue.blocked


# A publish that is not simply stored.


def full_queue(hand: VibeHand, **options: str) -> None:
    """Declare `q` with room for one message, and fill it."""
    declaring, _ = hand.vibe()
    declaring.receive(create("1", "q", maxQueueSize="1", **options))
    hand.settle()
    declaring.receive(vibe_publish("2", "q"))
    hand.settle()


def test_a_ping_behind_a_memory_only_dead_letter_keeps_its_place() -> None:
    """The PONG waits for the durable publish before it, though the dead letter has no id."""
    hand = VibeHand()
    declaring, _ = hand.vibe()
    declaring.receive(create("0", "grave", durable="false"))
    full_queue(hand, deadLetterQueueName="grave")
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"durable") + publish(2, "q", b"b") + ping(3))
    before = wire.take()
    hand.settle()

    assert ([], frames(pong(3))) == (before, wire.take())
    assert 1 == hand.engine.broker.queues.by_name["grave"].waiting()


def test_redirected_publishes_wait_for_the_log_too() -> None:
    """A full queue is no way around the limit on uncommitted bytes."""
    hand = VibeHand()
    full_queue(hand)
    connection, _ = hand.connect()
    body = bytes(300_000)
    connection.receive(b"".join(publish(number, "q", body) for number in range(12)))
    waiting = hand.engine.broker.outgoing.bytes
    hand.settle()

    assert UNCOMMITTED_BYTES_MAX <= waiting < UNCOMMITTED_BYTES_MAX + 2 * len(body)
    assert 12 == hand.engine.broker.queues.by_name["dlq.q"].waiting()


def test_a_dead_letter_that_the_log_refuses_is_nacked() -> None:
    """It is not counted as a dead letter."""
    hand = VibeHand()
    full_queue(hand)
    connection, wire = hand.connect()
    connection.receive(publish(1, "q", b"a") + publish(2, "q", b"b", 0))
    hand.fill_disk()

    assert frames(nack(1, 500, DISK_FULL_NACK), nack(2, 500, DISK_FULL_NACK)) == wire.take()
    assert 0 == hand.engine.broker.stats.dead_lettered


def test_a_blocked_publisher_is_nacked_when_the_log_fails_for_good() -> None:
    """The broker stops, but does not leave the publisher without an answer."""
    hand = VibeHand()
    full_queue(hand, overflowStrategy="BlockPublisher")
    connection, wire = hand.connect()
    connection.receive(publish(1, "q", b"a"))
    hand.fail(LogPoisonedError("fdatasync", "Input/output error"))

    text = "durable publish failed: log poisoned: fdatasync failed: Input/output error"
    assert frames(nack(1, 500, text)) == wire.take()


def test_a_publish_to_a_memory_only_queue_does_not_overtake_a_subscribe() -> None:
    """Even with QoS 1 it has no record that would follow the subscription's."""
    hand = VibeHand()
    declaring, _ = hand.vibe()
    declaring.receive(create("1", "q", durable="false"))
    hand.settle()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "q") + publish(2, "q", b"a"))
    hand.settle()
    (answer,) = wire.take()
    subscription = int.from_bytes(answer.payload, "big")
    connection.receive(poll(3, subscription))

    assert frames(publish(3, "q", b"a", 0)) == wire.take()


def test_too_many_topics_refuse_any_publish() -> None:
    """Durable or not, with the same text."""
    hand = Hand()
    connection, wire = hand.connect()
    hand.engine.broker.topics._names_bytes = TOPIC_NAMES_BYTES_MAX  # noqa: SLF001 - to reach the limit at once
    connection.receive(publish(1, "t", b"a", 0) + publish(2, "t", b"a") + subscribe(3, "t"))

    text = f"publish failed: {TOO_MANY}"
    subscribe_text = f"subscribe failed: {TOO_MANY}"
    assert wire.take() == frames(
        nack(1, 500, text), nack(2, 500, text), nack(3, 500, subscribe_text)
    )
