"""A Vibe publisher blocked by a full queue: what goes on, what waits, and how much."""

from typing import NamedTuple

import pytest

from braidmq.server.strands.vibe.connection import (
    BLOCKED_BYTES_MAX,
    BLOCKED_MAX,
    VibeConnection,
)
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    DELIVER,
    DISCONNECT,
    ERROR,
    LIST_QUEUES,
    PING,
    PONG,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
)
from tests.integration.vibe_peer import ack, create, ping, publish, request, subscribe
from tests.unit.server.by_hand import HandWire
from tests.unit.server.strands.vibe.vibe_by_hand import VibeHand, kinds, taken

BLOCKING = {"maxQueueSize": "1", "overflowStrategy": "BlockPublisher"}


class Full(NamedTuple):
    """A full queue with room for one: `a` is with a consumer of prefetch 1, `b` waits."""

    hand: VibeHand
    consumer: VibeConnection
    consumer_wire: HandWire
    publisher: VibeConnection
    wire: HandWire

    def make_room(self) -> None:
        """Acknowledge `a`, so that `b` is delivered and there is room."""
        self.consumer.receive(ack("a"))
        self.hand.settle()


def a_full_queue() -> Full:
    hand = VibeHand()
    consumer, consumer_wire = hand.vibe()
    consumer.receive(create("1", "q", **BLOCKING))
    hand.settle()
    consumer.receive(subscribe("2", "q", 1))
    publisher, wire = hand.vibe()
    publisher.receive(publish("a", "q"))
    hand.settle()
    publisher.receive(publish("b", "q"))
    hand.settle()
    assert [(PUBLISH_ACK, "a"), (PUBLISH_ACK, "b")] == kinds(wire)
    assert (DELIVER, "a") == kinds(consumer_wire)[-1]
    return Full(hand, consumer, consumer_wire, publisher, wire)


def test_a_blocked_publisher_goes_on_when_there_is_room() -> None:
    """One publish for each message that leaves, in order of arrival."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q") + publish("d", "q") + publish("e", "free"))
    assert [] == kinds(full_queue.wire)
    full_queue.make_room()
    assert [(PUBLISH_ACK, "c")] == kinds(full_queue.wire)
    full_queue.consumer.receive(ack("b"))
    full_queue.hand.settle()

    assert [(PUBLISH_ACK, "d"), (PUBLISH_ACK, "e")] == kinds(full_queue.wire)


def test_behind_a_blocked_publish_acks_pings_and_unsubscribes_are_handled() -> None:
    """They take effect at once; their replies keep their place behind the Publish."""
    full_queue = a_full_queue()
    hand, _, _, publisher, wire = full_queue
    publisher.receive(subscribe("1", "mine"))
    hand.settle()
    publisher.receive(publish("m", "mine"))
    hand.settle()
    taken(wire)
    publisher.receive(
        publish("c", "q") + ping("2") + ack("m") + request(UNSUBSCRIBE, "3", "mine")
    )
    hand.settle()
    assert [] == kinds(wire)
    assert 1 == hand.engine.broker.stats.acknowledged
    assert [] == hand.engine.broker.queues.by_name["mine"].consumers
    full_queue.make_room()

    assert [(PUBLISH_ACK, "c"), (PONG, "2"), (UNSUBSCRIBE_ACK, "3")] == kinds(wire)


def test_anything_else_behind_a_blocked_publish_waits() -> None:
    """A ListQueues is executed and answered in its turn."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q") + request(LIST_QUEUES, "1"))
    full_queue.publisher.receive(publish("d", "free"))
    assert [] == kinds(full_queue.wire)
    full_queue.make_room()

    assert [(PUBLISH_ACK, "c"), (LIST_QUEUES, "1"), (PUBLISH_ACK, "d")] == kinds(
        full_queue.wire
    )


