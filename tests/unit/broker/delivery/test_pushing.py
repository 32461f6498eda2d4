"""Pushing messages to consumers, and their expiry."""

from braidmq.broker.broker import DELIVERED, EMPTY, UNKNOWN
from braidmq.broker.delivery.windows import ENTRY_BYTES
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import (
    CORRELATION_ID,
    MS,
    ROOM_BYTES,
    Drive,
    S,
    entries_of,
    peer_of,
)

# Into the window.


def test_messages_are_delivered_in_id_order_with_their_id_as_tag() -> None:
    """The delivery tag at effective QoS 1 is the message id."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    taken = [drive.poll(consumer) for _ in range(3)]

    assert ids == [delivery.correlation_id for delivery in taken if delivery]
    assert [1, 1, 1] == [delivery.qos for delivery in taken if delivery]
    assert [b"0", b"1", b"2"] == [d.message.payload for d in taken if d]


def test_the_effective_qos_is_the_lower_of_both() -> None:
    """At QoS 0 the correlation id is the POLL's, and no tag stays open."""
    for published, subscribed in [(0, 0), (0, 1), (1, 0)]:
        drive = Drive()
        consumer = drive.subscribe("a", qos=subscribed)
        drive.publish("a", qos=published)
        drive.commit()
        delivery = drive.poll(consumer)

        assert delivery is not None
        assert (0, CORRELATION_ID) == (delivery.qos, delivery.correlation_id)
        assert 0 == drive.broker.in_flight_count()
        assert UNKNOWN == drive.ack(consumer, delivery.message.id)
        assert 0 == drive.broker.dispatch.windows.held_bytes


def test_overflow_drops_the_oldest_memory_only_message() -> None:
    """Also in a QoS 1 subscription, where durable messages stay; each drop is counted."""
    drive = Drive(Settings(window=2))
    consumer = drive.subscribe("a")
    durable = drive.publish("a", b"durable")
    drive.commit()
    for number in range(5):
        drive.publish("a", b"%d" % number, qos=0)
    taken = [drive.poll(consumer) for _ in range(4)]

    assert [b"durable", b"3", b"4"] == [d.message.payload for d in taken if d]
    assert taken[3] is None
    assert 3 == drive.broker.stats.dropped.overflow
    assert DELIVERED == drive.ack(consumer, durable)
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_memory_only_messages_are_bounded_in_bytes() -> None:
    """The oldest make room; one message always fits, however large."""
    drive = Drive(Settings(window_bytes=100))
    consumer = drive.subscribe("a", qos=0)
    for payload in (40 * b"1", 40 * b"2", 40 * b"3", 500 * b"4"):
        drive.publish("a", payload, qos=0)
    delivery = drive.poll(consumer)

    assert delivery is not None
    assert 500 * b"4" == delivery.message.payload
    assert 3 == drive.broker.stats.dropped.overflow


def test_memory_only_messages_are_bounded_over_all_subscriptions() -> None:
    """The broker's memory budget applies as well."""
    drive = Drive(Settings(memory_bytes=100 + 2 * ENTRY_BYTES))
    first, second = drive.subscribe("a", qos=0), drive.subscribe("b", qos=0)
    drive.publish("a", 80 * b"1", qos=0)
    drive.publish("b", 10 * b"2", qos=0)
    drive.publish("b", 30 * b"3", qos=0)

    assert drive.poll(first) is not None
    kept = drive.poll(second)
    assert kept is not None
    assert 10 * b"2" == kept.message.payload
    assert 1 == drive.broker.stats.dropped.overflow


def test_large_memory_only_messages_cannot_exceed_the_budget() -> None:
    """One subscription may hold a large message, but not all of them at once."""
    drive = Drive(Settings(memory_bytes=1000, window_bytes=600))
    for number in range(20):
        drive.subscribe(f"t{number}", qos=0)
    for size in (10, 500):
        for number in range(20):
            drive.publish(f"t{number}", size * b"x", qos=0)

    assert drive.broker.dispatch.windows.held_bytes <= 1000
    assert drive.broker.stats.dropped.overflow > 0


def test_memory_only_and_durable_messages_keep_their_order_of_arrival() -> None:
    """The first to arrive is delivered first."""
    drive = Drive()
    consumer = drive.subscribe("a")
    for number, qos in enumerate((1, 0, 1, 0)):
        drive.publish("a", b"%d" % number, qos=qos)
        drive.commit()
    taken = [drive.poll(consumer) for _ in range(4)]

    assert [b"0", b"1", b"2", b"3"] == [d.message.payload for d in taken if d]


