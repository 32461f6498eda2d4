"""Fan-out: every subscriber gets every message, and what each of them has to acknowledge."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.queue import Ledger, Queue, QueueConsumer
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    Policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive, S, entries_of, policy_of

ACK_TIMEOUT_US = 32 * S


def fan_out(**given: int) -> Policy:
    return policy_of(mode=FAN_OUT_WITH_ACK, **given)


@pytest.fixture
def queue(drive: Drive) -> Queue:
    return drive.declare("q", fan_out())


def ledger_of(queue: Queue) -> Ledger:
    assert queue.ledger is not None
    return queue.ledger


# With acknowledgement.


def test_every_subscriber_gets_every_message(drive: Drive, queue: Queue) -> None:
    """Each has to acknowledge it; the slowest determines how many wait."""
    ada, bob = drive.join(queue), drive.join(queue, 1)
    ids = drive.publish_many("q", 3)

    assert [ids, ids[:1]] == [drive.pushed_ids(ada), drive.pushed_ids(bob)]
    assert (2, 4) == (queue.waiting(), queue.in_flight_count())


def test_each_subscriber_has_its_own_redeliveries(drive: Drive, queue: Queue) -> None:
    """A subscriber that has acknowledged does not get the message again."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    drive.ack_all(ada)
    drive.pushed(bob)
    drive.advance(ACK_TIMEOUT_US)

    assert ([], [2]) == (drive.pushed_ids(ada), drive.pushed_ids(bob))


def test_timers_of_two_fan_outs_can_end_together(drive: Drive, queue: Queue) -> None:
    """Views have no ids, but the broker distinguishes them all the same."""
    other = drive.declare("r", fan_out())
    ada, bob = drive.join(queue), drive.join(other)
    drive.publish("q")
    drive.publish("r")
    drive.commit()
    for consumer in (ada, bob):
        drive.pushed(consumer)
    drive.advance(ACK_TIMEOUT_US)

    assert (1, 1) == (len(drive.pushed(ada)), len(drive.pushed(bob)))


