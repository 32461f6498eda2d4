"""Queues at work: their life, the ends that a delivery can have, and purging."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.queue import QueueConsumer
from braidmq.broker.policy import Policy
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, entries_of

ACK_TIMEOUT_US = 32 * S  # with the first backoff


@pytest.fixture
def drive() -> Drive:
    return Drive()


def held(drive: Drive, *consumers: QueueConsumer) -> list[list[int]]:
    """Return the ids that were pushed to each."""
    return [drive.pushed_ids(consumer) for consumer in consumers]


def limited(**given: int | bool | str) -> Policy:
    policy = Policy()
    for name, value in given.items():
        setattr(policy, name, value)
    return policy


# A queue's life.


def test_a_queue_keeps_what_comes_after_its_declaration(drive: Drive) -> None:
    """Also what comes while nobody consumes it, without holding it in memory."""
    drive.publish("q", b"before")
    queue = drive.declare("q")
    ids = drive.publish_many("q", 5)

    assert (5, 0) == (queue.waiting(), entries_of(queue.lanes[0]))
    assert ids == drive.pushed_ids(drive.join(queue))
    assert (0, 5) == (queue.waiting(), queue.in_flight_count())


def test_what_was_on_its_way_before_the_declaration_is_not_the_queues(drive: Drive) -> None:
    """Ids decide, not the moment of the commit."""
    drive.publish("q", b"before")
    queue = drive.broker.queues.declare(drive.topic("q"), Policy(), drive.now_us)
    late = drive.publish("q", b"after")
    drive.commit()

    assert (1, 0) == (queue.waiting(), queue.pending)
    assert [late] == drive.pushed_ids(drive.join(queue))


def test_a_queue_without_a_word_has_what_the_settings_say() -> None:
    """But queues of dead letters have no limits, whatever the settings."""
    drive = Drive(Settings(queue_attempts_max=7, queue_ttl_us=9 * S))
    plain = drive.broker.queues.new_policy("q")
    letters = drive.broker.queues.new_policy("dlq.q")

    assert (7, 9 * S, True) == (plain.max_attempts, plain.ttl_us, plain.dead_letters)
    assert (0, 0, False) == (letters.max_attempts, letters.ttl_us, letters.dead_letters)


def test_deleting_ends_what_waits_and_what_is_in_flight(drive: Drive) -> None:
    """Its subscriptions end with it, and a later queue of that name begins empty."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    consumer = drive.join(queue, 1)
    (entry,) = drive.taken(consumer)
    given = drive.broker.queues.delete(queue)
    drive.commit()
    again = drive.declare("q")

    assert given == drive.broker.committed_id - 1
    assert {} == consumer.peer.consumers
    assert entry.channel.ended
    assert (0, 0) == (again.waiting(), drive.broker.in_flight_count())
    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert [] == drive.pushed_ids(drive.join(again))


def test_a_deleted_queue_stays_deleted(drive: Drive) -> None:
    """Across a restart, and when the log had no room for it at first."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    drive.broker.queues.delete(queue)
    drive.refuse()
    drive.broker.accept_again()
    drive.commit()
    drive.restart()

    assert {} == drive.broker.queues.by_name


def test_a_declaration_that_the_log_refused_was_none(drive: Drive) -> None:
    """Nor is its end of any consequence: whoever joined it is out."""
    queue = drive.broker.queues.declare(drive.topic("q"), Policy(), drive.now_us)
    consumer = drive.join(queue)
    gone = drive.broker.queues.declare(drive.topic("r"), Policy(), drive.now_us)
    drive.broker.queues.delete(gone)
    drive.refuse()
    drive.broker.accept_again()
    drive.commit()
    drive.declare("s")
    drive.restart()

    assert {} == consumer.peer.consumers
    assert ["s"] == list(drive.broker.queues.by_name)


def test_a_queue_that_others_bury_in_has_no_attempt_limit(drive: Drive) -> None:
    """Whichever of the two is declared first; dead letters never die again."""
    first = drive.declare("grave")
    drive.declare("q", limited(dead_letter_name="grave"))
    drive.declare("r", limited(dead_letter_name="pit"))
    second = drive.declare("pit")

    assert [0, 0] == [first.rules.attempts_max, second.rules.attempts_max]
    assert [False, False] == [first.rules.dead_letters, second.rules.dead_letters]


# The end of a delivery.


def test_an_acknowledgement_is_for_ever(drive: Drive) -> None:
    """After a restart only the others come back, with the attempt they had."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    consumer = drive.join(queue)
    entries = drive.taken(consumer)
    drive.broker.queues.acknowledge(entries[1], drive.now_us)
    drive.commit()
    drive.restart()
    again = drive.taken(drive.join(drive.queue("q")))

    assert [(2, 2), (4, 2)] == [(entry.id, entry.attempts) for entry in again]