@pytest.mark.parametrize("kind", [LIST_QUEUES, SUBSCRIBE, QUEUE_INFO, CREATE_QUEUE])
def test_acks_go_on_behind_any_command_that_waits(kind: int) -> None:
    """A peer that consumes what it publishes makes room by its own Ack, whatever it asks."""
    full_queue = a_full_queue()
    hand, consumer, wire = full_queue.hand, full_queue.consumer, full_queue.consumer_wire
    taken(wire)
    consumer.receive(publish("c", "q") + request(kind, "1", "other") + ack("a"))
    hand.settle()
    found = kinds(wire)

    assert {(DELIVER, "b"), (PUBLISH_ACK, "c")} == set(found[:2])
    assert ["1"] == [request_id for _, request_id in found[2:]]


def test_an_unsubscribe_does_not_overtake_its_subscribe() -> None:
    """Behind a command that waits its turn it waits as well."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(
        publish("c", "q") + subscribe("1", "x") + request(UNSUBSCRIBE, "2", "x") + ping("3")
    )
    assert [] == kinds(full_queue.wire)
    full_queue.make_room()
    full_queue.hand.settle()

    assert [
        (PUBLISH_ACK, "c"),
        (SUBSCRIBE_ACK, "1"),
        (UNSUBSCRIBE_ACK, "2"),
        (PONG, "3"),
    ] == kinds(full_queue.wire)
    assert [] == full_queue.hand.engine.broker.queues.by_name["x"].consumers


def test_a_disconnect_does_not_take_back_a_request_before_it() -> None:
    """It is executed in its turn; only Publishes that were not accepted are given up."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(
        publish("c", "q")
        + request(DELETE_QUEUE, "1", "q")
        + request(DISCONNECT, "2")
        + ping("3")
    )
    assert not full_queue.wire.is_closed
    full_queue.make_room()
    full_queue.hand.settle()

    assert [(PUBLISH_ACK, "c"), (DELETE_QUEUE, "1")] == kinds(full_queue.wire)
    assert "q" not in full_queue.hand.engine.broker.queues.by_name
    assert full_queue.wire.is_closed


@pytest.mark.parametrize("kind", [PING, UNSUBSCRIBE, QUEUE_INFO])
def test_the_buffer_is_bounded_in_bytes_of_any_command(kind: int) -> None:
    """A peer cannot make the broker hold a gibibyte of Pings."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q"))
    big = request(kind, "1" * 60_000, "q", headers={"h": "x" * 60_000})
    full_queue.publisher.receive(b"".join(big for _ in range(20)))

    assert len(full_queue.publisher._blocked) < 12  # noqa: SLF001 - the bound is inside
    assert not full_queue.wire.is_reading()


def test_refusals_that_wait_count_towards_the_bytes_of_the_buffer() -> None:
    """Each repeats the id of what it refuses, which may have 64 KiB."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q"))
    refused = request(PING, "1" * 60_000, "q", b"no JSON")
    full_queue.publisher.receive(b"".join(refused for _ in range(40)))

    assert len(full_queue.publisher._blocked) < 22  # noqa: SLF001 - the bound is inside
    assert not full_queue.wire.is_reading()


def test_the_buffer_of_a_blocked_publisher_is_bounded_in_commands() -> None:
    """Commands beyond the limit stay with the session, and in the end with the peer."""
    full_queue = a_full_queue()
    publisher, wire = full_queue.publisher, full_queue.wire
    publisher.receive(publish("c", "q"))
    publisher.receive(b"".join(ping(str(number)) for number in range(BLOCKED_MAX + 10)))
    assert wire.is_reading()
    publisher.receive(b"".join(ping("x" * 200) for _ in range(2000)))
    assert not wire.is_reading()
    held = sum(1 for _ in publisher._blocked)  # noqa: SLF001 - the limit is internal
    assert BLOCKED_MAX == held
    full_queue.make_room()

    found = kinds(wire)
    assert [(PUBLISH_ACK, "c"), (PONG, "0"), (PONG, "1")] == found[:3]
    assert 1 + BLOCKED_MAX + 10 + 2000 == len(found)
    assert wire.is_reading()


