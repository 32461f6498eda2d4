"""The backlog: how much is read at once, and what happens to the messages read."""

import pytest

from braidmq.broker.delivery.dispatch import ChannelRead, ReadRequest
from braidmq.broker.delivery.subscriptions import Subscription
from braidmq.broker.policy import PRIORITY_BASED, Policy, Rules
from braidmq.broker.settings import Settings
from braidmq.broker.topics import PRIORITY_HIGH, Topic
from tests.unit.broker.drive import Drive, entries_of


def request(*, held: int = 0, held_by_all: int = 0) -> ReadRequest:
    settings = Settings(window=7, window_bytes=100, memory_bytes=1000)
    subscription = Subscription(Topic("a"), 1, "ada", Rules(settings))
    subscription.begin(5)
    subscription.topic.last_id = 9
    subscription.held_bytes = held
    return ChannelRead(subscription, settings, held_by_all)


def test_a_read_extends_from_the_cursor_to_the_newest_message() -> None:
    """It is the range (after, up to] of one topic."""
    asked = request()

    assert (b"a", 5, 9, 7) == (asked.topic, asked.after_id, asked.up_to, asked.count_max)


def test_window_and_budget_bound_a_read_but_one_message_always_fits() -> None:
    """The smaller of the two counts; with neither left, one message is still read."""
    assert 60 == request(held=40).bytes_max
    assert 30 == request(held_by_all=970).bytes_max
    assert 1 == request(held=500).bytes_max
    assert 1 == request(held_by_all=5000).bytes_max


def test_a_lane_reads_only_its_own_priority() -> None:
    """A queue without priorities reads all of them."""
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


def test_a_message_read_back_keeps_all_its_properties() -> None:
    """Id, priority, origin, times, headers and body come back from the record."""
    drive = Drive()
    queue = drive.declare("q")
    message = drive.message("q", b"body")
    message.priority, message.origin, message.headers = PRIORITY_HIGH, 3, b"\1\0a\0\0"
    message.expires_us = drive.now_us + 10**12
    message_id = drive.broker.publish(message, drive.now_us)
    drive.commit()
    (delivery,) = drive.pushed(drive.join(queue))
    read = delivery.message

    assert message is not read
    assert (message_id, PRIORITY_HIGH, 3, message.headers, message.body) == (
        read.id,
        read.priority,
        read.origin,
        read.headers,
        read.body,
    )
    assert (message.timestamp_us, message.expires_us) == (read.timestamp_us, read.expires_us)


def test_a_long_backlog_is_read_one_window_at_a_time() -> None:
    """Every message comes in order, and no more than two windows are in memory."""
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


def test_messages_purged_during_a_read_do_not_come_back() -> None:
    """The log answers after the operator's purge."""
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


def test_a_read_for_a_deleted_queue_is_discarded() -> None:
    """Nothing of it stays in memory."""
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
def test_messages_removed_by_forced_retention_no_longer_count(lost: int) -> None:
    """The read does not find them, so they stop counting towards the queue's limit."""
    drive = Drive()
    queue = drive.declare("q")
    ids = drive.publish_many("q", 3)
    for number in range(lost):
        drive.log.records[ids[number] - 1] = drive.log.records[0]
    consumer = drive.join(queue, 1)
    entries = drive.taken(consumer)

    assert ids[lost : lost + 1] == [entry.id for entry in entries]
    assert 3 - lost == queue.waiting() + queue.in_flight_count()
