"""Redelivery, the last allowed delivery, and dead letters."""

from braidmq.broker.broker import DELIVERED, UNKNOWN
from braidmq.broker.delivery.subscriptions import Consumer
from braidmq.broker.settings import Settings
from braidmq.broker.topics import decode_headers, encode_headers
from tests.unit.broker.drive import (
    FULL,
    Drive,
    S,
    body_of,
)

BACKOFF_US = 5 * S


def consumer_of(drive: Drive, subscription_id: int = 1) -> Consumer:
    return drive.attach(subscription_id)


def deliver_and_lose(drive: Drive, times: int, subscription_id: int = 1) -> list[int]:
    """Take one message and disconnect, several times."""
    taken = []
    for _ in range(times):
        consumer = consumer_of(drive, subscription_id)
        taken.append(drive.poll_id(consumer))
        drive.disconnect(consumer)
    return taken


# Redelivery.


def test_an_unacknowledged_message_is_redelivered_when_its_timer_ends() -> None:
    """With the same tag, ahead of newer ones; the delay doubles each time."""
    drive = Drive()
    consumer = drive.subscribe("a")
    first, second = drive.publish_many("a", 2)
    for delay_us in (5 * S, 10 * S, 20 * S):
        assert first == drive.poll_id(consumer)
        drive.advance(delay_us - 1)
        assert [] == [e.id for e in consumer.subscription.in_flight.all() if not e.due_us]
        drive.advance(1)

    assert first == drive.poll_id(consumer)
    assert second == drive.poll_id(consumer)
    assert 3 == drive.broker.stats.redelivered


def test_an_acknowledgement_after_the_timeout_is_honoured() -> None:
    """The tag stays open until the message is settled; a second ACK is unknown."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.poll_ids(consumer, 2)
    drive.advance(BACKOFF_US)

    assert DELIVERED == drive.ack(consumer, ids[0])
    assert UNKNOWN == drive.ack(consumer, ids[0])
    assert [ids[1], 0] == drive.poll_ids(consumer, 2)


def test_an_undelivered_message_has_no_open_tag() -> None:
    """Neither has a message of another topic or an id that does not exist."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1) + drive.publish_many("b", 1)

    assert 3 * [UNKNOWN] == [drive.ack(consumer, tag) for tag in (*ids, 999)]


def test_a_lost_consumers_messages_are_redelivered_at_once() -> None:
    """To the other consumers, oldest first, with their attempts counted."""
    drive = Drive()
    first = drive.subscribe("a")
    second = consumer_of(drive)
    ids = drive.publish_many("a", 3)
    drive.poll_ids(first, 2)
    assert ids[2:] == drive.credit(second, 9)
    drive.disconnect(first)

    assert ids[:2] == drive.pushed_ids(second)
    assert [2, 2, 1] == sorted(
        (entry.attempts for entry in second.subscription.in_flight.all()), reverse=True
    )


def test_no_newer_message_is_pushed_ahead_of_returned_ones() -> None:
    """One is dead-lettered and makes room in the window; the other is redelivered into it."""
    settings = Settings(window=2, max_retries=2, retry_backoff_max_us=BACKOFF_US)
    drive = Drive(settings)
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 4)
    deliver_and_lose(drive, 1)
    assert ids[:1] == drive.credit(consumer, 1)
    other = consumer_of(drive)
    assert ids[1:2] == drive.credit(other, 9)
    drive.serve_reads()
    drive.advance(BACKOFF_US)

    assert [ids[1]] == drive.pushed_ids(other)
    drive.commit()
    assert ids[:1] == [letter.settles_id for letter in drive.dead_letters("dlq.a")]


# The last allowed delivery.


def test_the_last_allowed_delivery_goes_alone() -> None:
    """Its consumer holds nothing else, and gets nothing else until it is settled."""
    drive = Drive(Settings(max_retries=2))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 4)
    deliver_and_lose(drive, 1)
    other = consumer_of(drive)

    assert ids[0] == drive.poll_id(consumer)
    assert 0 == drive.poll_id(consumer)
    assert ids[1:3] == drive.poll_ids(other, 2)
    drive.ack(consumer, ids[0])
    assert ids[3] == drive.poll_id(consumer)


def test_a_busy_consumer_is_not_starved_by_a_last_chance() -> None:
    """It gets no new message while the last chance waits, so it becomes idle and takes it."""
    drive = Drive(Settings(max_retries=2))
    consumer = drive.subscribe("a")
    first, *rest = drive.publish_many("a", 5)
    other = consumer_of(drive)
    assert first == drive.poll_id(other)
    assert rest[:2] == drive.credit(consumer, 2)
    drive.disconnect(other)

    assert [] == drive.credit(consumer, 9)
    drive.ack(consumer, rest[0])
    assert [] == drive.pushed_ids(consumer)
    drive.ack(consumer, rest[1])
    assert [first] == drive.pushed_ids(consumer)
    drive.ack(consumer, first)
    assert rest[2:] == drive.pushed_ids(consumer)


def test_a_waiting_last_chance_does_not_hold_memory_only_messages_back() -> None:
    """A crash of their consumer cannot cost them an attempt."""
    drive = Drive(Settings(max_retries=2))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 2)
    deliver_and_lose(drive, 1)
    drive.poll(consumer)
    drive.publish("a", b"quick", qos=0)
    delivery = drive.poll(consumer)

    assert delivery is not None
    assert b"quick" == delivery.message.payload