def test_the_buffer_of_a_blocked_publisher_is_bounded_in_bytes() -> None:
    """Payloads of a mebibyte, and the one that reaches the limit; no more."""
    full_queue = a_full_queue()
    big = b'"' + b"x" * 300_000 + b'"'
    full_queue.publisher.receive(
        b"".join(publish(str(number), "q", big) for number in range(10))
    )
    assert BLOCKED_BYTES_MAX // len(big) + 1 == len(full_queue.publisher._blocked)  # noqa: SLF001 - the limit is internal
    assert not full_queue.wire.is_reading()
    full_queue.make_room()
    for number in ["b", *map(str, range(9))]:
        full_queue.consumer.receive(ack(number))
        full_queue.hand.settle()

    assert [(PUBLISH_ACK, str(number)) for number in range(10)] == kinds(full_queue.wire)
    assert full_queue.wire.is_reading()


def test_a_blocked_publisher_is_listed_once() -> None:
    """However often it is woken meanwhile; once it is gone, it is not listed."""
    full_queue = a_full_queue()
    publisher = full_queue.publisher
    queue = full_queue.hand.engine.broker.queues.by_name["q"]
    publisher.receive(publish("c", "q"))
    for _ in range(10):
        publisher.receive(ack("nothing"))
    assert [publisher] == queue.blocked
    publisher.lost()

    assert [] == queue.blocked


def test_a_half_close_waits_for_the_blocked_publishes() -> None:
    """A peer that stops sending is still answered; then the connection closes."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q") + publish("d", "q") + ping("1"))
    full_queue.publisher.finish_input()
    full_queue.make_room()
    assert not full_queue.wire.is_closed
    full_queue.consumer.receive(ack("b"))
    full_queue.hand.settle()

    assert [(PUBLISH_ACK, "c"), (PUBLISH_ACK, "d"), (PONG, "1")] == kinds(full_queue.wire)
    assert full_queue.wire.is_closed


def test_a_half_close_with_nothing_to_answer_closes_the_connection() -> None:
    """Nothing waits, nothing is sent."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.finish_input()

    assert wire.is_closed
    assert [] == taken(wire)


def test_a_disconnect_does_not_wait_for_blocked_publishes() -> None:
    """They were never accepted; the connection closes at once."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q") + request(DISCONNECT, "1"))

    assert full_queue.wire.is_closed
    assert [] == taken(full_queue.wire)
    full_queue.make_room()
    assert 0 == full_queue.hand.engine.broker.queues.by_name["q"].waiting()


def test_a_disconnect_waits_for_the_publishes_that_were_accepted() -> None:
    """First the PublishAck, then the close; later commands are ignored."""
    hand = VibeHand()
    connection, wire = hand.vibe()
    connection.receive(publish("1", "q") + request(DISCONNECT, "2") + ping("3"))
    assert not wire.is_closed
    hand.settle()

    assert [(PUBLISH_ACK, "1")] == kinds(wire)
    assert wire.is_closed


def test_lost_framing_behind_a_blocked_publish_is_reported_in_its_place() -> None:
    """First the answer to the Publish, then the Error, then the close."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q") + bytes(5))
    assert not full_queue.wire.is_closed
    full_queue.make_room()

    assert [(PUBLISH_ACK, "c"), (ERROR, "err-1")] == kinds(full_queue.wire)
    assert full_queue.wire.is_closed


def test_deleting_a_queue_unblocks_its_publishers() -> None:
    """The name is free again: the Publish creates a new queue with the default policy."""
    full_queue = a_full_queue()
    full_queue.publisher.receive(publish("c", "q"))
    full_queue.consumer.receive(request(DELETE_QUEUE, "1", "q"))
    full_queue.hand.settle()

    assert [(PUBLISH_ACK, "c")] == kinds(full_queue.wire)
    assert 0 == full_queue.hand.engine.broker.queues.by_name["q"].policy.max_size
