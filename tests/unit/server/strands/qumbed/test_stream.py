"""Qumbed streams without QUIC: turns, waiting answers, limits and authentication."""

import tracemalloc

import pytest

from braidmq.broker.settings import US_PER_S, Settings
from braidmq.server.strands.qumbed.link import UNFINISHED_BYTES_MAX
from tests.integration.qumbed.peer import (
    ALICE,
    FRAME_MAX,
    ack,
    discovery,
    public,
    publish,
    raw,
    subscribe,
)
from tests.unit.server.strands.qumbed.qumbed_by_hand import QumbedHand, code_of


def test_while_the_log_is_full_new_publishes_are_refused_at_once() -> None:
    """So are recorded subscriptions, but not those in memory."""
    for offline_us, kinds in ((0, [6, 5]), (US_PER_S, [6, 6])):
        hand = QumbedHand(Settings(offline_us=offline_us))
        hand.engine.broker.admission.log_refuses("full")
        stream, wire = hand.stream()
        stream.receive(publish("t", b"1") + subscribe("t", public(ALICE)))

        assert kinds == wire.kinds()


def test_a_publisher_waits_while_too_much_is_uncommitted() -> None:
    """It goes on when the log has caught up."""
    hand = QumbedHand()
    stream, wire = hand.stream()
    for _ in range(12):
        stream.receive(publish("t", bytes(300_000)))
    waiting = hand.engine.broker.outgoing.bytes
    assert hand.engine.uncommitted_bytes_max <= waiting < 12 * 300_000
    assert [stream] == hand.engine.starved
    hand.settle()

    assert [ack(f"{number}", 0) for number in range(1, 13)] == wire.frames()


def test_a_waiting_stream_reads_ahead_up_to_a_limit() -> None:
    """Reading resumes when the wait is over."""
    hand = QumbedHand()
    stream, wire = hand.stream()
    for _ in range(20):
        stream.receive(publish("t", bytes(300_000)))
    assert not wire.is_reading()
    hand.settle()

    assert wire.is_reading()


def test_too_many_unfinished_frames_end_the_stream_that_adds_to_them() -> None:
    """The limit covers all streams of a connection; a stream that ends frees its share."""
    hand = QumbedHand()
    link = hand.link()
    half = (FRAME_MAX).to_bytes(4, "big") + bytes(FRAME_MAX - 1)
    streams = [hand.stream(link) for _ in range(9)]
    for stream, _ in streams:
        stream.receive(half)
    *others, last = (wire for _, wire in streams)
    assert ["SERVER_ERROR"] == [code_of(one) for one in last.frames()]
    assert last.is_closed
    assert [[]] * 8 == [wire.frames() for wire in others]
    assert 8 * len(half) == link.unfinished_bytes <= UNFINISHED_BYTES_MAX
    for stream, _ in streams:
        stream.lost()

    assert 0 == link.unfinished_bytes


def test_a_stream_that_waits_for_the_broker_is_paused_and_not_ended() -> None:
    """Its frames are complete: it waits for the broker, not the broker for it."""
    hand = QumbedHand()
    link = hand.link()
    link.unfinished_bytes = UNFINISHED_BYTES_MAX
    stream, wire = hand.stream(link)
    hand.engine.broker.outgoing.bytes += hand.engine.uncommitted_bytes_max
    stream.receive(publish("t", b"1") + publish("t", b"2"))

    assert [] == wire.frames()
    assert not wire.is_reading()
    assert not wire.is_closed


def test_a_wrong_key_ends_the_connection_after_its_error() -> None:
    """UNAUTHORIZED, then the connection drains; nothing after the key is read."""
    hand = QumbedHand(asks_for_key=True)
    link = hand.link()
    stream, wire = hand.stream(link)
    stream.receive(discovery(frame_id="x", key="no") + discovery(key="key"))

    assert ["UNAUTHORIZED"] == [code_of(one) for one in wire.frames()]
    assert (1, "UNAUTHORIZED") == wire.drained_with
    assert not wire.is_greeted
    assert not link.is_authenticated
    assert 1 == hand.engine.authentication_failures["qumbed"]
    stream.receive(discovery(key="key"))
    assert [] == wire.frames()


def test_a_right_key_authenticates_the_connection() -> None:
    """Until then the handshake is not complete."""
    hand = QumbedHand(asks_for_key=True)
    link = hand.link()
    stream, wire = hand.stream(link)
    greeted = [wire.is_greeted]
    stream.receive(discovery(key="key"))
    greeted.append(wire.is_greeted)

    assert [7] == wire.kinds()
    assert [False, True] == greeted
    assert link.is_authenticated
    assert stream.is_authenticated


def test_without_authentication_a_stream_is_greeted_at_once() -> None:
    """No key has to arrive first."""
    stream, wire = QumbedHand().stream()

    assert wire.is_greeted
    assert stream.is_authenticated


def test_a_link_learns_of_a_stream_that_ends() -> None:
    """And the broker keeps nothing of the stream."""
    hand = QumbedHand()
    stream, _ = hand.stream()
    stream.receive(subscribe("t", public(ALICE)))
    stream.lost()

    assert [stream] == hand.left
    assert 0 == hand.engine.broker.subscription_count()


def test_a_malformed_frame_ends_subscriptions_at_once() -> None:
    """Nothing is pushed after its Error, though an earlier answer still waits."""
    hand = QumbedHand()
    stream, wire = hand.subscribed_stream()
    writer, _ = hand.stream()
    stream.receive(publish("u", b"1") + raw(b"x") + publish("t", b"never"))
    writer.receive(publish("t", b"2"))
    hand.settle()

    assert [5, 6] == wire.kinds()
    assert wire.is_closed


def test_the_ttl_of_the_strand_applies_to_its_messages() -> None:
    """qumbed.message_ttl_ms: an expired message is not delivered."""
    hand = QumbedHand(ttl_us=5 * US_PER_S)
    _, wire = hand.subscribed_stream()
    writer, _ = hand.stream()
    writer.receive(publish("t", b"1"))
    hand.now_us += 6 * US_PER_S
    hand.settle()

    assert [] == wire.frames()
    assert 1 == hand.engine.broker.stats.expired


@pytest.mark.parametrize("finishes", [True, False])
def test_a_fin_waits_for_outstanding_answers(*, finishes: bool) -> None:
    """Then the stream closes."""
    hand = QumbedHand()
    stream, wire = hand.stream()
    stream.receive(publish("t", b"1"))
    if finishes:
        stream.finish_input()
    assert not wire.is_closed
    hand.settle()

    assert [ack("1", 0)] == wire.frames()
    assert finishes == wire.is_closed


def test_a_topics_name_is_kept_once_however_many_streams_publish_to_it() -> None:
    """Each stream remembers topics, not its peer's copies of their names."""
    hand = QumbedHand()
    names = [f"{number}-" + "x" * 60_000 for number in range(20)]
    first, _ = hand.stream()
    first.receive(b"".join(publish(name, b"1") for name in names))
    hand.settle()
    tracemalloc.start()
    try:
        others = [hand.stream()[0] for _ in range(5)]
        for stream in others:
            for name in names:
                stream.receive(publish(name, b"1"))
                hand.settle()
        hand.log.batches.clear()
        grown_bytes = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()

    assert grown_bytes < 3 * sum(map(len, names))
