"""Authentication and permissions of Vibe peers."""

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
    """AUTH_FAILED with the request's id and queue; declaring and deleting need `admin`."""
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


def test_the_fifth_wrong_key_closes_the_connection() -> None:
    """Each is answered, even the fifth; later commands are ignored."""
    hand = VibeHand()
    connection, wire = hand.unauthenticated()
    connection.receive(b"".join(connect(str(number), authToken="wrong") for number in range(4)))
    assert not wire.is_closed
    connection.receive(connect("4", authToken="wrong") + connect("5", authToken="key"))

    wanted = [(str(number), "AUTH_FAILED", "invalid credentials") for number in range(5)]
    assert wanted == errors(wire)
    assert wire.is_closed


def test_a_second_connect_changes_the_principal() -> None:
    """Its permissions apply to new publishes and to the subscriptions that exist."""
    hand = VibeHand()
    connection, wire = hand.consumer("2", "closed")
    assert (DELIVER, "2") in kinds(wire)
    connection.receive(connect("3", authToken="less") + publish("4", "closed"))
    assert [(CONNECT_ACK, "3"), (ERROR, "4")] == kinds(wire)
    other, _ = hand.vibe()
    other.receive(publish("5", "closed"))
    hand.settle()

    assert [] == kinds(wire)


def test_before_connect_only_ping_is_answered() -> None:
    """Anything else is refused with "Connect first"; Disconnect closes the connection."""
    hand = VibeHand()
    connection, wire = hand.unauthenticated()
    connection.receive(ping("1") + publish("2", "q"))
    found = taken(wire)

    assert [(PONG, "1"), (ERROR, "2")] == [(frame.kind, frame.id) for frame in found]
    assert ("AUTH_FAILED", "Connect first") == found[1].error
    connection.receive(request(DISCONNECT, "3"))
    assert wire.is_closed
