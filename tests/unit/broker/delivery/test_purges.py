"""How all that waits in a queue ends at once, and what does not."""

import pytest

from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import (
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    ROUND_ROBIN,
    Policy,
)
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, entries_of


def declared(drive: Drive, mode: int = ROUND_ROBIN, *, durable: bool = True) -> Queue:
    policy = Policy()
    policy.mode, policy.durable = mode, durable
    return drive.declare("q", policy)


def facts(queue: Queue) -> tuple[int, int]:
    return queue.waiting(), queue.in_flight_count()


def purge(drive: Drive, queue: Queue) -> int:
    return drive.broker.queues.purge(queue, drive.now_us)


def test_purging_ends_what_waits_and_not_what_is_in_flight() -> None:
    """At hand, put off, and in the log; also after a restart."""
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
def test_without_consumers_all_of_it_goes(mode: int, window: int) -> None:
    """In every mode, for good; what comes afterwards is kept as ever."""
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


def test_every_priority_is_purged_but_what_is_held() -> None:
    """At hand and in the log."""
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
def test_what_one_subscriber_of_a_fan_out_holds_stays(window: int) -> None:
    """Though it waits for others, at hand or in the log: the next one gets it if need be."""
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


def test_what_came_back_to_a_subscriber_is_purged() -> None:
    """It waits, as what was never handed out does, and its memory is let go of."""
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
    """Nothing of it is held any more."""
    drive = Drive()
    queue = declared(drive, mode, durable=False)
    drive.publish("q")
    drive.publish("q")

    assert 2 == purge(drive, queue)
    assert (0, 0) == (queue.waiting(), drive.broker.dispatch.windows.held_bytes)
    assert [] == drive.pushed(drive.join(queue))


def test_there_is_nothing_to_purge_where_nothing_waits() -> None:
    """A fan-out without acknowledgement keeps nothing, also while somebody listens."""
    drive = Drive()
    queue = declared(drive, FAN_OUT_WITHOUT_ACK)
    drive.join(queue)
    drive.publish_many("q", 2)

    assert 0 == purge(drive, queue)
