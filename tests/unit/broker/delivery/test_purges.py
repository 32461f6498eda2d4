"""Purges: which messages of a queue they end, and which they leave."""

import pytest

from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import (
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    ROUND_ROBIN,
)
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, entries_of, policy_of


def declared(drive: Drive, mode: int = ROUND_ROBIN, *, durable: bool = True) -> Queue:
    return drive.declare("q", policy_of(mode=mode, durable=durable))


def facts(queue: Queue) -> tuple[int, int]:
    return queue.waiting(), queue.in_flight_count()


def purge(drive: Drive, queue: Queue) -> int:
    return drive.broker.queues.purge(queue, drive.now_us)


def test_a_purge_ends_waiting_messages_but_not_those_in_flight() -> None:
    """In memory, delayed and in the log; they stay purged after a restart."""
    drive = Drive(Settings(window=2))
    queue = declared(drive)
    drive.publish_many("q", 10)
    consumer = drive.join(queue, 2)
    kept, delayed = drive.taken(consumer)
    drive.broker.queues.requeue(delayed, 60 * S, drive.now_us)
    (third,) = drive.taken(consumer)
    purged = purge(drive, queue)
    left = facts(queue)
    counted = drive.broker.stats.dropped.purged
    drive.commit()
    drive.restart()
    again = drive.queue("q")

    assert (8, 8, (0, 2)) == (purged, counted, left)
    assert (2, 0) == facts(again)
    assert [kept.id, third.id] == drive.pushed_ids(drive.join(again))


@pytest.mark.parametrize("mode", [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK])
@pytest.mark.parametrize("window", [1, 64])
def test_a_purge_without_consumers_ends_every_message(mode: int, window: int) -> None:
    """In every mode and for good; later messages are kept as usual."""
    drive = Drive(Settings(window=window))
    queue = declared(drive, mode)
    for number in range(8):
        drive.publish("q", priority=number % 4)
    drive.commit()
    purged = purge(drive, queue)
    drive.commit()
    (newest,) = drive.publish_many("q", 1)
    drive.restart()

    assert 8 == purged
    assert 1 == drive.queue("q").waiting()
    assert [newest] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_purge_covers_every_priority_but_not_held_messages() -> None:
    """In memory and in the log."""
    drive = Drive(Settings(window=1))
    queue = declared(drive, PRIORITY_BASED)
    ids = [drive.publish("q", priority=number % 4) for number in range(8)]
    drive.commit()
    drive.join(queue, 1)
    purged = purge(drive, queue)
    drive.commit()
    drive.restart()

    assert (7, 1) == (purged, drive.queue("q").waiting())
    assert [ids[3]] == drive.pushed_ids(drive.join(drive.queue("q")))


@pytest.mark.parametrize("window", [2, 64])
def test_a_purge_keeps_what_a_fan_out_subscriber_holds(window: int) -> None:
    """Also if it still waits for others; a later subscriber can get it."""
    drive = Drive(Settings(window=window))
    queue = declared(drive, FAN_OUT_WITH_ACK)
    ada, bob = drive.join(queue, 1), drive.join(queue, 2)
    drive.publish_many("q", 8)
    purged = purge(drive, queue)
    left = facts(queue), queue.unsettled()
    drive.leave(ada)
    drive.leave(bob)
    drive.commit()
    drive.restart()

    assert (7, ((0, 3), 2)) == (purged, left)
    assert 2 == drive.queue("q").waiting()
    assert [2, 3] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_purge_ends_a_subscribers_requeued_messages() -> None:
    """They wait like undelivered ones, and their memory is freed."""
    drive = Drive()
    queue = declared(drive, FAN_OUT_WITH_ACK)
    consumer = drive.join(queue, 1)
    drive.publish_many("q", 2)
    (entry,) = drive.taken(consumer)
    consumer.peer.room_bytes = 0
    drive.broker.queues.requeue(entry, 0, drive.now_us)
    purged = purge(drive, queue)

    assert (2, (0, 0)) == (purged, facts(queue))
    assert consumer.view is not None
    assert (0, 0) == (
        entries_of(consumer.view),
        drive.broker.dispatch.windows.held_bytes,
    )


@pytest.mark.parametrize("mode", [ROUND_ROBIN, FAN_OUT_WITH_ACK])
def test_memory_only_messages_are_purged(mode: int) -> None:
    """Their memory is freed."""
    drive = Drive()
    queue = declared(drive, mode, durable=False)
    drive.publish("q")
    drive.publish("q")

    assert 2 == purge(drive, queue)
    assert (0, 0) == (queue.waiting(), drive.broker.dispatch.windows.held_bytes)
    assert [] == drive.pushed(drive.join(queue))


def test_a_purge_of_an_unacknowledged_fan_out_ends_nothing() -> None:
    """It keeps no messages, even with a subscriber."""
    drive = Drive()
    queue = declared(drive, FAN_OUT_WITHOUT_ACK)
    drive.join(queue)
    drive.publish_many("q", 2)

    assert 0 == purge(drive, queue)