def test_a_full_window_in_bytes_leaves_the_rest_in_the_log() -> None:
    """One message always fits, and fills the window of 100 bytes."""
    drive = Drive(Settings(window_bytes=100))
    consumer = drive.subscribe("a")
    ids = [drive.publish("a", size * b"x") for size in (500, 60, 60, 20)]
    drive.commit()
    subscription = consumer.subscription

    assert (1, True) == (len(subscription.ready), subscription.position.behind)
    for message_id in ids:
        assert message_id == drive.poll_id(consumer)
        assert subscription.held_bytes <= 503
        drive.ack(consumer, message_id)
    assert 0 == drive.poll_id(consumer)
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_the_brokers_memory_budget_bounds_the_window() -> None:
    """A second subscription keeps a position in the log, and reads when polled."""
    drive = Drive(Settings(memory_bytes=100 + ENTRY_BYTES))
    first, second = drive.subscribe("a"), drive.subscribe("b")
    drive.publish("a", 90 * b"1")
    drive.publish("b", 50 * b"2")
    drive.publish("b", 50 * b"3")
    drive.commit()

    assert (1, False) == (len(first.subscription.ready), first.subscription.position.behind)
    assert (0, True) == (len(second.subscription.ready), second.subscription.position.behind)
    polled = drive.poll(second)
    assert polled is not None
    assert 50 * b"2" == polled.message.payload
    assert drive.broker.dispatch.windows.held_bytes <= 100 + 53 + 2 * ENTRY_BYTES


def test_maintenance_does_not_fill_the_windows_of_unread_subscriptions() -> None:
    """A lagging subscription without a consumer costs only a cursor."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 10)
    drive.disconnect(consumer)
    drive.restart()  # the window is empty, and the whole backlog is in the log
    for _ in range(3):
        drive.advance(2 * S)

    assert [] == drive.broker.take_reads(drive.now_us)
    assert 0 == drive.broker.dispatch.windows.held_bytes


# Out of the window.


def test_at_most_one_window_is_in_flight() -> None:
    """At that limit a POLL finds nothing until one is settled."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 10)

    assert [*ids[:4], 0] == drive.poll_ids(consumer, 5)
    assert 4 == drive.broker.in_flight_count()
    drive.ack(consumer, ids[2])
    assert [ids[4], 0] == drive.poll_ids(consumer, 2)


def test_the_byte_window_bounds_the_messages_in_flight() -> None:
    """The one that reaches the limit is the last until another is settled."""
    drive = Drive(Settings(window_bytes=20))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 8)  # of 4 bytes each

    assert [*ids[:5], 0] == drive.poll_ids(consumer, 6)
    drive.ack(consumer, ids[0])
    assert [ids[5], 0] == drive.poll_ids(consumer, 2)


def test_a_backlog_of_thousands_is_read_back_in_parts() -> None:
    """Every message comes once and in order, and memory holds no more than two windows."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    ids = []
    for _ in range(30):
        drive.publish_many("b", 7)
        ids += drive.publish_many("a", 100)
    for message_id in ids:
        assert message_id == drive.poll_id(consumer)
        assert entries_of(consumer.subscription) <= 2 * 4
        assert DELIVERED == drive.ack(consumer, message_id)

    assert 0 == drive.poll_id(consumer)
    assert 4 >= max(request.count_max for request in drive.log.reads)
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_messages_are_pushed_as_long_as_there_is_credit() -> None:
    """Credits add up, and each delivery uses one."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)

    assert ids[:1] == drive.credit(consumer, 1)
    assert [] == drive.credit(consumer, 0)
    assert ids[1:] == drive.credit(consumer, 3)
    more = drive.publish_many("a", 4)
    assert more[:2] == drive.pushed_ids(consumer)
    assert 0 == consumer.credit


def test_credit_pushes_a_backlog_through_the_window() -> None:
    """Each acknowledgement brings the next message, read from the log if necessary."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 50)
    waiting = drive.credit(consumer, 1_000)
    seen = []
    while waiting:
        seen.append(waiting.pop(0))
        drive.ack(consumer, seen[-1])
        drive.serve_reads()
        waiting += drive.pushed_ids(consumer)

    assert ids == seen


def test_a_memory_only_push_carries_the_correlation_id_of_the_latest_credit() -> None:
    """It answers no POLL."""
    drive = Drive()
    consumer = drive.subscribe("a", qos=0)
    drive.broker.credit(consumer, 1, 11, drive.now_us)
    drive.broker.credit(consumer, 1, 12, drive.now_us)
    drive.publish("a", qos=0)

    assert [12] == [delivery.correlation_id for delivery in drive.pushed(consumer)]


def test_consumers_with_credit_take_turns() -> None:
    """Several connections compete for one subscription."""
    drive = Drive()
    first = drive.subscribe("a")
    second = drive.attach(1)
    drive.credit(first, 10)
    drive.credit(second, 2)
    ids = drive.publish_many("a", 6)

    assert [ids[0], ids[2], ids[4], ids[5]] == drive.pushed_ids(first)
    assert [ids[1], ids[3]] == drive.pushed_ids(second)


def test_nothing_is_pushed_to_a_peer_without_room() -> None:
    """One message may exceed the room; the rest waits until there is room again."""
    drive = Drive()
    consumer = drive.subscribe("a")
    idle = drive.subscribe("b", peer=consumer.peer)
    consumer.peer.room_bytes = 1
    ids = drive.publish_many("a", 3)

    assert ids[:1] == drive.credit(consumer, 3)
    consumer.peer.room_bytes = ROOM_BYTES
    drive.broker.resume(consumer.peer, drive.now_us)
    assert ids[1:] == drive.pushed_ids(consumer)
    assert 0 == idle.credit


def test_a_peer_with_deliveries_is_touched_once() -> None:
    """However many there are."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.credit(consumer, 3)
    drive.publish_many("a", 3)

    assert [consumer.peer] == drive.broker.take_touched()
    assert [] == drive.broker.take_touched()
    drive.publish_many("b", 1)
    assert [] == drive.broker.take_touched()