def test_without_a_subscriber_a_message_waits_for_one(drive: Drive, queue: Queue) -> None:
    """In the log and not in memory, also after a restart."""
    ids = drive.publish_many("q", 3)
    held = entries_of(ledger_of(queue))
    drive.restart()

    assert (0, 3) == (held, drive.queue("q").waiting())
    assert ids == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_message_that_one_subscriber_acknowledged_is_settled(
    drive: Drive, queue: Queue
) -> None:
    """After the others leave, no later subscriber gets it."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 2)
    drive.ack_all(ada)
    drive.leave(bob)
    drive.leave(ada)
    drive.commit()
    later = drive.pushed_ids(drive.join(queue))
    drive.restart()

    assert ([], 0) == (later, drive.queue("q").waiting())
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_unacknowledged_messages_wait_for_the_next_subscriber(
    drive: Drive, queue: Queue
) -> None:
    """Also after a restart."""
    ada = drive.join(queue)
    ids = drive.publish_many("q", 2)
    drive.leave(ada)
    drive.commit()
    next_one = drive.join(queue)
    seen = drive.pushed_ids(next_one)
    drive.leave(next_one)
    drive.restart()

    assert ids == seen
    assert ids == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_new_subscriber_does_not_get_what_others_have_in_flight(
    drive: Drive, queue: Queue
) -> None:
    """But it gets every later message."""
    ada = drive.join(queue)
    drive.publish_many("q", 2)
    bob = drive.join(queue)
    (newest,) = drive.publish_many("q", 1)

    assert [newest] == drive.pushed_ids(bob)
    assert [2, 3, newest] == drive.pushed_ids(ada)


def test_a_leaving_subscribers_messages_go_to_the_next_one(drive: Drive, queue: Queue) -> None:
    """Not to the connected ones, which never had them; their own messages stay unsettled."""
    ada = drive.join(queue)
    drive.publish_many("q", 2)
    bob = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(ada)
    cyd = drive.join(queue)
    seen = drive.pushed_ids(bob), drive.pushed_ids(cyd)
    drive.leave(bob)
    drive.leave(cyd)

    assert ([4], [2, 3]) == seen
    assert 3 == queue.waiting()
    assert [2, 3, 4] == drive.pushed_ids(drive.join(queue))


def test_a_leaving_subscribers_messages_are_counted_once_they_are_read() -> None:
    """Their number is unknown until then, and never counts below zero."""
    drive = Drive(Settings(window=1))
    queue = drive.declare("q", fan_out())
    ada = drive.join(queue, 1)
    drive.publish_many("q", 3)
    drive.join(queue, 1)
    drive.leave(ada)
    cyd = drive.join(queue, 1)
    (entry,) = drive.taken(cyd)
    drive.broker.queues.acknowledge(entry, drive.now_us)
    unread = queue.waiting()

    assert 0 == unread
    drive.serve_reads()
    assert [3, 4] == drive.ack_all(cyd)
    assert (0, 0) == (queue.waiting(), ledger_of(queue).unsettled)


def test_an_undelivered_message_has_no_attempts(drive: Drive) -> None:
    """No subscriber got the second message, so its only attempt is still left."""
    queue = drive.declare("q", fan_out(max_attempts=1))
    ada = drive.join(queue, 1)
    drive.publish_many("q", 2)
    bob = drive.join(queue)
    drive.publish_many("q", 1)  # goes to bob, with a higher id
    drive.ack_all(bob)
    drive.leave(ada)
    cyd = drive.join(queue)

    assert [(2, 1)] == [(e.id, e.attempts) for e in drive.taken(cyd)]

    drive.broker.full_barrier()
    drive.commit()
    drive.restart()

    assert [3] == drive.ack_all(drive.join(drive.queue("q")))


def test_delivering_a_newer_message_is_no_attempt_of_an_older_one() -> None:
    """A subscriber without room leaves, and then one that had room."""
    drive = Drive()
    queue = drive.declare("q", fan_out(max_attempts=1))
    full = drive.join(queue)
    full.peer.room_bytes = 0
    drive.publish_many("q", 1)
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(full, counted=True)
    drive.leave(ada, counted=True)

    assert [2] == drive.ack_all(drive.join(queue))  # the other is a dead letter
    assert 1 == drive.broker.stats.dead_lettered


@pytest.mark.parametrize(("counted", "attempts"), [(True, 2), (False, 1)])
def test_attempts_carry_over_to_the_next_subscriber(
    drive: Drive, queue: Queue, attempts: int, *, counted: bool
) -> None:
    """Also after a restart."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(ada, counted=counted)
    bob = drive.join(queue)
    (entry,) = drive.taken(bob)
    before = entry.attempts
    drive.leave(bob, counted=False)
    drive.broker.full_barrier()
    drive.commit()
    drive.restart()
    (again,) = drive.taken(drive.join(drive.queue("q")))

    assert [attempts, attempts] == [before, again.attempts]


def test_a_snapshot_keeps_the_attempts(drive: Drive) -> None:
    """Those of connected subscribers and of those that left."""
    queue = drive.declare("q", fan_out(max_attempts=9))
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(ada, counted=True)
    drive.join(queue)
    drive.publish_many("q", 1)
    drive.snapshot()
    drive.commit()
    drive.restart()
    entries = drive.taken(drive.join(drive.queue("q")))

    assert [(2, 3), (3, 2)] == sorted((e.id, e.attempts) for e in entries)


def test_one_subscriber_can_reject_what_another_acknowledges(drive: Drive) -> None:
    """The message becomes a dead letter, and the other subscriber keeps it."""
    queue = drive.declare("q", fan_out(max_attempts=2))
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    (mine,) = drive.taken(ada)
    (his,) = drive.taken(bob)
    drive.broker.queues.reject(mine, dead_letters.REJECTED, drive.now_us)
    uncommitted = set(ledger_of(queue).burying)
    drive.commit()
    committed = set(ledger_of(queue).burying)
    drive.broker.queues.acknowledge(his, drive.now_us)
    (letter,) = drive.dead_letters("dlq.q")

    assert ({2}, set()) == (uncommitted, committed)
    assert "1" == decode_headers(letter.headers)["deathAttempts"]
    assert (0, 0) == (queue.waiting(), queue.in_flight_count())


# Refused dead letters.


def reject_one(drive: Drive, consumer: QueueConsumer) -> None:
    (entry,) = drive.taken(consumer)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)


