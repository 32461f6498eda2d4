"""The backlog: how much of it is read at once, and what becomes of what was read."""

import pytest

from braidmq.broker.delivery.dispatch import ChannelRead, ReadRequest
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.policy import PRIORITY_BASED, Policy, Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import PRIORITY_HIGH, Topic
from tests.unit.broker.drive import Drive, entries_of


def request(*, held: int = 0, held_by_all: int = 0) -> ReadRequest:
    settings = Settings(window=7, window_bytes=100, memory_bytes=1000)
    subscription = Subscription(Topic("a"), 1, "somebody", Rules(settings))
    subscription.begin(5)
    subscription.topic.last_id = 9
    subscription.held_bytes = held
    return ChannelRead(subscription, settings, held_by_all)


def test_a_read_goes_from_the_cursor_to_the_newest_message() -> None:
    """The range is (after, up to], of one topic."""
    asked = request()

    assert (b"a", 5, 9, 7) == (asked.topic, asked.after_id, asked.up_to, asked.count_max)


def test_window_and_budget_bound_a_read_and_one_message_always_comes() -> None:
    """The smaller of the two rooms counts; without any, one message is still read."""
    assert 60 == request(held=40).bytes_max
    assert 30 == request(held_by_all=970).bytes_max
    assert 1 == request(held=500).bytes_max
    assert 1 == request(held_by_all=5000).bytes_max


def test_a_lane_reads_its_own_priority_only() -> None:
    """A subscription, and a queue without priorities, reads every one."""
    drive = Drive()
    policy = Policy()
    policy.mode = PRIORITY_BASED
    drive.declare("p", policy)
    drive.declare("q")
    for name in ("p", "q"):
        for priority in range(4):
            drive.publish(name, priority=priority)
        drive.commit()
        drive.join(drive.queue(name))

    assert {(b"p", 3), (b"p", 2), (b"p", 1), (b"p", 0), (b"q", -1)} == {
        (asked.topic, asked.priority) for asked in drive.log.reads
    }


def test_what_was_read_keeps_all_that_its_publisher_said() -> None:
    """Id, priority, origin, times, headers and body come back from the record."""
    drive = Drive()
    queue = drive.declare("q")
    message = drive.message("q", b"body")
    message.priority, message.origin, message.headers = PRIORITY_HIGH, 3, b"\1\0a\0\0"
    message.expires_us = drive.now_us + 10**12
    given = drive.broker.publish(message, drive.now_us)
    drive.commit()
    (delivery,) = drive.pushed(drive.join(queue))
    read = delivery.message

    assert message is not read
    assert (given, PRIORITY_HIGH, 3, message.headers, message.body) == (
        read.id,
        read.priority,
        read.origin,
        read.headers,
        read.body,
    )
    assert (message.timestamp_us, message.expires_us) == (read.timestamp_us, read.expires_us)


def test_a_long_backlog_is_held_a_window_at_a_time() -> None:
    """However long it is, and in order."""
    drive = Drive(Settings(window=4))
    queue = drive.declare("q")
    ids = drive.publish_many("q", 50)
    consumer = drive.join(queue, 1)
    seen: list[int] = []
    most = 0
    while entries := drive.taken(consumer):
        most = max(most, entries_of(queue.lanes[0]))
        for entry in entries:
            seen.append(entry.id)
            drive.broker.queues.acknowledge(entry, drive.now_us)
        drive.serve_reads()

    assert ids == seen
    assert most <= 2 * 4


def test_what_was_purged_while_it_was_read_does_not_come_back() -> None:
    """The answer of the log is older than the operator's word."""
    drive = Drive()
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    consumer = drive.broker.queues.join(drive.join(queue, 0).peer, queue, 9)
    drive.broker.queues.pump(queue, drive.now_us)
    drive.requests = drive.broker.take_reads(drive.now_us)
    purged = drive.broker.queues.purge(queue, drive.now_us)
    (newest,) = drive.publish_many("q", 1)

    assert 3 == purged
    assert [newest] == drive.pushed_ids(consumer)
    assert (0, 1) == (queue.waiting(), queue.in_flight_count())


def test_what_was_deleted_while_it_was_read_is_gone() -> None:
    """Nobody is there to take it in."""
    drive = Drive()
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    drive.broker.queues.join(drive.join(queue, 0).peer, queue, 9)
    drive.broker.queues.pump(queue, drive.now_us)
    drive.requests = drive.broker.take_reads(drive.now_us)
    drive.broker.queues.delete(queue)
    drive.serve_reads()

    assert 0 == drive.broker.dispatch.windows.held_bytes


@pytest.mark.parametrize("lost", [1, 3])
def test_what_retention_has_deleted_by_force_no_longer_counts(lost: int) -> None:
    """It is not found, and the bound of the queue is not spent on it for ever."""
    drive = Drive()
    queue = drive.declare("q")
    ids = drive.publish_many("q", 3)
    for number in range(lost):
        drive.log.records[ids[number] - 1] = drive.log.records[0]
    consumer = drive.join(queue, 1)
    entries = drive.taken(consumer)

    assert ids[lost : lost + 1] == [entry.id for entry in entries]
    assert 3 - lost == queue.waiting() + queue.in_flight_count()
