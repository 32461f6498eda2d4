"""Messages that a Vibe peer holds: acknowledged, or returned when it leaves."""

from braidmq.broker.delivery.channels import LEFT, Entry
from braidmq.server.strands.vibe.deliveries import Outstanding
from tests.integration.vibe.peer import PONG
from tests.integration.vibe_peer import ack, ping
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, errors, kinds, taken


def test_a_pong_waits_for_the_acknowledgements_before_it() -> None:
    """An Ack has no reply; the Pong behind it shows that it is durable."""
    hand = VibeHand()
    connection, wire = hand.consumer("2")
    taken(wire)
    connection.receive(ack("2") + ping("3"))

    assert [] == taken(wire)
    hand.commit()
    assert [(PONG, "3")] == kinds(wire)


def test_an_acknowledgement_after_the_goodbye_still_counts() -> None:
    """It was on its way: the message must not be redelivered after the restart."""
    hand = VibeHand()
    connection, _ = hand.consumer("m")
    hand.engine.drain()
    hand.engine.say_goodbye()
    connection.receive(ack("m"))

    assert 0 == hand.engine.broker.queues.by_name["q"].waiting()


def test_a_broken_connection_counts_as_an_attempt() -> None:
    """Unlike goodbye, Disconnect and Unsubscribe."""
    hand = VibeHand()
    connection, _ = hand.consumer("m")
    connection.lost()
    lane = hand.engine.broker.queues.by_name["q"].lanes[0]

    assert [1] == [entry.attempts for entry in lane.in_flight.all()]


def test_a_subscriber_that_came_back_acknowledges_what_it_holds() -> None:
    """Not what it was handed before it left: it would get the message again."""
    hand = VibeHand()
    connection, _ = hand.consumer("m")
    (held,) = hand.engine.broker.queues.by_name["q"].lanes[0].in_flight.all()
    before = Entry(held.channel, held.message, held.previous)
    before.state = LEFT
    outstanding = Outstanding(connection)
    outstanding.note("m", before)
    outstanding.note("m", held)

    assert [held, before, None] == [outstanding.take("m", "q") for _ in range(3)]


def test_a_principal_that_is_gone_settles_nothing() -> None:
    """What it held is for others, whatever it says about it; each Ack is refused."""
    hand = VibeHand()
    connection, wire = hand.consumer("m")
    taken(wire)
    assert connection.principal is not None
    connection.principal.gone = True
    for result in ({}, {"result": "reject"}, {"result": "requeue", "delayMs": "0"}):
        connection.receive(ack("m", **result))
        assert [("m", "AUTH_FAILED", "not allowed")] == errors(wire)

    assert 1 == hand.engine.broker.queues.by_name["q"].in_flight_count()
    connection.revoke()
    connection.lost()
    assert (1, 0) == (
        hand.engine.broker.queues.by_name["q"].waiting(),
        hand.engine.broker.queues.by_name["q"].in_flight_count(),
    )