def test_a_refused_dead_letter_reopens_the_message_after_its_subscriber_left(
    drive: Drive, queue: Queue
) -> None:
    """The message waits for the next subscriber, also after a restart."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    reject_one(drive, ada)
    drive.leave(ada)
    drive.refuse()
    drive.broker.accept_again()
    waiting = queue.waiting()
    drive.snapshot()
    drive.commit()
    drive.restart()

    assert (1, 1) == (waiting, drive.queue("q").waiting())
    assert [2] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_refused_dead_letter_does_not_undo_an_acknowledgement(
    drive: Drive, queue: Queue
) -> None:
    """Whether another subscriber acknowledged before or after it."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 2)
    first, second = drive.taken(ada)
    his, hers = drive.taken(bob)
    drive.broker.queues.acknowledge(his, drive.now_us)
    drive.commit()
    drive.broker.queues.reject(first, dead_letters.REJECTED, drive.now_us)
    drive.broker.queues.reject(second, dead_letters.REJECTED, drive.now_us)
    drive.broker.queues.acknowledge(hers, drive.now_us)
    drive.refuse()
    drive.commit()  # the reserve has room for acknowledgements
    unsettled = ledger_of(queue).unsettled
    drive.restart()

    assert (0, 0) == (unsettled, drive.queue("q").waiting())
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_two_refused_dead_letters_of_one_message_are_undone_once(
    drive: Drive, queue: Queue
) -> None:
    """Two subscribers rejected the message, but it counts as unsettled only once."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    reject_one(drive, ada)
    reject_one(drive, bob)
    drive.refuse()

    assert 1 == ledger_of(queue).unsettled
    assert [[2], [2]] == [drive.pushed_ids(ada), drive.pushed_ids(bob)]


def test_refused_dead_letters_of_a_deleted_queue_are_dropped(
    drive: Drive, queue: Queue
) -> None:
    """Their messages are gone with the queue."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    reject_one(drive, ada)
    drive.broker.queues.delete(queue)
    drive.refuse()

    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert {} == drive.broker.queues.by_name


# Permissions, expiry and overflow.


def test_permissions_are_checked_before_each_delivery(drive: Drive, queue: Queue) -> None:
    """A subscriber that may no longer subscribe gets nothing more."""
    ada, bob = drive.join(queue), drive.join(queue, name="bob")
    principal = ada.peer.principal
    assert principal is not None
    principal.subscribe = []
    principal.version += 1
    drive.publish_many("q", 1)

    assert ([], [2]) == (drive.pushed_ids(ada), drive.pushed_ids(bob))


def test_waiting_messages_expire_for_each_subscriber() -> None:
    """At the next maintenance, without any consumer activity; after a restart as well."""
    drive = Drive()
    queue = drive.declare("q", fan_out(ttl_us=5 * S))
    ada = drive.join(queue, 1)
    drive.publish_many("q", 2)
    drive.advance(7 * S)
    drive.commit()
    in_view = drive.broker.stats.expired
    drive.disconnect(ada)
    drive.restart()
    for _ in range(3):
        drive.advance(7 * S)
        drive.commit()

    assert 1 == in_view
    assert 0 == entries_of(ledger_of(drive.queue("q")))  # a ledger holds no messages
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_drop_oldest_applies_to_each_subscriber(drive: Drive) -> None:
    """The slow one loses its oldest messages, the quick one none."""
    queue = drive.declare("q", fan_out(max_size=2, overflow=DROP_OLDEST))
    slow, quick = drive.join(queue, 1), drive.join(queue)
    drive.publish_many("q", 6)

    assert [2, 3, 4, 5, 6, 7] == drive.ack_all(quick)
    assert [2, 6, 7] == drive.ack_all(slow)
    assert 3 == drive.broker.stats.dropped.overflow


def test_a_new_subscriber_of_a_drop_oldest_fan_out_gets_the_newest() -> None:
    """The rest is dropped while the backlog is read."""
    drive = Drive(Settings(window=2))
    queue = drive.declare("q", fan_out(max_size=3, overflow=DROP_OLDEST))
    drive.publish_many("q", 10)
    waiting = queue.waiting()

    assert 3 == waiting
    assert [9, 10, 11] == drive.ack_all(drive.join(queue))
    assert (7, 0) == (drive.broker.stats.dropped.overflow, queue.waiting())


def test_the_slowest_subscriber_blocks_publishers(drive: Drive) -> None:
    """Until it takes a message or leaves."""
    queue = drive.declare("q", fan_out(max_size=1, overflow=BLOCK_PUBLISHER))
    slow = drive.join(queue, 1)
    drive.join(queue)
    drive.publish_many("q", 2)
    queue.line().append(slow.peer)
    drive.broker.take_touched()
    drive.leave(slow)

    assert [] == queue.blocked
    assert slow.peer in drive.broker.take_touched()
