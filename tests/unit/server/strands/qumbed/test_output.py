"""The output of a Qumbed stream: answers in order, messages within the window."""

from braidmq.base.errors import LogFullError
from braidmq.broker.settings import US_PER_S, Settings
from braidmq.server.strands.qumbed.deliveries import FRAME_PER_BODY
from tests.integration.blip import peer as blip
from tests.integration.qumbed.peer import (
    ALICE,
    FRAME_MAX,
    ack,
    discovery,
    opened,
    public,
    publish,
    subscribe,
)
from tests.unit.server.strands.qumbed.qumbed_by_hand import WINDOW, QumbedHand, code_of


def test_an_ack_waits_for_the_commit_and_counts_deliveries_then() -> None:
    """`delivered` counts the subscribers at the commit, not those at the Publish."""
    hand = QumbedHand()
    writer, wire = hand.stream()
    writer.receive(publish("t", b"1"))
    assert [] == wire.frames()
    reader, other = hand.stream()
    reader.receive(subscribe("t", public(ALICE)))
    assert [ack()] == other.frames()
    hand.settle()

    assert [ack("1", 1)] == wire.frames()
    assert [4] == other.kinds()


def test_the_ack_of_a_subscribe_precedes_its_messages() -> None:
    """The commit of its record releases the Ack, then the messages behind it."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    stream, wire = hand.stream()
    stream.receive(subscribe("t", public(ALICE)) + publish("t", b"1"))
    assert [] == wire.frames()
    hand.settle()

    assert [ack(), ack("2", 1)] == (found := wire.frames())[:2]
    assert b"1" == opened(found[2], ALICE)


def test_a_request_that_the_log_refuses_gets_an_error_in_its_place() -> None:
    """Publishes and recorded subscriptions; a repeat is refused with the original."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    stream, wire = hand.stream()
    stream.receive(publish("t", b"1", frame_id="a") + publish("t", b"1", frame_id="a"))
    other, second = hand.stream()
    other.receive(subscribe("t", public(ALICE), frame_id="s") + publish("t", b"x"))
    hand.fail(LogFullError())

    assert [("SERVER_ERROR", "a")] * 2 == [
        (code_of(one), one["e"]["id"]) for one in wire.frames()
    ]
    assert ["SERVER_ERROR", "SERVER_ERROR"] == [code_of(one) for one in second.frames()]
    assert 0 == hand.engine.broker.subscription_count()
    hand.engine.room_made()
    stream.receive(publish("t", b"1", frame_id="a"))
    hand.settle()
    assert [ack("a", 0)] == wire.frames()


def test_each_stream_has_its_own_window() -> None:
    """It limits unacknowledged bytes; when it is full, the stream waits for the transport."""
    hand = QumbedHand()
    reader, wire = hand.subscribed_stream()
    writer, _ = hand.stream()
    wire.stream_unsent = WINDOW
    writer.receive(publish("t", b"1"))
    hand.settle()
    assert [] == wire.frames()
    assert 0 == reader.room_bytes
    assert WINDOW // 2 == wire.told_below
    writer.receive(publish("t", b"2"))
    hand.settle()
    wire.stream_unsent = WINDOW // 2
    reader.set_writable(True)

    # The first was dispatched while there seemed to be room; the second is in the log.
    assert [b"1"] == [opened(one, ALICE) for one in wire.frames()]
    assert [1] == [request.after_id for request in hand.log.reads]
    assert 0 < reader.room_bytes <= WINDOW // FRAME_PER_BODY


def test_dispatched_messages_beyond_the_window_wait_in_order() -> None:
    """Frames are longer than messages: the window counts frames."""
    hand = QumbedHand()
    reader, wire = hand.subscribed_stream()
    writer, _ = hand.stream()
    wire.stream_unsent = WINDOW - 1_000
    for number in range(10):
        writer.receive(publish("t", b"%d" % number))
    hand.settle()
    first = wire.frames()
    assert 3 <= len(first) <= 6
    assert 10 - len(first) == len(reader.deliveries)
    assert 0 == reader.room_bytes
    wire.stream_unsent = 0
    reader.set_writable(True)
    found = [opened(one, ALICE) for one in first + wire.frames()]

    assert [b"%d" % number for number in range(10)] == found


