"""Queues with a size limit: drops, blocked publishers and redirected messages."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import BLOCK_PUBLISHER, DROP_OLDEST, REDIRECT_TO_DLQ
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers, encode_headers
from tests.unit.broker.drive import Drive, S, peer_of, policy_of


def declared(drive: Drive, strategy: int, max_size: int, **given: int | bool | str) -> Queue:
    return drive.declare("q", policy_of(overflow=strategy, max_size=max_size, **given))


# DropOldest.


@pytest.mark.parametrize("window", [1, 3, 64])
def test_drop_oldest_keeps_the_newest(window: int) -> None:
    """Exactly as many as the limit, whether they are in memory or in the log."""
    drive = Drive(Settings(window=window))
    queue = declared(drive, DROP_OLDEST, 4)
    ids = drive.publish_many("q", 10)
    waiting = queue.waiting()

    assert (4, 6) == (waiting, drive.broker.stats.dropped.overflow)
    assert ids[-4:] == drive.ack_all(drive.join(queue))


def test_dropped_messages_stay_dropped() -> None:
    """After a restart, and also if a snapshot was taken right after the drop."""
    for with_snapshot in (False, True):
        drive = Drive()
        declared(drive, DROP_OLDEST, 2)
        ids = drive.publish_many("q", 5)
        if with_snapshot:
            drive.snapshot()
        drive.broker.full_barrier()
        drive.commit()
        drive.restart()

        assert 2 == drive.queue("q").waiting()
        assert ids[-2:] == drive.ack_all(drive.join(drive.queue("q")))


def test_unrecorded_drops_are_repeated() -> None:
    """The limit holds again as soon as the next message comes."""
    drive = Drive()
    declared(drive, DROP_OLDEST, 2)
    for _ in range(5):
        drive.publish("q")
    drive.commit_batch()
    drive.restart()
    drive.publish_many("q", 1)

    assert 2 == drive.queue("q").waiting()
    assert [6, 7] == drive.ack_all(drive.join(drive.queue("q")))


def test_messages_in_flight_are_never_dropped() -> None:
    """The limit counts waiting messages; returned ones are the oldest of these."""
    drive = Drive()
    queue = declared(drive, DROP_OLDEST, 2)
    consumer = drive.join(queue, 2)
    drive.publish_many("q", 6)
    before = queue.waiting(), queue.in_flight_count()
    drive.disconnect(consumer)
    drive.publish_many("q", 1)

    assert (2, 2) == before
    assert [7, 8] == drive.ack_all(drive.join(queue))


def test_a_delayed_message_is_dropped_before_a_newer_one() -> None:
    """Although the newer one is the first in memory."""
    drive = Drive()
    queue = declared(drive, DROP_OLDEST, 1)
    consumer = drive.join(queue, 1)
    drive.publish_many("q", 1)
    (entry,) = drive.taken(consumer)
    consumer.peer.room_bytes = 0
    drive.broker.queues.requeue(entry, 60 * S, drive.now_us)
    (newest,) = drive.publish_many("q", 1)

    assert 1 == queue.waiting()
    assert [newest] == drive.ack_all(drive.join(queue))


def test_the_oldest_is_the_one_that_arrived_first() -> None:
    """Whether it is durable or not."""
    drive = Drive()
    queue = declared(drive, DROP_OLDEST, 2)
    drive.publish("q", b"memory", qos=0)
    drive.publish_many("q", 2)
    consumer = drive.join(queue)
    first = [d.message.payload for d in drive.pushed(consumer)]

    assert [b"0", b"1"] == first
    assert 1 == drive.broker.stats.dropped.overflow


# BlockPublisher.


def test_a_publisher_waits_until_there_is_room() -> None:
    """It is woken when a consumer takes a message, and not before."""
    drive = Drive()
    queue = declared(drive, BLOCK_PUBLISHER, 2)
    drive.publish_many("q", 2)
    publisher = peer_of("bob")
    had_room = queue.has_room()
    queue.line().append(publisher)
    drive.broker.queues.pump(queue, drive.now_us)
    still = publisher.touched
    drive.join(queue, 1)

    assert (False, False) == (had_room, still)
    assert publisher in drive.broker.take_touched()
    assert queue.has_room()


@pytest.mark.parametrize("end", ["deleted", "purged", "refused", "expired"])
def test_every_way_to_make_room_wakes_publishers(end: str) -> None:
    """No publisher keeps waiting when there is room."""
    drive = Drive()
    queue = declared(drive, BLOCK_PUBLISHER, 2, ttl_us=5 * S)
    publisher = peer_of("bob")
    queue.line().append(publisher)
    if end == "refused":
        drive.publish("q")
        drive.publish("q")
        drive.refuse()
    else:
        drive.publish_many("q", 2)
        if end == "deleted":
            drive.broker.queues.delete(queue)
        elif end == "purged":
            drive.broker.queues.purge(queue, drive.now_us)
        else:
            for _ in range(4):  # one tick has it read, another finds it expired
                drive.advance(2 * S)
                drive.serve_reads()

    assert publisher in drive.broker.take_touched()
    assert [] == queue.blocked


def test_the_limit_survives_a_restart() -> None:
    """Records and snapshots count the waiting messages without reading the log."""
    drive = Drive()
    queue = declared(drive, BLOCK_PUBLISHER, 5)
    consumer = drive.join(queue, 2)
    drive.publish_many("q", 5)
    for entry in drive.taken(consumer):
        drive.broker.queues.acknowledge(entry, drive.now_us)
    drive.snapshot()
    drive.commit()
    drive.publish_many("q", 2)
    drive.restart()

    assert 5 == drive.queue("q").waiting()
    assert not drive.queue("q").has_room()


# RedirectToDlq.


def test_a_redirected_message_is_a_dead_letter() -> None:
    """With its payload, its headers and the reason."""
    drive = Drive()
    queue = declared(drive, REDIRECT_TO_DLQ, 1)
    message = drive.message("q", b"too much")
    message.headers = encode_headers({"": "mine", "k": "v"})
    letter = drive.broker.queues.redirect(message, queue, drive.now_us)
    assert letter is not None
    drive.broker.publish(letter, drive.now_us)
    drive.commit()
    (delivery,) = drive.pushed(drive.join(drive.queue("dlq.q")))

    assert b"too much" == delivery.message.payload
    assert {
        "": "mine",
        "k": "v",
        "deathReason": dead_letters.OVERFLOW,
        "deathQueue": "q",
        "deathAttempts": "0",
    } == decode_headers(delivery.message.headers)


def test_nothing_is_redirected_while_the_log_is_full() -> None:
    """The publisher is told, as with any other publish."""
    drive = Drive()
    queue = declared(drive, REDIRECT_TO_DLQ, 1)
    drive.publish("q")
    drive.refuse()

    assert drive.broker.queues.redirect(drive.message("q"), queue, drive.now_us) is None


def test_dead_letters_go_to_the_declared_queue() -> None:
    """It is created for the first dead letter."""
    drive = Drive()
    queue = declared(drive, REDIRECT_TO_DLQ, 1, dead_letter_name="grave")
    drive.broker.queues.redirect(drive.message("q"), queue, drive.now_us)

    assert drive.queue("grave").policy.max_attempts == 0
