"""What Vibe answers while the log hesitates or refuses, and while a publisher has to wait."""

from braidmq.base.errors import LogFullError
from tests.integration.vibe.peer import (
    CONNECT_ACK,
    CREATE_QUEUE,
    DELETE_QUEUE,
    DISCONNECT,
    ERROR,
    PONG,
    PUBLISH_ACK,
    SUBSCRIBE_ACK,
    body,
)
from tests.integration.vibe_peer import (
    ack,
    connect,
    create,
    ping,
    publish,
    request,
    subscribe,
)
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken

FULL = ("SERVER_ERROR", "the disk is full")


def full() -> LogFullError:
    return LogFullError("the disk is full")


# While the log hesitates.


def test_nothing_is_acknowledged_before_its_commit() -> None:
    """PublishAck, the declaration's reply and Pong wait for the log, and leave in order."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q") + publish("2", "q") + ping("3"))
    assert [] == taken(wire)
    hand.commit()
    assert [(CREATE_QUEUE, "1")] == kinds(wire)[:1]
    hand.settle()
    connection.receive(publish("4", "q") + publish("", "q") + ping("5"))

    assert [] == taken(wire)
    hand.settle()
    assert [(PUBLISH_ACK, "4"), (ERROR, "err-1"), (PONG, "5")] == kinds(wire)


def test_what_changes_a_queue_waits_for_the_publishes_before_it() -> None:
    """Only Publish, Ack and Ping go on while a reply waits; effects keep request order."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("2", "q") + request(DELETE_QUEUE, "3", "q"))

    assert "q" in hand.engine.broker.queues.by_name
    hand.settle()
    assert [(PUBLISH_ACK, "2"), (DELETE_QUEUE, "3")] == kinds(wire)
    assert {} == hand.engine.broker.queues.by_name


def test_a_command_that_waits_is_paid_for_once() -> None:
    """At two a second, a Publish and a Subscribe that waits for it are within the rate."""
    hand = VibeHand(messages_per_s=2)
    connection, wire = hand.vibe()
    connection.receive(publish("1", "q") + subscribe("2", "q"))
    hand.settle()

    assert [(PUBLISH_ACK, "1"), (SUBSCRIBE_ACK, "2")] == kinds(wire)


def test_above_the_rate_a_request_is_refused_and_an_acknowledgement_is_not() -> None:
    """RATE_LIMITED has the request's id; Ack, Ping and Connect are free; time brings more."""
    hand = VibeHand(messages_per_s=2)
    connection, wire = hand.vibe()
    connection.receive(subscribe("1", "q") + publish("2", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("3", "q") + ack("2") + ping("4") + connect("5", authToken="key"))
    hand.settle()
    found = taken(wire)

    assert [(ERROR, "3"), (PONG, "4"), (CONNECT_ACK, "5")] == [
        (each.kind, each.id) for each in found
    ]
    assert ("RATE_LIMITED", "q") == (found[0].error_code, found[0].queue)
    assert 1 == hand.engine.broker.stats.acknowledged
    hand.now_us += 500_000
    connection.receive(publish("6", "q"))
    hand.settle()
    assert (PUBLISH_ACK, "6") in kinds(wire)


# When the log refuses.


def test_while_the_log_is_full_only_durable_requests_are_refused() -> None:
    """At once, with the reason; Acks go on from the reserve, and memory-only queues too."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "memory", durable="false"))
    hand.settle()
    connection.receive(subscribe("2", "q"))
    hand.settle()
    connection.receive(publish("3", "q"))
    hand.settle()
    connection.receive(publish("4", "q"))
    hand.fail(full())
    taken(wire)
    connection.receive(publish("5", "q") + publish("6", "new") + publish("7", "memory"))
    connection.receive(create("8", "other") + ack("3") + ping("9"))

    assert [(ERROR, "5"), (ERROR, "6"), (PUBLISH_ACK, "7"), (ERROR, "8")] == kinds(wire)
    hand.settle()
    assert [(PONG, "9")] == kinds(wire)
    stats = hand.engine.broker.stats
    assert (1, 3) == (stats.acknowledged, stats.refused)


def test_a_repeat_of_what_is_stored_is_acknowledged_although_there_is_no_room() -> None:
    """Neither a full queue nor a full log has to do with it: nothing is stored."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q", maxQueueSize="1"))
    hand.settle()
    connection.receive(publish("2", "q", dedupId="d"))
    hand.settle()
    taken(wire)
    connection.receive(publish("3", "q", dedupId="d"))
    hand.settle()
    assert [(PUBLISH_ACK, "3")] == kinds(wire)
    assert ["q"] == list(hand.engine.broker.queues.by_name)
    connection.receive(publish("4", "q2"))
    hand.fail(full())
    taken(wire)
    connection.receive(publish("5", "q", dedupId="d"))

    assert [(PUBLISH_ACK, "5")] == kinds(wire)


def test_a_redirected_message_has_its_dedup_id_too() -> None:
    """A repeat of a publish that became a dead letter does not become a second one."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "q", maxQueueSize="1"))
    hand.settle()
    connection.receive(publish("2", "q"))
    hand.settle()
    taken(wire)
    connection.receive(publish("3", "q", dedupId="d") + publish("4", "q", dedupId="d"))
    hand.settle()
    connection.receive(publish("5", "q", dedupId="d"))
    hand.settle()

    assert [(PUBLISH_ACK, "3"), (PUBLISH_ACK, "4"), (PUBLISH_ACK, "5")] == kinds(wire)
    assert 1 == hand.engine.broker.queues.by_name["dlq.q"].waiting()


# The end of the broker.


def test_goodbye_is_a_disconnect_that_says_why() -> None:
    """What the peer holds goes back, and that was no attempt."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    _, unknown_wire = hand.stranger()
    connection.receive(subscribe("1", "q"))
    hand.settle()
    connection.receive(publish("m", "q"))
    hand.settle()
    taken(wire)
    hand.engine.drain()
    hand.engine.say_goodbye()
    (goodbye,) = taken(wire)

    assert DISCONNECT == goodbye.kind
    assert {"reason": "server_shutdown"} == goodbye.headers
    assert [] == taken(unknown_wire)
    queue = hand.engine.broker.queues.by_name["q"]
    assert (1, 0) == (queue.waiting(), queue.in_flight_count())
    assert [0] == [entry.attempts for entry in queue.lanes[0].in_flight.all()]


# Requests that are not as they should be.


def test_a_wrong_version_is_refused_and_the_connection_stays() -> None:
    """INVALID_MESSAGE with the request's id; the next request is answered."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    wrong = body(20, "1", "q", b"1", version=2)
    connection.receive(len(wrong).to_bytes(4, "big") + b"\0" + wrong + ping("2"))

    found = taken(wire)
    assert [("1", "INVALID_MESSAGE"), ("2", "")] == [
        (frame.id, frame.error_code) for frame in found
    ]
