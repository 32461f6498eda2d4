"""Queue state: replay of each record, snapshots, and recovery after a restart."""

from typing import NoReturn

import pytest

from braidmq.broker import dead_letters, records, state
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    ROUND_ROBIN,
    Policy,
)
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, body_of, message_of, policy_of, replayed


def message(priority: int = 1) -> bytes:
    return records.encode_message(message_of(body_of("q"), priority=priority))


def declare(mode: int = ROUND_ROBIN) -> bytes:
    return records.encode_declare("q", policy_of(mode=mode, max_size=9), 99)


def test_a_replayed_declaration_restores_the_queue() -> None:
    """With its policy and creation time; earlier messages do not belong to it."""
    broker = replayed(message(), declare(), message(), message())
    queue = broker.queues.by_name["q"]

    assert (2, 99, 2) == (queue.id, queue.created_us, queue.waiting())
    assert policy_of(max_size=9).values() == queue.policy.values()
    assert 99 == broker.times.newest_us


def test_a_replayed_deletion_deletes_only_that_queue() -> None:
    """It names the queue by the id of its declaration."""
    broker = replayed(
        declare(),
        message(),
        records.encode_delete(1),
        declare(),
        message(),
        records.encode_delete(1),
    )

    assert 1 == broker.queues.by_name["q"].waiting()
    assert {4} == set(broker.queues.channels)


class Unlisted(dict[str, Queue]):
    """The queues of a broker, which are not to be gone through."""

    def values(self) -> NoReturn:
        raise AssertionError


@pytest.mark.parametrize(
    "mode", [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK]
)
def test_a_replayed_deletion_finds_its_queue_by_its_id(mode: int) -> None:
    """A log of many deletions does not take a start that grows with the number of queues."""
    broker = Broker(Settings())
    state.replay(broker, 1, declare(mode))
    other = records.encode_declare("other", policy_of(mode=mode), 99)
    state.replay(broker, 2, other)
    broker.queues.by_name = Unlisted(broker.queues.by_name)
    for queue_id in (3, 1):  # of none, and of the first
        state.replay(broker, 3, records.encode_delete(queue_id))

    topics = {channel.topic.name for channel in broker.queues.channels.values()}
    assert ({"other"}, ["other"]) == (topics, list(broker.queues.by_name))


def test_replayed_progress_of_a_lane_is_counted() -> None:
    """Each priority has its own lane; a count says how many messages the ranges hold."""
    made = Progress()
    made.handed_id, made.settled_count, made.ranges = 3, 1, [(1, 2)]
    lane_id = 1 + (1 << 60)
    broker = replayed(
        declare(PRIORITY_BASED),
        message(0),
        message(0),
        message(3),
        records.encode_progress({lane_id: made}),
    )
    queue = broker.queues.by_name["q"]

    assert [1, 0, 0, 1] == [lane.unsettled for lane in queue.lanes]
    assert [3, 0, 0, 0] == [lane.position.handed_id for lane in queue.lanes]


def test_a_message_settled_by_progress_and_a_dead_letter_counts_once() -> None:
    """The progress record comes first."""
    letter = message_of(body_of("dlq.q"))
    made = Progress()
    made.settled_count, made.ranges = 1, [(1, 2)]
    broker = replayed(
        declare(FAN_OUT_WITH_ACK),
        message(),
        message(),
        records.encode_progress({1: made}),
        records.encode_dead_letter(letter, subscription_id=1, after_id=1, message_id=2),
    )

    assert 1 == broker.queues.by_name["q"].waiting()


def test_an_acknowledgement_and_a_later_dead_letter_count_once() -> None:
    """One subscriber acknowledged, another rejected; the dead letter's record comes first."""
    drive = Drive()
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITH_ACK))
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 3)
    first = drive.taken(ada)[0]
    other = drive.taken(bob)[0]
    drive.broker.queues.acknowledge(first, drive.now_us)
    drive.broker.queues.reject(other, dead_letters.REJECTED, drive.now_us)
    drive.commit()
    drive.restart()

    assert 2 == drive.queue("q").waiting()


# Snapshots and restarts.


def busy(mode: int) -> Drive:
    """Return a broker with held, acknowledged, requeued, rejected and waiting messages."""
    drive = Drive(Settings(window=3))
    queue = drive.declare("q", policy_of(mode=mode, max_attempts=9))
    for number in range(12):
        drive.publish("q", priority=number % 4)
    drive.commit()
    consumer = drive.join(queue, 5)
    entries = drive.taken(consumer)
    for entry in entries[1:3]:
        drive.broker.queues.acknowledge(entry, drive.now_us)
    drive.serve_reads()
    drive.broker.queues.requeue(entries[3], 0, drive.now_us)
    drive.broker.queues.reject(entries[4], dead_letters.REJECTED, drive.now_us)
    drive.serve_reads()
    return drive


