"""Deliveries that a peer may still acknowledge: its own, oldest first, in bounded memory."""

from braidmq.server.strands.vibe.deliveries import SWEEP_MIN
from tests.integration.vibe.peer import DELIVER, UNSUBSCRIBE
from tests.integration.vibe_peer import ack, ping, publish, request, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken


def test_settled_deliveries_are_swept_out() -> None:
    """A long-lived connection does not remember every delivery that it ever had."""
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
        # The broker settles them, the connection acknowledges none: only a sweep drops them.
        for lane in hand.engine.broker.queues.by_name["q"].lanes:
            for entry in lane.in_flight.all():
                hand.engine.broker.queues.acknowledge(entry, hand.now_us)
        hand.settle()
        taken(wire)

    known = connection._outstanding._by_id  # noqa: SLF001 - the limit is internal
    assert SWEEP_MIN >= sum(len(entries) for entries in known.values())


def test_unsettled_deliveries_are_never_swept_out() -> None:
    """The limit gives way to the deliveries that a peer holds, which prefetch limits."""
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
    assert 0 == len(connection._outstanding)  # noqa: SLF001 - to show that nothing is left behind


def test_two_messages_with_one_id_are_acknowledged_oldest_first() -> None:
    """And only on the frame's queue, if it names one."""
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


def test_a_message_that_went_to_another_consumer_cannot_be_acknowledged() -> None:
    """The late Ack is ignored and counted."""
    hand = VibeHand()
    one, _ = hand.consumer("m")
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


def test_a_delivery_can_be_acknowledged_after_unsubscribe() -> None:
    """As long as no other consumer has received the message."""
    hand = VibeHand()
    connection, _ = hand.consumer("m")
    connection.receive(request(UNSUBSCRIBE, "2", "q") + ack("m"))
    hand.settle()

    assert 0 == hand.engine.broker.queues.by_name["q"].waiting()
    assert 1 == hand.engine.broker.stats.acknowledged
