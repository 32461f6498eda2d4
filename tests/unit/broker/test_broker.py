"""The broker's verbs: what they answer, and what they leave for the log."""

from braidmq.broker import records
from braidmq.broker.broker import DELIVERED, EMPTY, MAINTENANCE_US, UNKNOWN, WAIT
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.outgoing import PROGRESS_DELAY_US
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, decode_headers, encode_headers
from tests.unit.broker.drive import CORRELATION_ID, FULL, Drive, S, peer_of

BACKOFF_US = 5 * S


def kinds(log: list[bytes]) -> list[int]:
    return [record[0] for record in log]


# Publishing.


def test_a_durable_message_is_routed_once_it_is_committed() -> None:
    """Nobody sees it before."""
    drive = Drive()
    consumer = drive.subscribe("a")
    given = drive.publish("a")
    drive.append()

    assert drive.poll(consumer) is None
    assert (1, 0) == (drive.broker.committed_id, drive.broker.stats.published)
    drive.commit()
    assert given == drive.poll_id(consumer)


def test_a_memory_only_message_has_no_id_and_no_record() -> None:
    """It goes out at once, and may overtake durable ones on their way to the log."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a", b"slow")

    assert 0 == drive.publish("a", b"quick", qos=0)
    delivery = drive.poll(consumer)
    assert delivery is not None
    assert b"quick" == delivery.message.payload
    assert [records.MESSAGE] == kinds([r for r in drive.append() if r[0] == records.MESSAGE])


def test_the_time_to_live_of_the_configuration_is_given_to_who_has_none() -> None:
    """A message's own is kept."""
    drive = Drive(Settings(message_ttl_us=50))
    drive.publish("a")
    drive.publish("a", ttl_us=7)
    expiries = [records.StoredMessage(record).expires_us for record in drive.append()]

    assert [drive.now_us + 50, drive.now_us + 7] == expiries


def test_headers_are_part_of_the_record() -> None:
    """And come back from the log with the message."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    drive.publish("a")
    message = drive.message("a")
    message.headers = encode_headers({"k": "v"})
    message.priority, message.origin = 3, 2
    message.expires_us = drive.now_us + 60 * S
    drive.broker.publish(message, drive.now_us)
    drive.commit()
    drive.ack(consumer, drive.poll_id(consumer))
    delivery = drive.poll(consumer)

    assert delivery is not None
    read = delivery.message
    assert read is not message
    assert {"k": "v"} == decode_headers(read.headers)
    assert (3, 2, message.expires_us) == (read.priority, read.origin, read.expires_us)
    assert drive.now_us == read.timestamp_us


def test_message_bytes_on_their_way_to_the_log_are_counted() -> None:
    """Up when accepted, down when committed or refused."""
    drive = Drive()
    size = len(drive.message("a").body)
    drive.publish("a")
    drive.publish("a")

    assert 2 * size == drive.broker.outgoing.bytes
    drive.commit()
    assert 0 == drive.broker.outgoing.bytes
    drive.publish("a")
    drive.refuse()
    assert 0 == drive.broker.outgoing.bytes


def test_bytes_of_dead_letters_are_counted_as_well() -> None:
    """They are on their way like any message, also when they are refused."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.disconnect(consumer)

    assert len(drive.message("dlq.a").body) == drive.broker.outgoing.bytes
    drive.refuse()
    assert 0 == drive.broker.outgoing.bytes
    drive.broker.accept_again()
    drive.advance(BACKOFF_US)
    drive.commit()
    assert 0 == drive.broker.outgoing.bytes


def test_a_repeat_is_not_stored_again() -> None:
    """It is answered with the id that the message has; the header keeps the publisher's."""
    drive = Drive()
    message = drive.message("a")
    message.headers = encode_headers({"k": "v"})
    given = drive.publish_once(message, "one")
    again = drive.publish_once(drive.message("a"), "one")
    other = drive.publish_once(drive.message("a"), "two")
    first = records.StoredMessage(drive.append()[0])

    assert (given, given, given + 1) == (given, again, other)
    assert {"k": "v", "dedupId": "one"} == decode_headers(first.headers)
    assert 1 == drive.broker.stats.duplicates


