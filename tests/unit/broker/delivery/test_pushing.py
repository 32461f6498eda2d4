"""How messages get to consumers, and how they expire."""

from braidmq.broker.broker import DELIVERED, EMPTY, UNKNOWN
from braidmq.broker.delivery.subscriptions import Consumer
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

BACKOFF_US = 5 * S


def consumer_of(drive: Drive, subscription_id: int = 1) -> Consumer:
    return drive.attach(subscription_id)


def deliver_and_lose(drive: Drive, times: int, subscription_id: int = 1) -> list[int]:
    """Take one message and disconnect, again and again."""
    taken = []
    for _ in range(times):
        consumer = consumer_of(drive, subscription_id)
        taken.append(drive.poll_id(consumer))
        drive.disconnect(consumer)
    return taken


# In.


def test_messages_come_in_id_order_with_their_id_as_tag() -> None:
    """The delivery tag of effective QoS 1 is the message id."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    taken = [drive.poll(consumer) for _ in range(3)]

    assert ids == [delivery.correlation_id for delivery in taken if delivery]
    assert [1, 1, 1] == [delivery.qos for delivery in taken if delivery]
    assert [b"0", b"1", b"2"] == [d.message.payload for d in taken if d]


def test_effective_qos_is_the_lower_of_both() -> None:
    """Below 1 the correlation id is the POLL's, and nothing stays open."""
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
    """Inside a QoS 1 subscription too, where the durable ones stay; it is counted."""
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
    """The oldest make room; one always fits, however large."""
    drive = Drive(Settings(window_bytes=100))
    consumer = drive.subscribe("a", qos=0)
    for payload in (40 * b"1", 40 * b"2", 40 * b"3", 500 * b"4"):
        drive.publish("a", payload, qos=0)
    delivery = drive.poll(consumer)

    assert delivery is not None
    assert 500 * b"4" == delivery.message.payload
    assert 3 == drive.broker.stats.dropped.overflow


def test_memory_only_messages_are_bounded_over_all_subscriptions() -> None:
    """The whole broker's budget counts as well."""
    drive = Drive(Settings(memory_bytes=100))
    first, second = drive.subscribe("a", qos=0), drive.subscribe("b", qos=0)
    drive.publish("a", 80 * b"1", qos=0)
    drive.publish("b", 10 * b"2", qos=0)
    drive.publish("b", 30 * b"3", qos=0)

    assert drive.poll(first) is not None
    kept = drive.poll(second)
    assert kept is not None
    assert 10 * b"2" == kept.message.payload
    assert 1 == drive.broker.stats.dropped.overflow


def test_large_memory_only_messages_cannot_outgrow_the_budget() -> None:
    """Each subscription may have one large message by itself, but not all of them at once."""
    drive = Drive(Settings(memory_bytes=1000, window_bytes=600))
    for number in range(20):
        drive.subscribe(f"t{number}", qos=0)
    for size in (10, 500):
        for number in range(20):
            drive.publish(f"t{number}", size * b"x", qos=0)

    assert drive.broker.dispatch.windows.held_bytes <= 1000
    assert drive.broker.stats.dropped.overflow > 0


def test_memory_only_and_durable_messages_keep_their_order_of_arrival() -> None:
    """What arrived first is handed out first."""
    drive = Drive()
    consumer = drive.subscribe("a")
    for number, qos in enumerate((1, 0, 1, 0)):
        drive.publish("a", b"%d" % number, qos=qos)
        drive.commit()
    taken = [drive.poll(consumer) for _ in range(4)]

    assert [b"0", b"1", b"2", b"3"] == [d.message.payload for d in taken if d]


def test_a_full_window_in_bytes_leaves_the_rest_in_the_log() -> None:
    """One message always fits; with it the window of 100 bytes is full."""
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


def test_the_whole_brokers_memory_bounds_the_window() -> None:
    """A second subscription keeps a place in the log, and reads from there when asked."""
    drive = Drive(Settings(memory_bytes=100))
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
    assert drive.broker.dispatch.windows.held_bytes <= 100 + 53


def test_maintenance_fills_no_windows_that_nobody_reads() -> None:
    """A laggard without a consumer costs a cursor, however often the broker looks after it."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 10)
    drive.disconnect(consumer)
    drive.restart()  # the window is empty, and the whole backlog behind it
    for _ in range(3):
        drive.advance(2 * S)

    assert [] == drive.broker.take_reads(drive.now_us)
    assert 0 == drive.broker.dispatch.windows.held_bytes


# Out.


def test_at_most_a_window_is_in_flight() -> None:
    """At that bound a POLL is silent until one is settled."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 10)

    assert [*ids[:4], 0] == drive.poll_ids(consumer, 5)
    assert 4 == drive.broker.in_flight_count()
    drive.ack(consumer, ids[2])
    assert [ids[4], 0] == drive.poll_ids(consumer, 2)


