"""Followers and room: what waits in the log, and messages too large for a frame."""

import pytest

from braidmq.broker import records
from braidmq.broker.topics import decode_headers, encode_headers
from tests.unit.broker.drive import ROOM_BYTES, Drive, body_of, peer_of
from tests.unit.broker.following import (
    fall_behind,
    follow,
    follower_of,
    give_room,
    payloads,
    qumbed,
    take,
)

# Room.


def test_a_follower_without_room_gets_everything_later() -> None:
    """One message may exceed the room; meanwhile nothing is held in memory."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 1
    ids = drive.publish_many("a", 5)
    drive.serve_reads()
    before = take(peer)

    assert payloads(1) == before
    assert ([], 0) == (drive.log.reads, drive.broker.dispatch.windows.held_bytes)
    assert (True, ids[0]) == (follower_of(peer).behind, follower_of(peer).cursor)

    give_room(drive, peer, ROOM_BYTES)

    assert payloads(5)[1:] == take(peer)
    assert (False, []) == (follower_of(peer).behind, peer.laggards)


def test_a_message_waiting_for_room_counts_as_routed() -> None:
    """It will be pushed; only offline followers do not count."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    first, second = qumbed(drive, "a"), qumbed(drive, "a")
    drive.commit()

    assert (1, 1) == (first.routed, second.routed)


def test_a_read_is_limited_to_the_room() -> None:
    """Anything beyond the room would be read in vain."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 9)
    size = len(drive.log.records[-1])
    peer.room_bytes = 3 * size
    drive.broker.resume(peer, drive.now_us)
    (request,) = drive.broker.take_reads(drive.now_us)

    assert 3 * size == request.bytes_max
    assert (follower_of(peer).cursor, drive.topic("a").last_id) == (
        request.after_id,
        request.up_to,
    )


def test_reading_continues_while_there_is_room() -> None:
    """Bodies are shorter than their records, so the room suffices for another read."""
    drive = Drive()
    peer = follow(drive, "a")
    peer.room_bytes = 0
    drive.publish_many("a", 9)
    body = len(body_of("a", b"0"))
    give_room(drive, peer, 9 * body)

    assert payloads(9) == take(peer)
    assert 1 < len(drive.log.reads)


def test_messages_read_without_room_are_read_again() -> None:
    """One message is pushed all the same, so that no follower waits for ever."""
    drive = Drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 4)
    drive.requests = drive.broker.take_reads(drive.now_us)
    peer.room_bytes = 0
    drive.serve_reads()
    first = take(peer)
    give_room(drive, peer, ROOM_BYTES)

    assert (payloads(1), payloads(4)[1:]) == (first, take(peer))


def test_a_slow_follower_does_not_delay_others() -> None:
    """Neither another peer on the topic nor another topic of the same peer."""
    drive = Drive()
    slow, quick = follow(drive, "a"), follow(drive, "a")
    slow.room_bytes = 0
    drive.publish_many("a", 3)
    follow(drive, "b", peer=slow)
    slow.room_bytes = 1
    drive.publish_many("b", 1)

    assert payloads(3) == take(quick)
    assert payloads(1) == take(slow)
    assert not follower_of(slow, "b").behind


def test_a_peers_lagging_followers_take_turns_reading() -> None:
    """One read at a time, so a peer's reads use no more memory than its room."""
    drive = Drive()
    peer = peer_of("ada")
    for name in ("a", "b", "c"):
        follow(drive, name, peer=peer)
    peer.room_bytes = 0
    for _ in range(2):
        for name in ("a", "b", "c"):
            drive.publish(name, name.encode())
    drive.commit()
    order: list[bytes] = []
    for _ in range(6):
        give_room(drive, peer, 1)
        order += take(peer)

    assert [b"a", b"b", b"c", b"a", b"b", b"c"] == order
    assert [] == peer.laggards


