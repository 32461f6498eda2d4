"""Vibe's commands on queues, and their answers when the log refuses."""

import json

from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    DELIVER,
    ERROR,
    LIST_QUEUES,
    PONG,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE_ACK,
)
from tests.integration.vibe_peer import create, ping, publish, request, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import (
    DISK_FULL_ERROR,
    VibeHand,
    errors,
    kinds,
    taken,
)


def test_a_queue_command_is_answered_when_its_record_is_committed() -> None:
    """A declaration and a deletion alike."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))

    assert [] == kinds(wire)
    hand.settle()
    connection.receive(request(DELETE_QUEUE, "2", "q"))

    assert [(CREATE_QUEUE, "1")] == kinds(wire)
    hand.settle()
    assert [(DELETE_QUEUE, "2")] == kinds(wire)


def test_a_queue_whose_record_is_refused_does_not_exist() -> None:
    """The waiting reply becomes an error that says why."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.fill_disk()

    assert [("1", *DISK_FULL_ERROR)] == errors(wire)
    assert {} == hand.engine.broker.queues.by_name


def test_a_queue_is_described_and_listed() -> None:
    """In this dialect an unknown queue has an empty description."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q", maxQueueSize="7"))
    hand.settle()
    taken(wire)
    for kind, name in ((QUEUE_INFO, "q"), (QUEUE_INFO, "p"), (LIST_QUEUES, "")):
        connection.receive(request(kind, "2", name))
    known, unknown, names = taken(wire)

    assert 7 == json.loads(known.payload)["maxSize"]
    assert b"" == unknown.payload
    assert ["q"] == json.loads(names.payload)


def test_a_list_too_long_for_a_frame_is_an_error() -> None:
    """It is refused, not truncated."""
    hand = VibeHand(body_max=4096)
    connection, wire = hand.vibe()
    for number in range(20):
        connection.receive(create("1", f"{number:0200}"))
        hand.settle()
    taken(wire)
    connection.receive(request(LIST_QUEUES, "2"))

    ((request_id, code, text),) = errors(wire)
    assert ("2", "SERVER_ERROR") == (request_id, code)
    assert text.startswith("the list is longer than a frame: vibe.max_message_bytes is ")


def test_a_subscribe_to_a_queue_whose_declaration_was_refused_is_refused() -> None:
    """The queue does not exist and has no consumer; the next Subscribe creates it."""
    hand = VibeHand()
    one, one_wire = hand.vibe()
    two, two_wire = hand.vibe()
    one.receive(subscribe("1", "q"))
    two.receive(subscribe("2", "q") + ping("3"))
    hand.fill_disk()

    assert [("1", *DISK_FULL_ERROR)] == errors(one_wire)
    assert [(ERROR, "2"), (PONG, "3")] == kinds(two_wire)
    assert {} == one.consumers
    assert {} == hand.engine.broker.queues.by_name
    hand.engine.room_made()
    two.receive(subscribe("4", "q") + publish("5", "q"))
    hand.settle()
    assert [(SUBSCRIBE_ACK, "4"), (DELIVER, "5"), (PUBLISH_ACK, "5")] == kinds(two_wire)


def test_without_auto_create_a_queue_must_be_declared() -> None:
    """Publish and Subscribe to an unknown name: QUEUE_NOT_FOUND, and no queue is created."""
    hand = VibeHand(auto_create=False)
    connection, wire = hand.vibe()
    connection.receive(publish("1", "q") + subscribe("2", "q"))

    assert ["QUEUE_NOT_FOUND"] * 2 == [code for _, code, _ in errors(wire)]
    connection.receive(create("3", "q"))
    hand.settle()
    connection.receive(publish("4", "q"))
    hand.settle()
    assert [(CREATE_QUEUE, "3"), (PUBLISH_ACK, "4")] == kinds(wire)
