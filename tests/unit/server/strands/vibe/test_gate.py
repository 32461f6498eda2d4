"""Who a peer is, and what it may do."""

from tests.integration.vibe.peer import (
    CONNECT_ACK,
    DELETE_QUEUE,
    DELIVER,
    DISCONNECT,
    ERROR,
    PONG,
    PUBLISH_ACK,
)
from tests.integration.vibe_peer import connect, create, ping, publish, request, subscribe
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, errors, kinds, taken


def test_a_key_may_do_what_its_patterns_say() -> None:
    """AUTH_FAILED "not allowed" with the request's id and queue; queues need `admin`."""
    hand = VibeHand()
    connection, wire = hand.vibe(authToken="less")
    connection.receive(publish("1", "closed") + subscribe("2", "closed") + create("3", "open"))
    connection.receive(request(DELETE_QUEUE, "4", "open") + publish("5", "open"))
    hand.settle()
    found = taken(wire)

    refused = [("AUTH_FAILED", "not allowed")] * 4
    assert refused == [frame.error for frame in found[:4]]
    assert ["closed", "closed", "open", "open"] == [frame.queue for frame in found[:4]]
    assert [(PUBLISH_ACK, "5")] == [(frame.kind, frame.id) for frame in found[4:]]


def test_the_fifth_wrong_key_closes() -> None:
    """Each is answered, the fifth too; what follows is not looked at."""
    hand = VibeHand()
    connection, wire = hand.stranger()
    connection.receive(b"".join(connect(str(number), authToken="wrong") for number in range(4)))
    assert not wire.is_closed
    connection.receive(connect("4", authToken="wrong") + connect("5", authToken="key"))

    wanted = [(str(number), "AUTH_FAILED", "invalid credentials") for number in range(5)]
    assert wanted == errors(wire)
    assert wire.is_closed


def test_whoever_connects_again_is_another() -> None:
    """What the first was allowed, to publish or to consume, the second must be as well."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(subscribe("1", "closed"))
    hand.settle()
    connection.receive(publish("2", "closed"))
    hand.settle()
    assert (DELIVER, "2") in kinds(wire)
    connection.receive(connect("3", authToken="less") + publish("4", "closed"))
    assert [(CONNECT_ACK, "3"), (ERROR, "4")] == kinds(wire)
    other, _ = hand.vibe()
    other.receive(publish("5", "closed"))
    hand.settle()

    assert [] == kinds(wire)


def test_before_connect_only_ping_is_answered() -> None:
    """Anything else is told to Connect first; Disconnect ends."""
    hand = VibeHand()
    connection, wire = hand.stranger()
    connection.receive(ping("1") + publish("2", "q"))
    found = taken(wire)

    assert [(PONG, "1"), (ERROR, "2")] == [(frame.kind, frame.id) for frame in found]
    assert ("AUTH_FAILED", "Connect first") == found[1].error
    connection.receive(request(DISCONNECT, "3"))
    assert wire.is_closed
