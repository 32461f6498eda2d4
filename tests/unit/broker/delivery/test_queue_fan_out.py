"""Fan-out: every subscriber gets every message, and what becomes of obligations."""

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
from tests.unit.broker.drive import Drive, S, entries_of

ACK_TIMEOUT_US = 32 * S


def policy_of(mode: int = FAN_OUT_WITH_ACK, **given: int | bool) -> Policy:
    policy = Policy()
    policy.mode = mode
    for name, value in given.items():
        setattr(policy, name, value)
    return policy


@pytest.fixture
def drive() -> Drive:
    return Drive()


@pytest.fixture
def queue(drive: Drive) -> Queue:
    return drive.declare("q", policy_of())


def ledger_of(queue: Queue) -> Ledger:
    assert queue.ledger is not None
    return queue.ledger


def ack(drive: Drive, consumer: QueueConsumer) -> None:
    drive.ack_all(consumer)


# With acknowledgement.


def test_every_subscriber_gets_every_message(drive: Drive, queue: Queue) -> None:
    """And each has to acknowledge it; the slowest says what waits."""
    ada, bob = drive.join(queue), drive.join(queue, 1)
    ids = drive.publish_many("q", 3)

    assert [ids, ids[:1]] == [drive.pushed_ids(ada), drive.pushed_ids(bob)]
    assert (2, 4) == (queue.waiting(), queue.in_flight_count())


def test_each_subscriber_is_retried_by_itself(drive: Drive, queue: Queue) -> None:
    """Who has acknowledged does not get it again."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    ack(drive, ada)
    drive.pushed(bob)
    drive.advance(ACK_TIMEOUT_US)

    assert ([], [2]) == (drive.pushed_ids(ada), drive.pushed_ids(bob))


def test_timers_of_two_fan_outs_that_end_together_wake_both(drive: Drive, queue: Queue) -> None:
    """Views have no ids; they are told apart all the same."""
    other = drive.declare("r", policy_of())
    ada, bob = drive.join(queue), drive.join(other)
    drive.publish("q")
    drive.publish("r")
    drive.commit()
    for consumer in (ada, bob):
        drive.pushed(consumer)
    drive.advance(ACK_TIMEOUT_US)

    assert (1, 1) == (len(drive.pushed(ada)), len(drive.pushed(bob)))


def test_without_a_subscriber_a_message_waits_for_one(drive: Drive, queue: Queue) -> None:
    """In the log, not in memory; also after a restart."""
    ids = drive.publish_many("q", 3)
    held = entries_of(ledger_of(queue))
    drive.restart()

    assert (0, 3) == (held, drive.queue("q").waiting())
    assert ids == drive.pushed_ids(drive.join(drive.queue("q")))


def test_what_one_has_acknowledged_is_nobody_elses_business(drive: Drive, queue: Queue) -> None:
    """A departing subscriber's obligation ends; nor does a later one get it."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 2)
    ack(drive, ada)
    drive.leave(bob)
    drive.leave(ada)
    drive.commit()
    later = drive.pushed_ids(drive.join(queue))
    drive.restart()

    assert ([], 0) == (later, drive.queue("q").waiting())
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_what_nobody_has_acknowledged_waits_for_the_next(drive: Drive, queue: Queue) -> None:
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


def test_who_comes_later_has_no_part_in_what_others_are_at(drive: Drive, queue: Queue) -> None:
    """But it has in what comes from now on."""
    ada = drive.join(queue)
    drive.publish_many("q", 2)
    bob = drive.join(queue)
    (newest,) = drive.publish_many("q", 1)

    assert [newest] == drive.pushed_ids(bob)
    assert [2, 3, newest] == drive.pushed_ids(ada)


def test_what_was_only_the_leavers_goes_to_who_comes_next(drive: Drive, queue: Queue) -> None:
    """Not to those who are there: it was never theirs. Nor does it settle what is theirs."""
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


def test_the_leavers_share_is_counted_once_it_is_read() -> None:
    """How much of the log it is shows only then; until then it is not counted below zero."""
    drive = Drive(Settings(window=1))
    queue = drive.declare("q", policy_of())
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


def test_an_attempt_that_was_never_made_is_not_counted(drive: Drive) -> None:
    """Nobody was given the second message: with one attempt allowed, it still is."""
    queue = drive.declare("q", policy_of(max_attempts=1))
    ada = drive.join(queue, 1)
    drive.publish_many("q", 2)
    bob = drive.join(queue)
    drive.publish_many("q", 1)  # which bob is given, with a higher id
    ack(drive, bob)
    drive.leave(ada)
    cyd = drive.join(queue)

    assert [(2, 1)] == [(e.id, e.attempts) for e in drive.taken(cyd)]

    drive.broker.full_barrier()
    drive.commit()
    drive.restart()

    assert [3] == drive.ack_all(drive.join(drive.queue("q")))


def test_an_attempt_of_a_newer_message_is_not_one_of_an_older() -> None:
    """A subscriber that could not be given anything leaves, and one that could."""
    drive = Drive()
    queue = drive.declare("q", policy_of(max_attempts=1))
    full = drive.join(queue)
    full.peer.room_bytes = 0
    drive.publish_many("q", 1)
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(full, counted=True)
    drive.leave(ada, counted=True)

    assert [2] == drive.ack_all(drive.join(queue))  # and the other is a dead letter
    assert 1 == drive.broker.stats.dead_lettered


