"""What a peer may still acknowledge: its own, oldest first, and no more than it must know."""

from braidmq.server.strands.vibe.deliveries import SWEEP_MIN
from tests.integration.vibe.peer import DELIVER, UNSUBSCRIBE
from tests.integration.vibe_peer import ack, ping, publish, request, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken


def test_what_was_acknowledged_is_swept_out() -> None:
    """A consumer for life does not remember every delivery it ever had."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    other, _ = hand.vibe()
    connection.receive(subscribe("1", "q", 10_000))
    hand.settle()
    batch = 100
    for first in range(0, 3 * SWEEP_MIN, batch):
        names = [str(number) for number in range(first, first + batch)]
        other.receive(b"".join(publish(name, "q") for name in names))
        hand.settle()
        # Taken back by the broker, acknowledged by nobody here: only a sweep forgets them.
        for lane in hand.engine.broker.queues.by_name["q"].lanes:
            for entry in lane.in_flight.all():
                hand.engine.broker.queues.acknowledge(entry, hand.now_us)
        hand.settle()
        taken(wire)

    known = connection._outstanding._by_id  # noqa: SLF001 - the bound is inside
    assert SWEEP_MIN >= sum(len(entries) for entries in known.values())


def test_what_can_still_be_acknowledged_is_never_swept_out() -> None:
    """The bound gives way to what a peer holds: prefetch bounds that."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    count = 2 * SWEEP_MIN + 1
    connection.receive(subscribe("1", "q", 10_000))
    hand.settle()
    connection.receive(b"".join(publish(str(number), "q") for number in range(count)))
    hand.settle()
    assert count == sum(kind == DELIVER for kind, _ in kinds(wire))
    connection.receive(b"".join(ack(str(number)) for number in range(count)) + ping("2"))
    hand.settle()

    assert count == hand.engine.broker.stats.acknowledged
    assert 0 == len(connection._outstanding)  # noqa: SLF001 - nothing is left behind


def test_two_messages_of_one_id_are_acknowledged_oldest_first() -> None:
    """And on the frame's queue when it names one."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    for queue in ("one", "two"):
        connection.receive(subscribe(queue, queue))
        hand.settle()
    connection.receive(publish("m", "one") + publish("m", "two") + publish("m", "one"))
    hand.settle()
    taken(wire)
    queues = hand.engine.broker.queues.by_name
    connection.receive(ack("m", "two"))
    assert [2, 0] == [queues[name].in_flight_count() for name in ("one", "two")]
    connection.receive(ack("m", "two") + ack("x", messageId="m"))

    assert [1, 0] == [queues[name].in_flight_count() for name in ("one", "two")]
    assert 1 == hand.engine.broker.stats.unknown_acks


def test_a_message_that_is_with_another_is_not_ours_to_settle() -> None:
    """After the timer it went to somebody else; our Ack is ignored and counted."""
    hand = VibeHand()
    one, _ = hand.vibe()
    one.receive(subscribe("1", "q"))
    hand.settle()
    one.receive(publish("m", "q"))
    hand.settle()
    two, two_wire = hand.vibe()
    two.receive(subscribe("2", "q"))
    hand.settle()
    one.receive(request(UNSUBSCRIBE, "3", "q"))
    assert (DELIVER, "m") in kinds(two_wire)
    one.receive(ack("m"))
    queue = hand.engine.broker.queues.by_name["q"]

    assert (1, 1) == (queue.in_flight_count(), hand.engine.broker.stats.unknown_acks)
    two.receive(ack("m"))
    assert (0, 1) == (queue.in_flight_count(), hand.engine.broker.stats.acknowledged)


def test_what_was_held_stays_ackable_after_unsubscribe() -> None:
    """Until another consumer has it."""
    hand = VibeHand()
    connection, _ = hand.vibe()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    connection.receive(publish("m", "q"))
    hand.settle()
    connection.receive(request(UNSUBSCRIBE, "2", "q") + ack("m"))
    hand.settle()

    assert 0 == hand.engine.broker.queues.by_name["q"].waiting()
    assert 1 == hand.engine.broker.stats.acknowledged