def test_ninety_nine_harmless_messages_survive_a_poison_message() -> None:
    """Consumers crash with everything they hold, but only the poison is dead-lettered."""
    drive = Drive(Settings(max_retries=3))
    drive.subscribe("a")
    ids = drive.publish_many("a", 100)
    poison = ids[40]
    done: set[int] = set()
    for _ in range(2_000):
        consumer = consumer_of(drive)
        taken = drive.credit(consumer, 100)
        if poison not in taken:
            for message_id in taken:
                drive.ack(consumer, message_id)
                done.add(message_id)
                taken += drive.pushed_ids(consumer)
                if poison in taken:
                    break
        drive.disconnect(consumer)
        drive.commit()
        if len(done) == 99:
            break

    assert set(ids) - {poison} == done
    assert [poison] == [letter.settles_id for letter in drive.dead_letters("dlq.a")]
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_an_expired_last_chance_holds_nothing_back() -> None:
    """A busy consumer gets the next message."""
    drive = Drive(Settings(max_retries=2))
    consumer = drive.subscribe("a")
    drive.publish("a", ttl_us=100)
    second, third = drive.publish_many("a", 2)
    other = consumer_of(drive)
    drive.poll(other)
    assert second == drive.poll_id(consumer)
    drive.disconnect(other)

    assert 0 == drive.poll_id(consumer)
    drive.now_us += 100
    assert third == drive.poll_id(consumer)
    assert 1 == drive.broker.stats.expired


# Dead letters.


def test_a_message_is_dead_lettered_after_exactly_max_retries_deliveries() -> None:
    """On `dlq.<topic>`, with the payload, the reason, the topic and the attempts."""
    drive = Drive(Settings(max_retries=3))
    dead_letter_consumer = drive.subscribe("dlq.a", name="bob")
    drive.subscribe("a")
    message = drive.message("a", b"poison")
    message.headers = encode_headers({"trace": "7"})
    message.priority, message.origin = 3, 2
    poison = drive.broker.publish(message, drive.now_us)
    drive.commit()

    assert [poison, poison, poison, 0] == deliver_and_lose(drive, 4, 2)
    drive.commit()
    delivery = drive.poll(dead_letter_consumer)
    assert delivery is not None
    assert body_of("dlq.a", b"poison") == delivery.message.body
    assert (3, 2) == (delivery.message.priority, delivery.message.origin)
    assert {
        "trace": "7",
        "deathReason": "maxRetries",
        "deathQueue": "a",
        "deathAttempts": "3",
    } == decode_headers(delivery.message.headers)
    assert drive.poll(dead_letter_consumer) is None
    assert 1 == drive.broker.stats.dead_lettered


def test_a_timeout_dead_letters_as_a_disconnect_does() -> None:
    """No consumer needs to leave."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.advance(BACKOFF_US)
    drive.commit()

    assert ids == [letter.settles_id for letter in drive.dead_letters("dlq.a")]
    assert UNKNOWN == drive.ack(consumer, ids[0])
    assert 0 == drive.broker.in_flight_count()


def test_dead_letters_are_never_dead_lettered_again() -> None:
    """They have no attempt limit, and none needs to be delivered alone."""
    drive = Drive(Settings(max_retries=2))
    drive.subscribe("dlq.a")
    ids = drive.publish_many("dlq.a", 3)

    assert ids[:1] == deliver_and_lose(drive, 1)
    consumer = consumer_of(drive)
    assert ids == drive.poll_ids(consumer, 3)
    drive.disconnect(consumer)
    assert 7 * ids[:1] == deliver_and_lose(drive, 7)
    assert 0 == drive.broker.stats.dead_lettered


def test_a_refused_dead_letter_is_retried_later() -> None:
    """Meanwhile its message is not delivered and its tag stays open; nothing is duplicated."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.poll_ids(consumer, 2)
    drive.disconnect(consumer)
    drive.refuse()
    consumer = consumer_of(drive)

    assert FULL == drive.broker.refusal
    assert (0, 2) == (drive.broker.stats.dead_lettered, len(consumer.subscription.in_flight))
    drive.advance(3 * BACKOFF_US)
    assert 0 == drive.poll_id(consumer)
    assert DELIVERED == drive.ack(consumer, ids[0])
    drive.broker.accept_again()
    drive.advance(BACKOFF_US)
    drive.commit()
    assert [ids[1]] == [letter.settles_id for letter in drive.dead_letters("dlq.a")]
    assert 0 == drive.broker.dispatch.windows.held_bytes
    drive.restart()
    assert 0 == drive.poll_id(consumer_of(drive))


def test_messages_waiting_to_be_dead_lettered_keep_their_place() -> None:
    """While the log is full, a backlog of poison messages cannot fill the memory."""
    drive = Drive(Settings(max_retries=1, window=4))
    drive.subscribe("a")
    ids = drive.publish_many("a", 40)
    drive.refuse()
    taken = deliver_and_lose(drive, 20)

    assert ids[:4] + 16 * [0] == taken
    assert 4 == len(drive.subscription(1).in_flight)
    drive.broker.accept_again()
    drive.advance(BACKOFF_US)
    drive.commit()
    assert ids[4] == drive.poll_id(consumer_of(drive))


def test_a_refused_dead_letter_of_an_ended_subscription_leaves_nothing() -> None:
    """Neither held bytes nor a letter."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.disconnect(consumer)
    drive.broker.unsubscribe(consumer_of(drive))
    drive.refuse()
    drive.commit()

    assert 0 == drive.broker.dispatch.windows.held_bytes
    assert 0 == drive.broker.stats.dead_lettered
    assert [] == drive.dead_letters("dlq.a")
