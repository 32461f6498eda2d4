"""How deliveries of a queue end: redelivery, expiry, dead letters, and a full log."""

import pytest

from braidmq.broker import dead_letters
from braidmq.broker.delivery.channels import Entry
from braidmq.broker.delivery.queue import Queue, QueueConsumer
from braidmq.broker.outgoing import PROGRESS_DELAY_US
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers
from tests.unit.broker.drive import Drive, S, policy_of

ACK_TIMEOUT_US = 32 * S


def declared(drive: Drive, **given: int | bool | str) -> Queue:
    return drive.declare("q", policy_of(**given))


def deliver_some(
    drive: Drive, queue: Queue, count: int = 1
) -> tuple[QueueConsumer, list[Entry]]:
    drive.publish_many("q", count)
    consumer = drive.join(queue)
    return consumer, drive.taken(consumer)


def death_headers(drive: Drive, topic: str = "dlq.q") -> list[dict[str, str]]:
    return [decode_headers(letter.headers) for letter in drive.dead_letters(topic)]


def test_progress_is_recorded_a_delay_after_the_first_change() -> None:
    """Not after the last: under constant load it would never be recorded."""
    drive = Drive()
    queue = declared(drive)
    _, (first, second) = deliver_some(drive, queue, 2)
    drive.commit()
    drive.broker.queues.acknowledge(first, drive.now_us)
    drive.broker.queues.acknowledge(second, drive.now_us + PROGRESS_DELAY_US - 1)

    assert drive.now_us + PROGRESS_DELAY_US == drive.broker.next_deadline_us()


def test_a_message_is_dead_lettered_after_its_last_delivery() -> None:
    """The letter keeps the id that consumers know, and counts the attempts."""
    drive = Drive()
    queue = declared(drive)
    consumer, _ = deliver_some(drive, queue)
    for _ in range(3):
        drive.advance(2 * ACK_TIMEOUT_US)
    drive.commit()

    assert [
        {"": "2", "deathReason": "maxRetries", "deathQueue": "q", "deathAttempts": "3"}
    ] == death_headers(drive)
    assert (0, 0, 0) == (queue.waiting(), queue.in_flight_count(), consumer.held)


def test_one_record_stores_the_letter_and_settles_its_message() -> None:
    """Whatever a crash leaves, the message is in exactly one of the two queues."""
    drive = Drive()
    queue = declared(drive, max_attempts=1)
    consumer, _ = deliver_some(drive, queue)
    drive.disconnect(consumer)
    drive.restart()
    before = drive.queue("q").waiting(), "dlq.q" in drive.broker.queues.by_name
    drive.advance(0)
    drive.leave(drive.join(drive.queue("q")), counted=True)
    drive.commit()
    drive.restart()

    assert (1, False) == before
    assert (0, 1) == (drive.queue("q").waiting(), drive.queue("dlq.q").waiting())


def test_without_dead_letters_messages_are_dropped_and_counted_by_reason() -> None:
    """They stay dropped after a restart."""
    drive = Drive()
    queue = declared(drive, dead_letters=False, max_attempts=1, ttl_us=50 * S)
    _, (entry,) = deliver_some(drive, queue)
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


# Expiry.


@pytest.mark.parametrize("consumed", [False, True])
def test_an_expired_message_becomes_a_dead_letter(*, consumed: bool) -> None:
    """With or without a consumer, in memory or in the log."""
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
    assert ["expired"] * (5 - in_flight) == [one["deathReason"] for one in death_headers(drive)]
    assert 5 - in_flight == drive.broker.stats.expired


def test_a_returned_message_expires_too() -> None:
    """Even without a consumer."""
    drive = Drive()
    queue = declared(drive, ttl_us=5 * S)
    consumer, _ = deliver_some(drive, queue)
    drive.leave(consumer)
    drive.advance(7 * S)
    drive.commit()

    assert (0, 1) == (queue.waiting(), drive.queue("dlq.q").waiting())


def test_a_held_message_expires_when_it_is_returned() -> None:
    """Not earlier: the consumer may still acknowledge it."""
    drive = Drive()
    queue = declared(drive, ttl_us=5 * S)
    consumer, (entry,) = deliver_some(drive, queue)
    drive.advance(7 * S)
    held = queue.in_flight_count()
    drive.leave(consumer)
    drive.commit()

    assert (1, ["expired"]) == (held, [one["deathReason"] for one in death_headers(drive)])
    assert entry.message.body == b""


def test_memory_only_messages_expire_without_a_dead_letter() -> None:
    """They are only counted."""
    drive = Drive()
    queue = declared(drive, durable=False, ttl_us=5 * S)
    drive.publish("q")
    drive.advance(7 * S)

    assert (0, 1) == (queue.waiting(), drive.broker.stats.expired)
    assert 0 == drive.broker.dispatch.windows.held_bytes


# A full log.


def test_a_refused_dead_letter_is_retried() -> None:
    """Meanwhile its message waits, and is not delivered again."""
    drive = Drive()
    queue = declared(drive, max_attempts=1)
    consumer, _ = deliver_some(drive, queue)
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


def test_a_message_rejected_while_the_log_is_full_is_redelivered() -> None:
    """It is delivered again after a delay, and not lost."""
    drive = Drive()
    queue = declared(drive)
    _, (entry,) = deliver_some(drive, queue)
    drive.publish("q")
    drive.refuse()
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    waiting = queue.waiting()
    consumer = drive.join(queue)
    drive.advance(drive.settings.retry_backoff_us)

    assert 1 == waiting
    assert 1 == queue.in_flight_count() + len(drive.pushed(consumer)) - consumer.held


def test_a_rejected_message_whose_letter_is_refused_is_redelivered_at_once() -> None:
    """Nothing else would wake a consumer."""
    drive = Drive()
    queue = declared(drive)
    consumer, (entry,) = deliver_some(drive, queue)
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.refuse()

    assert [entry.id] == drive.pushed_ids(consumer)


def test_an_expired_message_is_counted_once() -> None:
    """However often the log refuses its dead letter."""
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


def test_dead_letter_names_of_topics_and_queues_differ() -> None:
    """A queue's name must be shorter than a topic's, and so must its dead-letter queue's."""
    drive = Drive()
    name = "q" * 255
    queue = drive.declare(name)
    drive.publish_many(name, 1)
    (entry,) = drive.taken(drive.join(queue))
    drive.broker.queues.reject(entry, dead_letters.REJECTED, drive.now_us)
    drive.commit()

    assert [name] == [
        one["deathQueue"] for one in death_headers(drive, dead_letters.queue_for(name))
    ]
    assert dead_letters.queue_for(name) != dead_letters.topic_for(name)