def test_a_refused_publish_is_not_remembered() -> None:
    """Its repeat is accepted; a message with other headers, or none, is no matter."""
    drive = Drive()
    drive.publish_once(drive.message("a"), "one")
    plain = drive.message("a")
    plain.headers = encode_headers({"k": "v"})
    drive.broker.publish(plain, drive.now_us)
    drive.publish("a")
    drive.refuse()
    drive.broker.accept_again()
    drive.publish_once(drive.message("a"), "one")

    assert 0 == drive.broker.stats.duplicates
    assert 1 == len(drive.append())


def test_dedup_ids_are_forgotten_after_their_window() -> None:
    """By time alone."""
    drive = Drive(Settings(dedup_window_us=2 * S))
    drive.publish_once(drive.message("a"), "one")
    drive.advance(4 * S)

    assert 0 == len(drive.broker.dedup)


# Subscribing.


def test_a_subscription_begins_with_the_messages_above_its_record() -> None:
    """Whatever batch they are committed in."""
    drive = Drive()
    drive.publish("a")
    given = drive.broker.subscribe(peer_of("ada"), drive.topic("a"), 1, drive.now_us)
    following = drive.publish("a")

    assert drive.broker.subscriptions.attach(peer_of("ada"), given) is None
    drive.commit()
    assert [following, 0] == drive.poll_ids(drive.attach(given), 2)


def test_a_subscription_is_its_principals() -> None:
    """Nobody else, and nobody who has not said who they are, may have a hold on it."""
    drive = Drive()
    drive.subscribe("a", name="ada")

    assert drive.broker.subscriptions.attach(peer_of("bob"), 1) is None
    assert drive.broker.subscriptions.attach(Peer(), 1) is None
    assert drive.broker.subscriptions.attach(peer_of("ada"), 2) is None
    assert drive.broker.subscriptions.attach(peer_of("ada"), 1) is not None


def test_unsubscribing_ends_it_for_everyone() -> None:
    """Messages, tags, credit and waiting polls are gone; the record is the proof."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    other = drive.attach(1)
    drive.publish_many("a", 3)
    drive.publish("a", qos=0)
    drive.poll(consumer)
    drive.credit(other, 5)
    drive.ack(consumer, 2)
    assert WAIT == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.broker.take_touched()
    given = drive.broker.unsubscribe(other)
    drive.serve_reads()

    assert [consumer.peer] == drive.broker.take_touched()
    assert consumer.subscription.ended
    assert (0, 0) == (other.credit, drive.broker.dispatch.windows.held_bytes)
    drive.commit()
    assert records.UNSUBSCRIBE == drive.log.records[given - 1][0]
    assert {} == drive.broker.subscriptions.by_id
    drive.publish_many("a", 1)
    drive.disconnect(consumer)
    assert 0 == drive.broker.in_flight_count()


def test_a_subscription_that_ends_while_it_is_read_for_takes_nothing_in() -> None:
    """The answer of the log comes too late."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 3)
    drive.poll(consumer)
    drive.ack(consumer, 2)
    drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.requests = drive.broker.take_reads(drive.now_us)
    drive.broker.unsubscribe(consumer)
    drive.serve_reads()

    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_voided_credit_can_be_given_anew() -> None:
    """And the consumer is in the round once."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.credit(consumer, 5)
    drive.broker.stop_pushing(consumer.peer)
    ids = drive.publish_many("a", 2)

    assert [] == drive.pushed_ids(consumer)
    assert ids[:1] == drive.credit(consumer, 1)
    assert 1 == len(consumer.subscription.consumers)


# Polling.


def test_an_empty_subscription_says_so() -> None:
    """At once: the POLL is forgotten."""
    drive = Drive()
    consumer = drive.subscribe("a")

    assert EMPTY == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.publish_many("a", 1)
    assert [] == drive.pushed(consumer)


def test_a_poll_waits_for_the_log_when_that_holds_more() -> None:
    """So that POLL then PING is a true "is it empty?"."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.ack(consumer, drive.poll_id(consumer))
    drive.broker.take_touched()

    assert WAIT == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    assert [] == drive.broker.take_touched()
    drive.serve_reads()
    assert [consumer.peer] == drive.broker.take_touched()
    assert DELIVERED == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    assert ids[1:] == drive.pushed_ids(consumer)