def test_a_peer_has_at_most_one_read_pending() -> None:
    """Getting room again does not request a second one."""
    drive = Drive()
    peer = peer_of("ada")
    for name in ("a", "b"):
        follow(drive, name, peer=peer)
    peer.room_bytes = 0
    drive.publish_many("a", 1)
    drive.publish_many("b", 1)
    peer.room_bytes = ROOM_BYTES
    drive.broker.resume(peer, drive.now_us)
    drive.broker.resume(peer, drive.now_us)

    assert 1 == len(drive.broker.take_reads(drive.now_us))
    drive.broker.resume(peer, drive.now_us)
    assert [] == drive.broker.take_reads(drive.now_us)


def test_a_stopping_broker_pushes_nothing_more() -> None:
    """Durable messages stay in the log; others are dropped and counted."""
    drive = Drive()
    peer = follow(drive, "a")
    fall_behind(drive, peer, 1)
    drive.broker.stop_delivering()
    drive.serve_reads()
    other = follow(drive, "b")
    drive.publish("b", qos=0)
    drive.publish_many("b", 1)
    drive.broker.resume(peer, drive.now_us)

    assert ([], []) == (take(peer), take(other))
    assert (True, True) == (follower_of(peer).behind, follower_of(other, "b").behind)
    assert 1 == drive.broker.stats.dropped.overflow
    assert [] == drive.broker.take_reads(drive.now_us)


# Messages too large for a frame.


def test_a_message_too_large_for_a_frame_becomes_a_dead_letter() -> None:
    """It keeps its other headers."""
    drive = Drive()
    peer = follow(drive, "a")
    message = drive.message("a", b"large")
    message.headers = encode_headers({"k": "v"})
    drive.publish_once(message, "mine")
    drive.commit()
    take(peer)
    drive.broker.too_large(peer, message, drive.now_us)
    drive.commit()
    letter = records.StoredMessage(drive.log.records[-1])

    assert ("dlq.a", body_of("dlq.a", b"large")) == (letter.topic, letter.body)
    assert {
        "k": "v",
        "deathReason": "tooLarge",
        "deathQueue": "a",
        "deathAttempts": "1",
    } == decode_headers(letter.headers)
    assert 1 == drive.broker.stats.dead_lettered
    assert 1 == drive.queue("dlq.a").waiting()


def test_a_dead_letter_does_not_replace_its_message_in_dedup() -> None:
    """A duplicate is answered with the message's id, also after a restart."""
    drive = Drive()
    peer = follow(drive, "a")
    message = drive.message("a", b"large")
    message_id = drive.publish_once(message, "mine")
    drive.commit()
    drive.broker.too_large(peer, message, drive.now_us)
    drive.commit()
    drive.restart()

    duplicate_id = drive.publish_once(drive.message("a", b"large"), "mine")

    assert message_id == duplicate_id


@pytest.mark.parametrize(("topic", "qos"), [("dlq.a", 1), ("a", 0)])
def test_oversized_dead_letters_and_memory_only_messages_are_dropped(
    topic: str, qos: int
) -> None:
    """Neither becomes a dead letter; both are counted."""
    drive = Drive()
    peer = follow(drive, topic)
    drive.publish(topic, qos=qos)
    drive.commit()
    (delivery,) = peer.deliveries
    drive.broker.too_large(peer, delivery.message, drive.now_us)

    assert {"tooLarge": 1} == drive.broker.stats.dropped.by_reason
    assert not drive.broker.wants_commit()


def test_an_oversized_message_is_dropped_and_counted_while_the_log_is_full() -> None:
    """The follower does not wait for the log; the message itself is stored."""
    drive = Drive()
    peer = follow(drive, "a")
    drive.publish_many("a", 1)
    (delivery,) = peer.deliveries
    drive.refuse()
    drive.broker.too_large(peer, delivery.message, drive.now_us)

    assert {"tooLarge": 1} == drive.broker.stats.dropped.by_reason
