"""What Vibe answers while the log is slow or refuses, and to a publisher above its rate."""

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

# While the log is slow.


def test_nothing_is_acknowledged_before_its_commit() -> None:
    """PublishAck, the declaration's reply and Pong wait for the log, and are sent in order."""
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


def test_a_command_that_changes_a_queue_waits_for_earlier_publishes() -> None:
    """Only Publish, Ack and Ping go on while a reply waits; effects follow request order."""
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


def test_a_waiting_command_counts_once_against_the_rate() -> None:
    """At two a second, a Publish and a Subscribe that waits for it are within the rate."""
    hand = VibeHand(messages_per_s=2)
    connection, wire = hand.vibe()
    connection.receive(publish("1", "q") + subscribe("2", "q"))
    hand.settle()

    assert [(PUBLISH_ACK, "1"), (SUBSCRIBE_ACK, "2")] == kinds(wire)


def test_above_the_rate_a_request_is_refused_and_an_acknowledgement_is_not() -> None:
    """RATE_LIMITED has the request's id; Ack, Ping and Connect are free; tokens return."""
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
    """At once, with the reason; Acks use the reserve, and memory-only queues need no log."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(create("1", "memory", durable="false"))
    hand.settle()
    connection.receive(subscribe("2", "q"))
    hand.settle()
    connection.receive(publish("3", "q"))
    hand.settle()
    connection.receive(publish("4", "q"))
    hand.fill_disk()
    taken(wire)
    connection.receive(publish("5", "q") + publish("6", "new") + publish("7", "memory"))
    connection.receive(create("8", "other") + ack("3") + ping("9"))

    assert [(ERROR, "5"), (ERROR, "6"), (PUBLISH_ACK, "7"), (ERROR, "8")] == kinds(wire)
    hand.settle()
    assert [(PONG, "9")] == kinds(wire)
    stats = hand.engine.broker.stats
    assert (1, 3) == (stats.acknowledged, stats.refused)


def test_a_repeat_of_a_stored_message_is_acknowledged_though_there_is_no_room() -> None:
    """Neither a full queue nor a full log matters: nothing is stored."""
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
    hand.fill_disk()
    taken(wire)
    connection.receive(publish("5", "q", dedupId="d"))

    assert [(PUBLISH_ACK, "5")] == kinds(wire)


def test_a_redirected_message_is_deduplicated_too() -> None:
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


# Shutdown.


def test_goodbye_is_a_disconnect_with_a_reason() -> None:
    """Messages in flight return to the queue, and that does not count as an attempt."""
    hand = VibeHand()
    _, wire = hand.consumer("m")
    _, unknown_wire = hand.unauthenticated()
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


# Malformed requests.


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