# Expiry and shutdown.


def test_an_expired_message_is_not_delivered() -> None:
    """Durable or not, waiting or returned, it is dropped and counted."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a", ttl_us=10)
    drive.commit()
    drive.poll(consumer)
    drive.disconnect(consumer)
    drive.publish("a", qos=0, ttl_us=10)
    drive.publish("a", ttl_us=10)
    drive.commit()
    last = drive.publish("a", ttl_us=11)
    drive.commit()
    drive.now_us += 10

    assert [last, 0] == drive.poll_ids(drive.attach(1), 2)
    assert 3 == drive.broker.stats.expired


def test_a_message_that_expires_in_flight_ends_when_it_is_returned() -> None:
    """By its timer or by a disconnect."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a", ttl_us=10)
    drive.publish("a", ttl_us=10)
    drive.commit()
    drive.poll(consumer)
    drive.advance(1 * S)
    other = drive.attach(1)
    drive.advance(4 * S)

    assert 2 == drive.broker.stats.expired
    assert drive.poll(other) is None
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_waiting_messages_expire_by_themselves() -> None:
    """Once a second the broker checks the front of each window."""
    drive = Drive()
    subscription = drive.subscribe("a").subscription
    drive.publish("a", ttl_us=10 * MS)
    drive.publish("a", qos=0, ttl_us=10 * MS)
    drive.commit()
    drive.advance(2 * S)

    assert 0 == entries_of(subscription)
    assert (2, 0) == (drive.broker.stats.expired, drive.broker.dispatch.windows.held_bytes)


def test_a_late_acknowledgement_of_an_expired_message_makes_room() -> None:
    """The tag is unknown, but its place in the window is free."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    expiring = drive.publish("a", ttl_us=10)
    drive.commit()
    (following,) = drive.publish_many("a", 1)
    assert [expiring] == drive.credit(consumer, 5)
    drive.serve_reads()
    drive.now_us += 10

    assert UNKNOWN == drive.ack(consumer, expiring)
    assert [following] == drive.pushed_ids(consumer)


def test_a_stopping_broker_delivers_nothing() -> None:
    """Messages in flight may still be acknowledged."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.poll(consumer)
    drive.broker.stop_delivering()

    assert EMPTY == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    assert DELIVERED == drive.ack(consumer, ids[0])


def test_too_many_topics_delay_a_dead_letter() -> None:
    """If its dead-letter topic cannot be created, the message stays open and is not lost."""
    drive = Drive(Settings(max_retries=1))
    name = "n" * 60_000
    consumer = drive.subscribe(name)
    drive.publish_many(name, 1)
    drive.poll(consumer)
    while drive.broker.topics.get(str(len(drive.broker.topics)).rjust(60_000)) is not None:
        pass
    drive.disconnect(consumer)

    assert 1 == len(consumer.subscription.in_flight)
    assert 0 == drive.broker.stats.dead_lettered


def test_a_disconnect_returns_the_messages_of_all_subscriptions() -> None:
    """The peer held messages of two subscriptions."""
    drive = Drive()
    first = drive.subscribe("a")
    second = drive.subscribe("b", peer=first.peer)
    ids = drive.publish_many("a", 1) + drive.publish_many("b", 1)
    assert ids == [drive.poll_id(first), drive.poll_id(second)]
    drive.disconnect(first)
    again = peer_of("ada")

    assert 0 == drive.broker.in_flight_count()
    assert ids == [
        drive.poll_id(drive.attach(consumer.subscription.id, peer=again))
        for consumer in (first, second)
    ]


def test_memory_only_messages_go_to_waiting_consumers_in_turn() -> None:
    """Each is pushed at once, to the next consumer."""
    drive = Drive()
    ada = drive.subscribe("a", qos=0)
    again = drive.attach(ada.subscription.id)
    for consumer in (ada, again):
        drive.credit(consumer, 5)
    for number in range(4):
        drive.publish("a", b"%d" % number, qos=0)

    assert [[b"0", b"2"], [b"1", b"3"]] == [
        [delivery.message.payload for delivery in drive.pushed(consumer)]
        for consumer in (ada, again)
    ]


def test_a_memory_only_message_waits_for_a_consumer_that_has_no_room() -> None:
    """It is pushed once there is room."""
    drive = Drive()
    consumer = drive.subscribe("a", qos=0)
    drive.credit(consumer, 5)
    consumer.peer.room_bytes = 0
    drive.publish("a", b"later", qos=0)
    before = drive.pushed(consumer)
    consumer.peer.room_bytes = ROOM_BYTES
    drive.broker.resume(consumer.peer, drive.now_us)

    assert [] == before
    assert [b"later"] == [delivery.message.payload for delivery in drive.pushed(consumer)]