@pytest.mark.parametrize(("counted", "attempts"), [(True, 2), (False, 1)])
def test_attempts_go_with_the_message(
    drive: Drive, queue: Queue, attempts: int, *, counted: bool
) -> None:
    """To the next subscriber, in this life and the next."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    drive.leave(ada, counted=counted)
    bob = drive.join(queue)
    (entry,) = drive.taken(bob)
    told = entry.attempts
    drive.leave(bob, counted=False)
    drive.broker.full_barrier()
    drive.commit()
    drive.restart()
    (again,) = drive.taken(drive.join(drive.queue("q")))

    assert [attempts, attempts] == [told, again.attempts]


def test_attempts_are_in_a_snapshot(drive: Drive) -> None:
    """Those of messages that are with subscribers now, and those of who left."""
    queue = drive.declare("q", policy_of(max_attempts=9))
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


def test_one_subscriber_gives_up_and_the_other_does_not(drive: Drive) -> None:
    """The dead letter says so; the message goes on for who wants it."""
    queue = drive.declare("q", policy_of(max_attempts=2))
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    (mine,) = drive.taken(ada)
    (his,) = drive.taken(bob)
    drive.broker.queues.reject(mine, dead_letters.REJECTED, drive.now_us)
    on_its_way = set(ledger_of(queue).burying)
    drive.commit()
    committed = set(ledger_of(queue).burying)
    drive.broker.queues.acknowledge(his, drive.now_us)
    (letter,) = drive.dead_letters("dlq.q")

    assert ({2}, set()) == (on_its_way, committed)
    assert "1" == decode_headers(letter.headers)["deathAttempts"]
    assert (0, 0) == (queue.waiting(), queue.in_flight_count())


# The log has no room for a dead letter.


def buried(drive: Drive, consumer: QueueConsumer) -> None:
    (entry,) = drive.taken(consumer)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)


def test_a_refused_letter_is_not_the_end_though_its_subscriber_is_gone(
    drive: Drive, queue: Queue
) -> None:
    """The message waits for the next subscriber, in this life and the next."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    buried(drive, ada)
    drive.leave(ada)
    drive.refuse()
    drive.broker.accept_again()
    waiting = queue.waiting()
    drive.snapshot()
    drive.commit()
    drive.restart()

    assert (1, 1) == (waiting, drive.queue("q").waiting())
    assert [2] == drive.pushed_ids(drive.join(drive.queue("q")))


def test_a_refused_letter_does_not_take_back_an_acknowledgement(
    drive: Drive, queue: Queue
) -> None:
    """Before it or after it: once one subscriber has acknowledged, it is so."""
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


def test_two_letters_of_one_message_are_taken_back_once(drive: Drive, queue: Queue) -> None:
    """It is not counted twice because two subscribers had given up on it."""
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 1)
    buried(drive, ada)
    buried(drive, bob)
    drive.refuse()

    assert 1 == ledger_of(queue).unsettled
    assert [[2], [2]] == [drive.pushed_ids(ada), drive.pushed_ids(bob)]


def test_letters_of_a_deleted_queue_come_back_to_nobody(drive: Drive, queue: Queue) -> None:
    """What was refused of it is gone with it."""
    ada = drive.join(queue)
    drive.publish_many("q", 1)
    buried(drive, ada)
    drive.broker.queues.delete(queue)
    drive.refuse()

    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert {} == drive.broker.queues.by_name


# Permissions, time, overflow, purging.


def test_permissions_are_looked_at_before_each_delivery(drive: Drive, queue: Queue) -> None:
    """Whoever may no longer subscribe gets nothing more."""
    ada, bob = drive.join(queue), drive.join(queue, name="bob")
    principal = ada.peer.principal
    assert principal is not None
    principal.subscribe = []
    principal.version += 1
    drive.publish_many("q", 1)

    assert ([], [2]) == (drive.pushed_ids(ada), drive.pushed_ids(bob))


def test_what_waits_too_long_expires_for_each_subscriber() -> None:
    """At the next look, though nobody takes anything; after a restart as well."""
    drive = Drive()
    queue = drive.declare("q", policy_of(ttl_us=5 * S))
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


def test_a_fan_out_drops_the_oldest_of_each_subscriber(drive: Drive) -> None:
    """The slow one loses what is too old, the quick one nothing."""
    queue = drive.declare("q", policy_of(max_size=2, overflow=DROP_OLDEST))
    slow, quick = drive.join(queue, 1), drive.join(queue)
    drive.publish_many("q", 6)

    assert [2, 3, 4, 5, 6, 7] == drive.ack_all(quick)
    assert [2, 6, 7] == drive.ack_all(slow)
    assert 3 == drive.broker.stats.dropped.overflow


def test_who_comes_to_a_fan_out_that_drops_gets_the_newest() -> None:
    """Nobody was there to drop the rest: it is dropped as it is read."""
    drive = Drive(Settings(window=2))
    queue = drive.declare("q", policy_of(max_size=3, overflow=DROP_OLDEST))
    drive.publish_many("q", 10)
    waiting = queue.waiting()

    assert 3 == waiting
    assert [9, 10, 11] == drive.ack_all(drive.join(queue))
    assert (7, 0) == (drive.broker.stats.dropped.overflow, queue.waiting())


def test_the_slowest_subscriber_blocks_publishers(drive: Drive) -> None:
    """Until it has taken something, or is gone."""
    queue = drive.declare("q", policy_of(max_size=1, overflow=BLOCK_PUBLISHER))
    slow = drive.join(queue, 1)
    drive.join(queue)
    drive.publish_many("q", 2)
    queue.blocked.append(slow.peer)
    drive.broker.take_touched()
    drive.leave(slow)

    assert [] == queue.blocked
    assert slow.peer in drive.broker.take_touched()