def test_without_room_in_the_connections_output_nothing_is_pushed() -> None:
    """All streams share the output buffer; commands wait as well."""
    hand = QumbedHand()
    reader, wire = hand.subscribed_stream()
    reader.set_writable(False)
    reader.receive(discovery())
    assert [] == wire.frames()
    reader.set_writable(True)

    assert [7] == wire.kinds()


def test_a_message_too_large_for_a_frame_takes_no_room() -> None:
    """Nothing of it is sent, so the messages behind it are not held up."""
    hand = QumbedHand()
    reader, wire = hand.subscribed_stream()
    source, _ = hand.connect()
    source.receive(blip.publish(3, "t", bytes(FRAME_MAX)))
    hand.settle()
    assert [] == wire.frames()
    assert reader.room_bytes > 0
    source.receive(blip.publish(4, "t", b"small"))
    hand.settle()

    assert [b"small"] == [opened(one, ALICE) for one in wire.frames()]
    assert 1 == hand.engine.broker.stats.dead_lettered


def test_a_message_that_never_arrived_is_redelivered() -> None:
    """With `offline_s`: a device that lost contact gets what QUIC did not deliver, in order."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    writer, _ = hand.stream()
    reader, wire = hand.subscribed_stream()
    writer.receive(publish("t", b"1"))
    hand.settle()
    wire.received = wire.written_bytes  # the first has arrived; the others have not
    writer.receive(publish("t", b"2") + publish("t", b"3"))
    hand.settle()
    first, second, _ = [int(frame["m"]["id"]) for frame in wire.frames()]
    reader.lost()
    hand.settle()

    hand.subscribed_stream()
    (request,) = hand.log.reads
    assert first <= request.after_id < second


def test_a_message_that_arrived_is_not_redelivered() -> None:
    """It is settled and recorded once the peer's transport has it."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    writer, _ = hand.stream()
    reader, wire = hand.subscribed_stream()
    wire.received = wire.written_bytes
    writer.receive(publish("t", b"1"))
    hand.settle()
    wire.received = -1
    reader.lost()
    hand.settle()

    again, other = hand.stream()
    again.receive(subscribe("t", public(ALICE)))
    hand.settle()
    assert [ack()] == other.frames()


def test_a_peer_that_stops_reading_is_unsubscribed_but_may_publish() -> None:
    """STOP_SENDING: the broker sends nothing more, and a stored position stays where it is."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    stream, wire = hand.subscribed_stream()
    wire.is_stopped = True
    stream.receive(publish("t", b"1") + publish("t", b"2"))
    hand.settle()

    assert {} == stream.following
    assert 4 not in wire.kinds()
    hand.subscribed_stream()
    (request,) = hand.log.reads
    assert 1 == request.after_id
    assert 2 == hand.engine.broker.stats.published


def test_messages_that_a_closed_stream_did_not_take_are_redelivered() -> None:
    """After a FIN and silence, the broker cannot know whether the last messages arrived."""
    hand = QumbedHand(Settings(offline_us=60 * US_PER_S))
    reader, wire = hand.subscribed_stream()
    wire.received = wire.written_bytes
    writer, _ = hand.stream()
    writer.receive(publish("t", b"1"))
    hand.settle()
    reader.finish_input()
    hand.settle()

    hand.subscribed_stream()
    (request,) = hand.log.reads
    assert 1 == request.after_id


def test_repeated_discovery_does_not_grow_the_output_without_end() -> None:
    """The answer is far longer than the question, but the output is bounded."""
    hand = QumbedHand()
    for number in range(1000):
        hand.engine.broker.topics.get(f"topic-{number}-" + "x" * 100)
    stream, wire = hand.stream()
    wire.is_full_above = 1 << 20
    wire.connection = stream
    stream.receive(discovery() * 3000)

    assert 1 << 20 < len(wire.written) < 2 << 20