def redelivered(drive: Drive) -> list[tuple[int, int]]:
    """Restart, and return the ids of the redelivered messages with their attempts."""
    drive.restart()
    consumer = drive.join(drive.queue("q"))
    return sorted((entry.id, entry.attempts) for entry in drive.taken(consumer))


@pytest.mark.parametrize("mode", [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK])
@pytest.mark.parametrize("moment", ["before", "between", "after"])
def test_a_snapshot_restores_the_same_state_as_the_records(mode: int, moment: str) -> None:
    """Counts, attempts and settled messages, whenever the snapshot was taken."""
    plain, snapshotted = busy(mode), busy(mode)
    for drive in (plain, snapshotted):
        if drive is snapshotted and moment == "before":
            drive.snapshot()
        drive.broker.full_barrier()
        drive.publish("q", priority=2)
        if drive is snapshotted and moment == "between":
            drive.snapshot()
        drive.commit()
        if drive is snapshotted and moment == "after":
            drive.snapshot()
            drive.commit()
    rows = [redelivered(plain), redelivered(snapshotted)]

    assert rows[0] == rows[1]
    assert 10 == len(rows[0])
    assert facts(plain.queue("q")) == facts(snapshotted.queue("q"))
    assert facts(plain.queue("dlq.q")) == facts(snapshotted.queue("dlq.q"))


def facts(queue: Queue) -> tuple[int, int, int, list[int]]:
    return (
        queue.id,
        queue.waiting(),
        queue.in_flight_count(),
        [lane.unsettled for lane in queue.lanes],
    )


def test_a_message_settled_by_one_subscriber_leaves_no_attempts() -> None:
    """A snapshot does not keep the other subscriber's attempts."""
    drive = Drive()
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITH_ACK))
    drive.join(queue)
    quick = drive.join(queue)
    drive.publish_many("q", 2)
    drive.ack_all(quick)
    drive.snapshot()
    drive.commit()
    drive.restart()

    assert {} == drive.queue("q").durable_channels()[0].position.known_attempts
    assert 0 == drive.queue("q").waiting()


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_drops_are_counted_once(*, with_snapshot: bool) -> None:
    """A snapshot between the drop and its record does not count it twice."""
    drive = Drive()
    drive.declare("q", policy_of(max_size=2, overflow=DROP_OLDEST))
    for _ in range(3):
        drive.publish("q")
    drive.commit_batch()
    if with_snapshot:
        drive.snapshot()
    drive.broker.full_barrier()
    drive.commit()
    drive.restart()

    assert 2 == drive.queue("q").waiting()
    assert 2 == sum(lane.unsettled for lane in drive.queue("q").lanes)


def test_an_uncommitted_deletion_is_in_the_snapshot() -> None:
    """The deleted queue is not in it; the later queue of the same name is."""
    drive = Drive()
    queue = drive.declare("q")
    drive.publish_many("q", 2)
    drive.broker.queues.delete(queue)
    drive.broker.queues.declare(drive.topic("q"), Policy(), drive.now_us)
    drive.publish("q")
    drive.snapshot()
    drive.commit()
    drive.restart()

    assert 1 == drive.queue("q").waiting()
    assert queue.id != drive.queue("q").id


def test_settled_queues_do_not_hold_the_log_back() -> None:
    """A queue of any mode without unsettled messages lets retention delete segments."""
    drive = Drive()
    for name, mode in (("a", ROUND_ROBIN), ("b", PRIORITY_BASED), ("c", FAN_OUT_WITH_ACK)):
        queue = drive.declare(name, policy_of(mode=mode))
        drive.publish_many(name, 3)
        drive.ack_all(drive.join(queue))
    drive.commit()
    before = drive.broker.needed_id()
    drive.snapshot()
    drive.restart()

    assert before == drive.broker.committed_id + 1
    assert before <= drive.broker.needed_id()


def test_the_log_keeps_what_one_subscriber_has_not_read() -> None:
    """Even if the other subscribers have acknowledged it."""
    drive = Drive(Settings(window=1))
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITH_ACK))
    drive.join(queue, 1)
    quick = drive.join(queue)
    ids = drive.publish_many("q", 5)
    drive.ack_all(quick)
    drive.commit()

    assert drive.broker.needed_id() <= ids[0]


def test_the_attempts_of_settled_messages_are_forgotten() -> None:
    """A ledger does not keep the attempts of subscribers that left."""
    drive = Drive()
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITH_ACK))
    for _ in range(5):
        leaver, stayer = drive.join(queue), drive.join(queue)
        drive.publish_many("q", 3)
        drive.leave(leaver, counted=True)
        drive.ack_all(stayer)
        drive.leave(stayer)
        drive.advance(1 * S)

    assert {} == queue.durable_channels()[0].position.known_attempts