def test_a_peer_that_left_is_not_waited_for() -> None:
    """Its place among those who wait for the log is given up."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 2)
    drive.ack(consumer, drive.poll_id(consumer))
    drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.broker.take_touched()
    drive.disconnect(consumer)
    drive.serve_reads()

    assert [] == drive.broker.take_touched()


def test_reading_on_does_not_push_with_a_clock_that_stands_at_zero() -> None:
    """What is pushed after a read has its timer in the future."""
    drive = Drive(Settings(window=4))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 3)
    drive.ack(consumer, ids[1])
    drive.ack(consumer, ids[2])
    drive.commit()
    drive.restart()
    consumer = drive.attach(1)
    other = drive.attach(1)
    other.peer.room_bytes = 0
    drive.credit(other, 5)  # reads: the first is open
    drive.serve_reads()
    assert ids[0] == drive.poll_id(consumer)
    drive.disconnect(consumer)
    other.peer.room_bytes = 1
    drive.credit(other, 0)
    drive.broker.dispatch.effects.read_ahead(other.subscription)
    drive.serve_reads()

    assert all(
        entry.due_us == 0 or entry.due_us > drive.now_us
        for entry in other.subscription.in_flight.all()
    )


def test_nothing_of_another_topic_is_read() -> None:
    """A tag between two messages may be of another topic; reading tells."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    first = drive.publish("a")
    drive.commit()
    (between,) = drive.publish_many("b", 1)
    drive.poll(consumer)
    drive.commit_batch()
    drive.restart()

    assert UNKNOWN == drive.ack(drive.attach(1), between)
    assert first == drive.poll_id(drive.attach(1))


# The log.


def test_an_acknowledgement_becomes_a_record_when_a_fence_asks_for_it() -> None:
    """A mere hand-out does not; the fence covers everything that was accepted."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)

    assert not drive.broker.wants_commit()
    assert drive.broker.committed_id == drive.broker.barrier()
    drive.ack(consumer, ids[0])
    assert not drive.broker.wants_commit()
    fence = drive.broker.barrier()
    assert drive.broker.wants_commit()
    drive.commit()
    assert fence == drive.broker.committed_id
    assert [(1, ids[0])] == records.read_progress(drive.log.records[fence - 1])[1].ranges


def test_a_hand_out_is_recorded_after_a_while() -> None:
    """The deadline says when, and the record has no more to say twice."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.advance(2 * S)
    drive.poll(consumer)

    assert drive.now_us + PROGRESS_DELAY_US == drive.broker.next_deadline_us()
    drive.advance(PROGRESS_DELAY_US)
    (record,) = drive.append()
    assert ids[0] == records.read_progress(record)[1].handed_id
    drive.commit()
    drive.advance(1 * S)
    assert [] == drive.append()


def test_the_next_deadline_is_the_soonest_of_all() -> None:
    """Maintenance, a retry timer, or progress to be recorded."""
    drive = Drive(Settings(retry_backoff_us=300_000, retry_backoff_max_us=300_000))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 1)
    drive.advance(2 * S)
    maintenance_us = drive.broker.next_deadline_us()

    assert drive.now_us < maintenance_us <= drive.now_us + MAINTENANCE_US
    drive.poll(consumer)
    drive.commit_batch()
    assert drive.now_us + 300_000 == drive.broker.next_deadline_us()


