"""What a Vibe peer receives when the log refuses a batch."""

from tests.integration.vibe.peer import DELIVER, ERROR, PONG, PUBLISH_ACK, Message
from tests.integration.vibe_peer import ack, create, ping, publish
from tests.unit.server.by_hand import DISK_FULL, HandWire
from tests.unit.server.strands.vibe.vibe_by_hand import (
    DISK_FULL_ERROR,
    VibeHand,
    errors,
    kinds,
    taken,
)


def test_a_publish_that_the_log_refuses_gets_an_error_in_its_place() -> None:
    """SERVER_ERROR with the request's id, behind the answers to earlier requests."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("2", "q") + ping("3") + publish("4", "q"))
    hand.fill_disk()
    found = taken(wire)

    assert [(ERROR, "2"), (PONG, "3"), (ERROR, "4")] == [(one.kind, one.id) for one in found]
    assert [DISK_FULL_ERROR, DISK_FULL_ERROR] == [found[0].error, found[2].error]
    assert ["q", "q"] == [found[0].queue, found[2].queue]


def test_a_repeat_is_refused_with_its_original_and_forgotten() -> None:
    """Both wait for the same record; after the refusal the dedupId may be used again."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("2", "q", dedupId="d") + publish("3", "q", dedupId="d"))
    hand.fill_disk()
    assert [("2", *DISK_FULL_ERROR), ("3", *DISK_FULL_ERROR)] == errors(wire)
    hand.engine.room_made()
    connection.receive(publish("4", "q", dedupId="d"))
    hand.settle()

    assert [(PUBLISH_ACK, "4")] == kinds(wire)
    assert 1 == hand.engine.broker.queues.by_name["q"].waiting()


def test_a_rejection_whose_dead_letter_the_log_refuses_gets_an_error_before_the_pong() -> None:
    """A Pong says that a crash undoes nothing before it, and this one is undone already."""
    hand = VibeHand()
    connection, wire = hand.consumer("m")
    taken(wire)
    connection.receive(ack("m", result="reject") + ping("2"))
    hand.fill_disk()
    delivery, error, pong = settled(hand, wire)

    assert (ERROR, "m") == (error.kind, error.id)
    assert ("SERVER_ERROR", "not rejected, the message is delivered again: " + DISK_FULL) == (
        error.error
    )
    assert [(DELIVER, "m"), (PONG, "2")] == [(one.kind, one.id) for one in (delivery, pong)]


def test_while_the_log_refuses_a_rejection_gets_an_error_at_once() -> None:
    """And once it has room, a rejection is committed before its Pong, without an answer."""
    hand = VibeHand()
    connection, wire = hand.consumer("m")
    connection.receive(publish("other", "q"))
    hand.fill_disk()
    taken(wire)
    connection.receive(ack("m", result="reject") + ping("2"))
    error, pong = settled(hand, wire)
    assert [(ERROR, "m"), (PONG, "2")] == [(one.kind, one.id) for one in (error, pong)]
    assert error.error[1].startswith("not rejected, ")
    hand.engine.room_made()
    hand.now_us += 10**9
    hand.engine.tick()
    assert [(DELIVER, "m")] == kinds(wire)
    connection.receive(ack("m", result="reject") + ping("3"))
    assert [] == kinds(wire)
    hand.settle()

    assert [(PONG, "3")] == kinds(wire)
    assert 1 == hand.engine.broker.queues.by_name["dlq.q"].waiting()


def settled(hand: VibeHand, wire: HandWire) -> list[Message]:
    """Commit everything, and return what was written."""
    hand.settle()
    return taken(wire)
