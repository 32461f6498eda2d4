"""What a Vibe peer holds, settles, and gives back when it goes."""

from tests.integration.vibe.peer import (
    PONG,
)
from tests.integration.vibe_peer import (
    ack,
    ping,
    publish,
    subscribe,
)
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken


def test_a_pong_waits_for_the_acknowledgements_before_it() -> None:
    """An Ack has no reply; the Ping behind it says that it is durable."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    connection.receive(publish("2", "q"))
    hand.settle()
    taken(wire)
    connection.receive(ack("2") + ping("3"))

    assert [] == taken(wire)
    hand.commit()
    assert [(PONG, "3")] == kinds(wire)


def test_an_acknowledgement_after_the_goodbye_still_counts() -> None:
    """It was on its way: the message must not come back after the restart."""
    hand = VibeHand()
    connection, _ = hand.vibe()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    connection.receive(publish("m", "q"))
    hand.settle()
    hand.engine.drain()
    hand.engine.say_goodbye()
    connection.receive(ack("m"))

    assert 0 == hand.engine.broker.queues.by_name["q"].waiting()


def test_a_broken_connection_counts_as_an_attempt() -> None:
    """Unlike goodbye, Disconnect and Unsubscribe."""
    hand = VibeHand()
    connection, _ = hand.vibe()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    connection.receive(publish("m", "q"))
    hand.settle()
    connection.lost()
    lane = hand.engine.broker.queues.by_name["q"].lanes[0]

    assert [1] == [entry.attempts for entry in lane.in_flight.all()]
