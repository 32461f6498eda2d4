"""What a Vibe peer receives when the log refuses a batch."""

from tests.integration.vibe.peer import ERROR, PONG, PUBLISH_ACK
from tests.integration.vibe_peer import create, ping, publish
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
