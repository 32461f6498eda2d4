"""Queues: declaration and deletion, and the ways in which a delivery can end."""

from braidmq.broker import dead_letters
from braidmq.broker.policy import Policy
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, S, entries_of, policy_of

ACK_TIMEOUT_US = 32 * S  # with the first backoff


# Declaration and deletion.


def test_a_queue_keeps_messages_published_after_its_declaration(drive: Drive) -> None:
    """Also while it has no consumer, without holding them in memory."""
    drive.publish("q", b"before")
    queue = drive.declare("q")
    ids = drive.publish_many("q", 5)

    assert (5, 0) == (queue.waiting(), entries_of(queue.lanes[0]))
    assert ids == drive.pushed_ids(drive.join(queue))
    assert (0, 5) == (queue.waiting(), queue.in_flight_count())


def test_messages_accepted_before_the_declaration_do_not_belong_to_the_queue(
    drive: Drive,
) -> None:
    """The ids decide, not the time of the commit."""
    drive.publish("q", b"before")
    queue = drive.broker.queues.declare(drive.topic("q"), Policy(), drive.now_us)
    late = drive.publish("q", b"after")
    drive.commit()

    assert (1, 0) == (queue.waiting(), queue.pending)
    assert [late] == drive.pushed_ids(drive.join(queue))


def test_the_default_policy_follows_the_settings() -> None:
    """But dead-letter queues have no limits, whatever the settings are."""
    drive = Drive(Settings(queue_attempts_max=7, queue_ttl_us=9 * S))
    plain = drive.broker.queues.new_policy("q")
    letters = drive.broker.queues.new_policy("dlq.q")

    assert (7, 9 * S, True) == (plain.max_attempts, plain.ttl_us, plain.dead_letters)
    assert (0, 0, False) == (letters.max_attempts, letters.ttl_us, letters.dead_letters)


def test_deleting_a_queue_ends_waiting_messages_and_those_in_flight(drive: Drive) -> None:
    """Its consumers are removed, and a later queue of the same name starts empty."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    consumer = drive.join(queue, 1)
    (entry,) = drive.taken(consumer)
    record_id = drive.broker.queues.delete(queue)
    drive.commit()
    again = drive.declare("q")

    assert record_id == drive.broker.committed_id - 1
    assert {} == consumer.peer.consumers
    assert entry.channel.ended
    assert (0, 0) == (again.waiting(), drive.broker.in_flight_count())
    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert [] == drive.pushed_ids(drive.join(again))


def test_a_deleted_queue_stays_deleted(drive: Drive) -> None:
    """After a restart, and even if the log refused the deletion at first."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    drive.broker.queues.delete(queue)
    drive.refuse()
    drive.broker.accept_again()
    drive.commit()
    drive.restart()

    assert {} == drive.broker.queues.by_name


def test_a_refused_declaration_creates_no_queue(drive: Drive) -> None:
    """Its consumers are removed, and deleting it has no effect."""
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


def test_a_queue_for_dead_letters_of_others_has_no_attempt_limit(drive: Drive) -> None:
    """Whichever is declared first: dead letters are never dead-lettered again."""
    first = drive.declare("grave")
    drive.declare("q", policy_of(dead_letter_name="grave"))
    drive.declare("r", policy_of(dead_letter_name="pit"))
    second = drive.declare("pit")

    assert [0, 0] == [first.rules.attempts_max, second.rules.attempts_max]
    assert [False, False] == [first.rules.dead_letters, second.rules.dead_letters]


# Ends of a delivery.


def test_an_acknowledgement_survives_a_restart(drive: Drive) -> None:
    """Only the other messages are redelivered, and their earlier attempt counts."""
    queue = drive.declare("q")
    drive.publish_many("q", 3)
    consumer = drive.join(queue)
    entries = drive.taken(consumer)
    drive.broker.queues.acknowledge(entries[1], drive.now_us)
    drive.commit()
    drive.restart()
    again = drive.taken(drive.join(drive.queue("q")))

    assert [(2, 2), (4, 2)] == [(entry.id, entry.attempts) for entry in again]


def test_messages_not_acknowledged_in_time_are_redelivered_first(drive: Drive) -> None:
    """After the timeout and the backoff; a late acknowledgement still counts."""
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
    """No further attempts are made."""
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


def test_a_requeued_message_is_redelivered_at_once(drive: Drive) -> None:
    """The first delivery counted as an attempt, and it goes before newer ones."""
    queue = drive.declare("q")
    drive.publish_many("q", 2)
    consumer = drive.join(queue, 1)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.requeue(entry, 0, drive.now_us)

    assert [(2, 2)] == [(e.id, e.attempts) for e in drive.taken(consumer)]


def test_a_requeue_delay_is_respected(drive: Drive) -> None:
    """Others go first meanwhile; the broker extends a delay by a sixteenth at most."""
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
    """Its timer then has no effect."""
    queue = drive.declare("q")
    drive.publish_many("q", 1)
    consumer = drive.join(queue)
    (entry,) = drive.taken(consumer)
    drive.broker.queues.requeue(entry, 10 * S, drive.now_us)
    drive.broker.queues.acknowledge(entry, drive.now_us)
    drive.advance(20 * S)

    assert ([], 0) == (drive.pushed_ids(consumer), queue.waiting())


def test_requeuing_the_last_attempt_makes_a_dead_letter(drive: Drive) -> None:
    """With or without a delay."""
    queue = drive.declare("q", policy_of(max_attempts=1))
    drive.publish_many("q", 2)
    consumer = drive.join(queue)
    for delay_us in (0, 10 * S):
        (entry,) = drive.taken(consumer)
        drive.broker.queues.requeue(entry, delay_us, drive.now_us)
    drive.commit()

    assert (0, 2) == (queue.waiting(), drive.queue("dlq.q").waiting())


def test_a_returned_message_is_not_delivered_twice(drive: Drive) -> None:
    """Its timer returned it, then its consumer requeued it, and two others are idle."""
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.publish_many("q", 1)
    (entry,) = drive.taken(consumer)
    consumer.peer.room_bytes = 0
    drive.advance(ACK_TIMEOUT_US)
    drive.broker.queues.requeue(entry, 0, drive.now_us)
    ada, bob = drive.join(queue), drive.join(queue)

    assert [[2], []] == drive.pushed_to(ada, bob)
    assert (1, 1) == (queue.in_flight_count(), drive.broker.in_flight_count())


def test_a_returned_message_can_be_requeued_with_a_delay(drive: Drive) -> None:
    """No consumer gets it earlier, although it was available already."""
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
