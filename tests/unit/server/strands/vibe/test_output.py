"""What a Vibe peer is told when the log refuses what it waits for."""

from braidmq.base.errors import LogFullError
from tests.integration.vibe.peer import (
    ERROR,
    PONG,
    PUBLISH_ACK,
)
from tests.integration.vibe_peer import (
    create,
    ping,
    publish,
)
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, errors, kinds, taken

FULL = ("SERVER_ERROR", "the disk is full")


def full() -> LogFullError:
    return LogFullError("the disk is full")


def test_a_publish_that_the_log_refuses_is_an_error_in_its_place() -> None:
    """SERVER_ERROR with the request's id, behind what was answered before it."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("2", "q") + ping("3") + publish("4", "q"))
    hand.fail(full())
    found = taken(wire)

    assert [(ERROR, "2"), (PONG, "3"), (ERROR, "4")] == [(one.kind, one.id) for one in found]
    assert [FULL, FULL] == [found[0].error, found[2].error]
    assert ["q", "q"] == [found[0].queue, found[2].queue]


def test_a_repeat_is_refused_with_its_first_and_forgotten() -> None:
    """Both wait for the same record; after the refusal the dedupId may be used again."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("2", "q", dedupId="d") + publish("3", "q", dedupId="d"))
    hand.fail(full())
    assert [("2", *FULL), ("3", *FULL)] == errors(wire)
    hand.engine.room_made()
    connection.receive(publish("4", "q", dedupId="d"))
    hand.settle()

    assert [(PUBLISH_ACK, "4")] == kinds(wire)
    assert 1 == hand.engine.broker.queues.by_name["q"].waiting()