def test_a_window_of_bytes_bounds_what_is_in_flight() -> None:
    """The one that passes the bound is the last until something is settled."""
    drive = Drive(Settings(window_bytes=20))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 8)  # of 4 bytes each

    assert [*ids[:5], 0] == drive.poll_ids(consumer, 6)
    drive.ack(consumer, ids[0])
    assert [ids[5], 0] == drive.poll_ids(consumer, 2)


def test_a_backlog_of_thousands_is_read_back_in_pieces() -> None:
    """Every message comes, once and in order, and a window of four is all that is held."""
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


def test_credit_is_pushed_as_messages_come() -> None:
    """Credits add up, and what is used is used."""
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
    """Each acknowledgement brings the next, read back from the log when need be."""
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


def test_a_memory_only_push_carries_the_latest_credits_correlation_id() -> None:
    """There is no POLL that it answers."""
    drive = Drive()
    consumer = drive.subscribe("a", qos=0)
    drive.broker.credit(consumer, 1, 11, drive.now_us)
    drive.broker.credit(consumer, 1, 12, drive.now_us)
    drive.publish("a", qos=0)

    assert [12] == [delivery.correlation_id for delivery in drive.pushed(consumer)]


def test_consumers_with_credit_take_turns() -> None:
    """Several connections on one subscription compete."""
    drive = Drive()
    first = drive.subscribe("a")
    second = consumer_of(drive)
    drive.credit(first, 10)
    drive.credit(second, 2)
    ids = drive.publish_many("a", 6)

    assert [ids[0], ids[2], ids[4], ids[5]] == drive.pushed_ids(first)
    assert [ids[1], ids[3]] == drive.pushed_ids(second)


def test_a_peer_without_room_is_not_pushed_to() -> None:
    """One frame always passes; the rest waits until there is room again."""
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


def test_peers_with_something_to_send_are_named_once() -> None:
    """However much it is."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.credit(consumer, 3)
    drive.publish_many("a", 3)

    assert [consumer.peer] == drive.broker.take_touched()
    assert [] == drive.broker.take_touched()
    drive.publish_many("b", 1)
    assert [] == drive.broker.take_touched()


# The end.


def test_an_expired_message_is_not_handed_out() -> None:
    """Durable or not, waiting or returned; it is counted and dropped."""
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

    assert [last, 0] == drive.poll_ids(consumer_of(drive), 2)
    assert 3 == drive.broker.stats.expired


def test_a_message_that_expires_while_it_is_out_ends_when_it_comes_back() -> None:
    """By its timer, or by the disconnect."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a", ttl_us=10)
    drive.publish("a", ttl_us=10)
    drive.commit()
    drive.poll(consumer)
    drive.advance(1 * S)
    other = consumer_of(drive)
    drive.advance(4 * S)

    assert 2 == drive.broker.stats.expired
    assert drive.poll(other) is None
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_waiting_messages_expire_without_anyone_asking() -> None:
    """Once a second the front of each window is looked at."""
    drive = Drive()
    subscription = drive.subscribe("a").subscription
    drive.publish("a", ttl_us=10 * MS)
    drive.publish("a", qos=0, ttl_us=10 * MS)
    drive.commit()
    drive.advance(2 * S)

    assert 0 == entries_of(subscription)
    assert (2, 0) == (drive.broker.stats.expired, drive.broker.dispatch.windows.held_bytes)


def test_an_expired_acknowledgement_makes_room_for_the_next() -> None:
    """It is too late, and the place in the window is free."""
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


def test_a_broker_that_is_about_to_end_hands_nothing_out() -> None:
    """What is out may still be acknowledged."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.poll(consumer)
    drive.broker.stop_delivering()

    assert EMPTY == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    assert DELIVERED == drive.ack(consumer, ids[0])


def test_too_many_topics_put_a_dead_letter_off() -> None:
    """The message stays open rather than lost when its dead letters may have no topic."""
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


def test_peers_of_other_subscriptions_keep_what_they_have() -> None:
    """A peer that leaves gives back what it held of each of its subscriptions."""
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
    """Each is pushed at once, and the next one to the next consumer."""
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
    """It is pushed when there is some."""
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
