"""Priority queues: urgent messages first, and the oldest first within a priority."""

import pytest

from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import DROP_OLDEST, PRIORITY_BASED
from braidmq.broker.settings import Settings
from braidmq.broker.topics import (
    PRIORITY_CRITICAL,
    PRIORITY_HIGH,
    PRIORITY_LOW,
    PRIORITY_NORMAL,
)
from tests.unit.broker.drive import Drive, S, policy_of

ACK_TIMEOUT_US = 32 * S
EVERY_PRIORITY = (PRIORITY_LOW, PRIORITY_CRITICAL, PRIORITY_NORMAL, PRIORITY_HIGH)


def declared(drive: Drive, **given: int) -> Queue:
    return drive.declare("q", policy_of(mode=PRIORITY_BASED, **given))


def publish(drive: Drive, *priorities: int) -> list[int]:
    ids = [drive.publish("q", priority=priority) for priority in priorities]
    drive.commit()
    return ids


@pytest.mark.parametrize("window", [1, 2, 64])
def test_the_most_urgent_and_then_the_oldest_messages_go_first(window: int) -> None:
    """Read from the log or from memory."""
    drive = Drive(Settings(window=window))
    queue = declared(drive)
    ids = publish(drive, *EVERY_PRIORITY, *EVERY_PRIORITY)
    low, critical, normal, high = (ids[n::4] for n in range(4))

    assert [*critical, *high, *normal, *low] == drive.ack_all(drive.join(queue, 1))


def test_the_order_survives_a_restart() -> None:
    """Each priority keeps its own position in the log, also in a snapshot."""
    drive = Drive(Settings(window=2))
    queue = declared(drive)
    ids = publish(drive, *EVERY_PRIORITY, *EVERY_PRIORITY)
    consumer = drive.join(queue, 1)
    (first,) = drive.taken(consumer)
    drive.broker.queues.acknowledge(first, drive.now_us)
    drive.snapshot()
    drive.commit()
    drive.pushed(consumer)
    newest = publish(drive, PRIORITY_CRITICAL)
    drive.restart()
    low, critical, normal, high = (ids[n::4] for n in range(4))

    assert 8 == drive.queue("q").waiting()
    assert [critical[1], *newest, *high, *normal, *low] == drive.ack_all(
        drive.join(drive.queue("q"), 1)
    )


def test_a_returned_message_goes_before_others_of_its_priority() -> None:
    """But not before a more urgent one."""
    drive = Drive()
    queue = declared(drive)
    consumer = drive.join(queue, 1)
    publish(drive, PRIORITY_NORMAL, PRIORITY_NORMAL)
    drive.pushed(consumer)
    urgent = publish(drive, PRIORITY_HIGH)
    drive.advance(ACK_TIMEOUT_US)

    assert [*urgent, 2, 3] == drive.ack_all(consumer)


def test_lower_priorities_wait_while_a_higher_one_is_being_read() -> None:
    """A message that is only in the log still goes first."""
    drive = Drive(Settings(window=1))
    queue = declared(drive)
    publish(drive, PRIORITY_HIGH, PRIORITY_LOW)
    consumer = drive.broker.queues.join(drive.join(queue, 0).peer, queue, 9)
    drive.broker.queues.pump(queue, drive.now_us)
    before = drive.pushed_ids(consumer)
    drive.serve_reads()

    assert ([], [2, 3]) == (before, drive.pushed_ids(consumer))


@pytest.mark.parametrize("restarted", [False, True])
def test_lower_priorities_flow_while_publishers_keep_publishing(*, restarted: bool) -> None:
    """Publishing at one priority does not put the lane of another behind."""
    drive = Drive()
    declared(drive)
    publish(drive, PRIORITY_CRITICAL, PRIORITY_LOW)
    if restarted:
        drive.restart()
    queue = drive.queue("q")
    consumer = drive.broker.queues.join(drive.join(queue, 0).peer, queue, 100)
    drive.broker.queues.pump(queue, drive.now_us)
    for _ in range(20):  # reads never quite reach the end of the log
        drive.publish("q", priority=PRIORITY_LOW)
        drive.requests += drive.broker.take_reads(drive.now_us)
        drive.commit_batch()
        drive.serve_one_read()

    assert len(drive.pushed(consumer)) >= 15


def test_a_last_chance_holds_back_lower_priorities() -> None:
    """Until an idle consumer takes it."""
    drive = Drive()
    queue = declared(drive, max_attempts=2)
    consumer = drive.join(queue, 2)
    publish(drive, PRIORITY_HIGH, PRIORITY_NORMAL)
    high, normal = drive.taken(consumer)
    drive.broker.queues.requeue(high, 0, drive.now_us)
    publish(drive, PRIORITY_LOW)
    before = drive.pushed_ids(consumer)
    drive.broker.queues.acknowledge(normal, drive.now_us)

    assert ([], [high.id]) == (before, drive.pushed_ids(consumer))


def test_the_oldest_of_the_lowest_priority_is_dropped() -> None:
    """However old the more urgent messages are."""
    drive = Drive()
    queue = declared(drive, max_size=3, overflow=DROP_OLDEST)
    publish(drive, PRIORITY_HIGH, PRIORITY_LOW, PRIORITY_LOW, PRIORITY_NORMAL, PRIORITY_LOW)

    assert 3 == queue.waiting()
    assert [2, 5, 6] == drive.ack_all(drive.join(queue, 1))
    assert 2 == drive.broker.stats.dropped.overflow


def test_urgent_messages_are_dropped_if_there_are_no_others() -> None:
    """The limit applies to all priorities together."""
    drive = Drive()
    queue = declared(drive, max_size=1, overflow=DROP_OLDEST)
    publish(drive, PRIORITY_HIGH, PRIORITY_CRITICAL, PRIORITY_HIGH)

    assert [3] == drive.ack_all(drive.join(queue))


def test_memory_only_messages_are_ordered_by_priority_too() -> None:
    """Just like durable ones."""
    drive = Drive()
    queue = declared(drive, durable=False)
    for priority in EVERY_PRIORITY:
        drive.publish("q", b"%d" % priority, priority=priority)
    consumer = drive.join(queue)

    assert [b"3", b"2", b"1", b"0"] == [d.message.payload for d in drive.pushed(consumer)]
