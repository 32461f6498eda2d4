"""How deliveries of a queue end: given back, expired, given up on, and what the log refuses."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.channels import Entry
from braidmq.broker.delivery.queue import Queue, QueueConsumer
from braidmq.broker.outgoing import PROGRESS_DELAY_US
from braidmq.broker.policy import Policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive, S

ACK_TIMEOUT_US = 32 * S


def declared(drive: Drive, **given: int | bool | str) -> Queue:
    policy = Policy()
    for name, value in given.items():
        setattr(policy, name, value)
    return drive.declare("q", policy)


def handed_out(drive: Drive, queue: Queue, count: int = 1) -> tuple[QueueConsumer, list[Entry]]:
    drive.publish_many("q", count)
    consumer = drive.join(queue)
    return consumer, drive.taken(consumer)


def told(drive: Drive, topic: str = "dlq.q") -> list[dict[str, str]]:
    return [decode_headers(letter.headers) for letter in drive.dead_letters(topic)]


def test_progress_is_recorded_soon_after_the_first_of_it() -> None:
    """Not after the last: it would never be while work goes on."""
    drive = Drive()
    queue = declared(drive)
    _, (first, second) = handed_out(drive, queue, 2)
    drive.commit()
    drive.broker.queues.acknowledge(first, drive.now_us)
    drive.broker.queues.acknowledge(second, drive.now_us + PROGRESS_DELAY_US - 1)

    assert drive.now_us + PROGRESS_DELAY_US == drive.broker.next_deadline_us()


def test_a_message_is_given_up_on_after_its_last_delivery() -> None:
    """The letter keeps the name that consumers know it by, and says how often it was tried."""
    drive = Drive()
    queue = declared(drive)
    consumer, _ = handed_out(drive, queue)
    for _ in range(3):
        drive.advance(2 * ACK_TIMEOUT_US)
    drive.commit()

    assert [
        {"": "2", "deathReason": "maxRetries", "deathQueue": "q", "deathAttempts": "3"}
    ] == told(drive)
    assert (0, 0, 0) == (queue.waiting(), queue.in_flight_count(), consumer.held)


def test_a_letter_and_the_end_of_its_message_are_one_record() -> None:
    """Whatever a crash leaves, the message is in one of the two places."""
    drive = Drive()
    queue = declared(drive, max_attempts=1)
    consumer, _ = handed_out(drive, queue)
    drive.disconnect(consumer)
    drive.restart()
    before = drive.queue("q").waiting(), "dlq.q" in drive.broker.queues.by_name
    drive.advance(0)
    drive.leave(drive.join(drive.queue("q")), counted=True)
    drive.commit()
    drive.restart()

    assert (1, False) == before
    assert (0, 1) == (drive.queue("q").waiting(), drive.queue("dlq.q").waiting())


def test_without_dead_letters_the_end_is_a_drop_and_is_counted_by_its_reason() -> None:
    """It stays so after a restart."""
    drive = Drive()
    queue = declared(drive, dead_letters=False, max_attempts=1, ttl_us=50 * S)
    _, (entry,) = handed_out(drive, queue)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.publish_many("q", 2)
    drive.advance(ACK_TIMEOUT_US)
    drive.advance(60 * S)
    drive.broker.full_barrier()
    drive.commit()
    dropped, expired = dict(drive.broker.stats.dropped.by_reason), drive.broker.stats.expired
    drive.restart()

    assert ({"rejected": 1, "maxRetries": 1}, 1) == (dropped, expired)
    assert 0 == drive.queue("q").waiting()
    assert ["q"] == list(drive.broker.queues.by_name)


# Time.


@pytest.mark.parametrize("consumed", [False, True])
def test_what_waits_too_long_becomes_a_letter(*, consumed: bool) -> None:
    """Whether anybody consumes the queue or not, at hand or in the log."""
    drive = Drive(Settings(window=2))
    queue = declared(drive, ttl_us=5 * S)
    if consumed:
        drive.join(queue, 1)
    drive.publish_many("q", 5)
    for _ in range(8):
        drive.advance(2 * S)
        drive.serve_reads()
    drive.commit()
    in_flight = int(consumed)

    assert (0, in_flight) == (queue.waiting(), queue.in_flight_count())
    assert ["expired"] * (5 - in_flight) == [one["deathReason"] for one in told(drive)]
    assert 5 - in_flight == drive.broker.stats.expired


def test_what_came_back_expires_too() -> None:
    """Though nobody is there to take it."""
    drive = Drive()
    queue = declared(drive, ttl_us=5 * S)
    consumer, _ = handed_out(drive, queue)
    drive.leave(consumer)
    drive.advance(7 * S)
    drive.commit()

    assert (0, 1) == (queue.waiting(), drive.queue("dlq.q").waiting())


def test_what_a_consumer_holds_too_long_expires_when_it_comes_back() -> None:
    """Not while it is held: it may still be acknowledged."""
    drive = Drive()
    queue = declared(drive, ttl_us=5 * S)
    consumer, (entry,) = handed_out(drive, queue)
    drive.advance(7 * S)
    held = queue.in_flight_count()
    drive.leave(consumer)
    drive.commit()

    assert (1, ["expired"]) == (held, [one["deathReason"] for one in told(drive)])
    assert entry.message.body == b""


def test_memory_only_messages_expire_without_a_letter() -> None:
    """They are counted, and that is all."""
    drive = Drive()
    queue = declared(drive, durable=False, ttl_us=5 * S)
    drive.publish("q")
    drive.advance(7 * S)

    assert (0, 1) == (queue.waiting(), drive.broker.stats.expired)
    assert 0 == drive.broker.dispatch.windows.held_bytes


# The log is full.


def test_a_letter_that_the_log_refused_is_tried_again() -> None:
    """Its message is with nobody meanwhile, waits, and is not delivered once more."""
    drive = Drive()
    queue = declared(drive, max_attempts=1)
    consumer, _ = handed_out(drive, queue)
    drive.disconnect(consumer)
    drive.refuse()
    other = drive.join(queue)
    parked = queue.waiting(), drive.pushed_ids(other), drive.broker.stats.dead_lettered
    drive.broker.accept_again()
    drive.advance(drive.settings.retry_backoff_us)
    drive.commit()

    assert (1, [], 0) == parked
    assert (0, 1) == (queue.waiting(), drive.queue("dlq.q").waiting())
    assert 0 == drive.broker.outgoing.bytes


def test_while_the_log_is_full_a_rejected_message_is_not_dead() -> None:
    """It is handed out again after a while, rather than lost."""
    drive = Drive()
    queue = declared(drive)
    _, (entry,) = handed_out(drive, queue)
    drive.publish("q")
    drive.refuse()
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    waiting = queue.waiting()
    consumer = drive.join(queue)
    drive.advance(drive.settings.retry_backoff_us)

    assert 1 == waiting
    assert 1 == queue.in_flight_count() + len(drive.pushed(consumer)) - consumer.held


def test_a_rejected_message_whose_letter_is_refused_goes_to_who_is_free() -> None:
    """At once: nothing else would wake anybody."""
    drive = Drive()
    queue = declared(drive)
    consumer, (entry,) = handed_out(drive, queue)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.refuse()

    assert [entry.id] == drive.pushed_ids(consumer)


def test_a_message_expires_once_however_often_its_letter_is_refused() -> None:
    """The counter says messages, not tries."""
    drive = Drive()
    queue = declared(drive, ttl_us=5 * S)
    drive.publish_many("q", 1)
    drive.leave(drive.join(queue))
    drive.publish("q")
    drive.refuse()
    drive.advance(60 * S)
    before = drive.broker.stats.expired
    drive.broker.accept_again()
    drive.advance(60 * S)
    drive.commit()

    assert (0, 1) == (before, drive.broker.stats.expired)
    assert 1 == drive.queue("dlq.q").waiting()


def test_letters_of_topics_and_of_queues_have_their_own_names() -> None:
    """A queue's name is shorter than a topic's, and so is that of its dead letters."""
    drive = Drive()
    name = "q" * 255
    queue = drive.declare(name)
    drive.publish_many(name, 1)
    (entry,) = drive.taken(drive.join(queue))
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.commit()

    assert [name] == [one["deathQueue"] for one in told(drive, dead_letters.queue_for(name))]
    assert dead_letters.queue_for(name) != dead_letters.topic_for(name)