def test_what_is_not_acknowledged_in_time_comes_back_first(drive: Drive) -> None:
    """After the timeout and the backoff, to whoever is free; a late word still counts."""
    queue = drive.declare("q")
    consumer = drive.join(queue, 2)
    drive.publish_many("q", 4)
    first, _ = drive.taken(consumer)
    drive.advance(ACK_TIMEOUT_US - 1)
    early = drive.pushed_ids(consumer)
    drive.advance(1)
    again = drive.taken(consumer)
    drive.broker.queues.acknowledge(first, drive.now_us)

    assert [] == early
    assert [(2, 2), (3, 2)] == [(entry.id, entry.attempts) for entry in again]
    assert [4] == drive.pushed_ids(consumer)


def test_a_rejected_message_is_a_dead_letter_at_once(drive: Drive) -> None:
    """It says why, and how often it was tried."""
    queue = drive.declare("q")
    drive.publish_many("q", 1)
    consumer = drive.join(queue)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.commit()

    assert (0, 0, 1) == (
        queue.waiting(),
        queue.in_flight_count(),
        drive.queue("dlq.q").waiting(),
    )
    assert 1 == drive.broker.stats.dead_lettered


def test_a_requeued_message_comes_back_at_once(drive: Drive) -> None:
    """It was an attempt, and it comes before newer ones."""
    queue = drive.declare("q")
    drive.publish_many("q", 2)
    consumer = drive.join(queue, 1)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.requeue(entry, 0, drive.now_us)

    assert [(2, 2)] == [(e.id, e.attempts) for e in drive.taken(consumer)]


def test_a_requeued_message_keeps_away_as_long_as_was_asked(drive: Drive) -> None:
    """Others go first meanwhile; delays are lengthened by a sixteenth at most."""
    queue = drive.declare("q")
    drive.publish_many("q", 2)
    consumer = drive.join(queue, 1)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.requeue(entry, 10 * S, drive.now_us)
    (other,) = drive.taken(consumer)
    drive.broker.queues.acknowledge(other, drive.now_us)
    waiting = queue.waiting()
    drive.advance(10 * S - 1)
    early = drive.pushed_ids(consumer)
    drive.advance(10 * S // 16 + 1)

    assert (3, 1, []) == (other.id, waiting, early)
    assert [2] == drive.pushed_ids(consumer)


def test_a_delayed_message_can_still_be_acknowledged(drive: Drive) -> None:
    """Then its timer means nothing."""
    queue = drive.declare("q")
    drive.publish_many("q", 1)
    consumer = drive.join(queue)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.requeue(entry, 10 * S, drive.now_us)
    drive.broker.queues.acknowledge(entry, drive.now_us)
    drive.advance(20 * S)

    assert ([], 0) == (drive.pushed_ids(consumer), queue.waiting())


def test_the_last_attempt_requeued_is_a_dead_letter(drive: Drive) -> None:
    """With a delay or without."""
    queue = drive.declare("q", limited(max_attempts=1))
    drive.publish_many("q", 2)
    consumer = drive.join(queue)
    for delay_us in (0, 10 * S):
        (entry,) = drive.taken(consumer)
        drive.broker.queues.requeue(entry, delay_us, drive.now_us)
    drive.commit()

    assert (0, 2) == (queue.waiting(), drive.queue("dlq.q").waiting())


def test_a_message_that_came_back_is_not_handed_out_twice(drive: Drive) -> None:
    """Its timer put it back; then its consumer says requeue, and two are free."""
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.publish_many("q", 1)
    (entry,) = drive.taken(consumer)
    consumer.peer.room_bytes = 0
    drive.advance(ACK_TIMEOUT_US)
    drive.broker.queues.requeue(entry, 0, drive.now_us)
    ada, bob = drive.join(queue), drive.join(queue)

    assert [[2], []] == held(drive, ada, bob)
    assert (1, 1) == (queue.in_flight_count(), drive.broker.in_flight_count())


def test_a_message_that_came_back_can_be_put_off(drive: Drive) -> None:
    """Nobody gets it before its time, though it was in line already."""
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.publish_many("q", 1)
    (entry,) = drive.taken(consumer)
    consumer.peer.room_bytes = 0
    drive.advance(ACK_TIMEOUT_US)
    drive.broker.queues.requeue(entry, 5 * S, drive.now_us)
    other = drive.join(queue)
    early = drive.pushed_ids(other)
    drive.advance(6 * S)

    assert ([], [2]) == (early, drive.pushed_ids(other))