def test_an_acknowledgement_of_an_ended_subscription_is_no_record() -> None:
    """There is nothing left to say about it."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.ack(consumer, ids[0])
    drive.broker.unsubscribe(consumer)

    assert drive.broker.wants_commit()
    assert [records.UNSUBSCRIBE] == kinds(drive.append())
    drive.commit()
    assert not drive.broker.wants_commit()


def test_what_the_log_refuses_is_taken_back() -> None:
    """Publishes and subscriptions are returned to whoever answers them; their ids are free."""
    drive = Drive()
    kept = drive.publish("a")
    drive.commit()
    drive.publish("a")
    drive.append()
    drive.broker.subscribe(peer_of("ada"), drive.topic("a"), 1, drive.now_us)
    drive.publish("a")
    refused = drive.refuse()

    assert [2, 3, 4] == [item.id for item in refused]
    assert [True, False, True] == [isinstance(item, Message) for item in refused]
    assert (FULL, 2) == (drive.broker.refusal, drive.broker.stats.refused)
    drive.broker.accept_again()
    assert ("", kept + 1) == (drive.broker.refusal, drive.publish("a"))
    drive.commit()
    assert {} == drive.broker.subscriptions.by_id


def test_refused_progress_is_merged_and_written_again() -> None:
    """In the order in which it was made: the latest number of attempts counts."""
    drive = Drive(Settings(max_retries=9))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 3)
    drive.ack(consumer, ids[0])
    drive.append()
    for attempts in (2, 3):
        drive.disconnect(consumer)
        consumer = drive.attach(1)
        assert ids[1] == drive.poll_id(consumer)
        entry = consumer.subscription.in_flight.open.get(ids[1])
        assert entry is not None
        assert attempts == entry.attempts
        drive.tick()
        drive.advance(PROGRESS_DELAY_US)  # a record of its own each time
    drive.poll(consumer)
    drive.ack(consumer, ids[2])
    drive.refuse()
    drive.commit()
    made = records.read_progress(drive.log.records[-1])[1]

    assert (ids[2], {ids[1]: 3}) == (made.handed_id, made.attempts)
    assert [(1, ids[0]), (ids[1], ids[2])] == sorted(made.ranges)
    drive.restart()
    consumer = drive.attach(1)
    assert [ids[1], 0] == drive.poll_ids(consumer, 2)
    entry = consumer.subscription.in_flight.open.get(ids[1])
    assert entry is not None
    assert 4 == entry.attempts


def test_refused_progress_of_an_ended_subscription_is_dropped() -> None:
    """Only its end is written again."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.ack(consumer, ids[0])
    drive.broker.barrier()
    drive.broker.unsubscribe(consumer)
    drive.refuse()

    assert [records.UNSUBSCRIBE] == kinds(drive.append())


def test_a_subscription_can_end_while_the_log_is_full() -> None:
    """Its end is queued anew with a new id: it may use the log's reserve."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a")
    drive.refuse()
    given = drive.broker.unsubscribe(consumer)
    drive.publish_many("a", 0)

    assert {} == drive.broker.subscriptions.by_id
    drive.broker.unsubscribe(drive.subscribe("b"))
    drive.refuse()
    drive.commit()
    drive.restart()
    assert given < drive.broker.outgoing.next_id
    assert {} == drive.broker.subscriptions.by_id


# What an operator sees.


def test_only_committed_messages_count_as_their_topics() -> None:
    """Those that lived in memory only are not among them."""
    drive = Drive()
    drive.subscribe("b")
    drive.publish_many("c", 2)
    drive.publish("a", qos=0)

    assert [("b", 0, 0), ("c", 2, 3), ("a", 0, 0)] == [
        (topic.name, topic.message_count, topic.last_id) for topic in drive.broker.topics.all()
    ]


def test_the_log_is_needed_from_the_oldest_unsettled_message_on() -> None:
    """By durable subscriptions only."""
    drive = Drive()
    drive.subscribe("a", qos=0)

    assert drive.broker.committed_id + 1 == drive.broker.needed_id()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 2)
    assert ids[0] == drive.broker.needed_id()
    drive.ack(consumer, ids[0])
    assert ids[1] == drive.broker.needed_id()
