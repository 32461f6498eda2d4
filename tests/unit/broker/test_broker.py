"""The broker's operations: their outcomes, and the records they write."""

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


def test_a_durable_message_is_delivered_once_it_is_committed() -> None:
    """No consumer sees it earlier."""
    drive = Drive()
    consumer = drive.subscribe("a")
    message_id = drive.publish("a")
    drive.append()

    assert drive.poll(consumer) is None
    assert (1, 0) == (drive.broker.committed_id, drive.broker.stats.published)
    drive.commit()
    assert message_id == drive.poll_id(consumer)


def test_a_memory_only_message_has_no_id_and_no_record() -> None:
    """It is delivered at once, and may overtake uncommitted durable messages."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a", b"slow")

    assert 0 == drive.publish("a", b"quick", qos=0)
    delivery = drive.poll(consumer)
    assert delivery is not None
    assert b"quick" == delivery.message.payload
    assert [records.FIRST_MESSAGE] == kinds(drive.append())


def test_messages_without_a_time_to_live_get_the_configured_one() -> None:
    """A message's own time to live is kept."""
    drive = Drive(Settings(message_ttl_us=50))
    drive.publish("a")
    drive.publish("a", ttl_us=7)
    expiries = [records.StoredMessage(record).expires_us for record in drive.append()]

    assert [drive.now_us + 50, drive.now_us + 7] == expiries


def test_the_record_keeps_headers_and_properties() -> None:
    """They come back from the log with the message."""
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


def test_uncommitted_message_bytes_are_counted() -> None:
    """Added when accepted, subtracted when committed or refused."""
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


def test_uncommitted_dead_letter_bytes_are_counted() -> None:
    """They count like those of any message, and are subtracted when refused."""
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


def test_a_duplicate_is_not_stored_again() -> None:
    """The broker answers with the stored message's id; a header keeps the dedup id."""
    drive = Drive()
    message = drive.message("a")
    message.headers = encode_headers({"k": "v"})
    message_id = drive.publish_once(message, "one")
    again = drive.publish_once(drive.message("a"), "one")
    other = drive.publish_once(drive.message("a"), "two")
    first = records.StoredMessage(drive.append()[0])

    assert (message_id, message_id, message_id + 1) == (message_id, again, other)
    assert {"k": "v", "dedupId": "one"} == decode_headers(first.headers)
    assert 1 == drive.broker.stats.duplicates


def test_a_refused_publish_is_not_remembered() -> None:
    """Its retry is accepted; refused messages without a dedup id do no harm."""
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
    """Time alone is enough: no publish is needed."""
    drive = Drive(Settings(dedup_window_us=2 * S))
    drive.publish_once(drive.message("a"), "one")
    drive.advance(4 * S)

    assert 0 == len(drive.broker.dedup)


# Subscribing.


def test_a_subscription_starts_with_the_messages_after_its_record() -> None:
    """Also when they are committed in the same batch."""
    drive = Drive()
    drive.publish("a")
    subscription_id = drive.broker.subscribe(peer_of("ada"), drive.topic("a"), 1, drive.now_us)
    following = drive.publish("a")

    assert drive.broker.subscriptions.attach(peer_of("ada"), subscription_id) is None
    drive.commit()
    assert [following, 0] == drive.poll_ids(drive.attach(subscription_id), 2)


def test_only_its_principal_may_attach_to_a_subscription() -> None:
    """Other principals and unauthenticated peers may not."""
    drive = Drive()
    drive.subscribe("a", name="ada")

    assert drive.broker.subscriptions.attach(peer_of("bob"), 1) is None
    assert drive.broker.subscriptions.attach(Peer(), 1) is None
    assert drive.broker.subscriptions.attach(peer_of("ada"), 2) is None
    assert drive.broker.subscriptions.attach(peer_of("ada"), 1) is not None


def test_unsubscribing_ends_the_subscription_for_every_consumer() -> None:
    """Messages, tags, credit and waiting polls are gone, and a record says so."""
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
    record_id = drive.broker.unsubscribe(other)
    drive.serve_reads()

    assert [consumer.peer] == drive.broker.take_touched()
    assert consumer.subscription.ended
    assert (0, 0) == (other.credit, drive.broker.dispatch.windows.held_bytes)
    drive.commit()
    assert records.UNSUBSCRIBE == drive.log.records[record_id - 1][0]
    assert {} == drive.broker.subscriptions.by_id
    drive.publish_many("a", 1)
    drive.disconnect(consumer)
    assert 0 == drive.broker.in_flight_count()


def test_a_read_for_an_ended_subscription_is_discarded() -> None:
    """The log answers after the unsubscribe."""
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


def test_credit_can_be_given_again_after_it_was_voided() -> None:
    """The consumer takes part in the round-robin only once."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.credit(consumer, 5)
    drive.broker.stop_pushing(consumer.peer)
    ids = drive.publish_many("a", 2)

    assert [] == drive.pushed_ids(consumer)
    assert ids[:1] == drive.credit(consumer, 1)
    assert 1 == len(consumer.subscription.consumers)


# Polling.


def test_polling_an_empty_subscription_answers_empty() -> None:
    """It answers at once: the broker does not keep the poll waiting."""
    drive = Drive()
    consumer = drive.subscribe("a")

    assert EMPTY == drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.publish_many("a", 1)
    assert [] == drive.pushed(consumer)


def test_a_poll_waits_while_the_log_holds_more() -> None:
    """So POLL followed by PING reliably answers "is it empty?"."""
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


def test_a_disconnected_peer_stops_waiting_for_the_log() -> None:
    """The broker does not wake it when the read completes."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 2)
    drive.ack(consumer, drive.poll_id(consumer))
    drive.broker.poll(consumer, CORRELATION_ID, drive.now_us)
    drive.broker.take_touched()
    drive.disconnect(consumer)
    drive.serve_reads()

    assert [] == drive.broker.take_touched()


def test_a_push_after_a_read_uses_the_current_time() -> None:
    """The acknowledgement timer of what is pushed lies in the future."""
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
    drive.credit(other, 5)  # reads the log: the first message is unsettled
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


def test_a_tag_of_another_topic_is_unknown() -> None:
    """After a restart only reading the log shows which topic an id belongs to."""
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


def test_a_barrier_writes_acknowledgements_to_the_log() -> None:
    """A delivery alone is not written; the barrier covers everything accepted."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)

    assert not drive.broker.wants_commit()
    assert drive.broker.committed_id == drive.broker.barrier()
    drive.ack(consumer, ids[0])
    assert not drive.broker.wants_commit()
    barrier_id = drive.broker.barrier()
    assert drive.broker.wants_commit()
    drive.commit()
    assert barrier_id == drive.broker.committed_id
    assert [(1, ids[0])] == records.read_progress(drive.log.records[barrier_id - 1])[1].ranges


def test_a_delivery_is_recorded_after_a_delay() -> None:
    """The next deadline says when; the broker records it only once."""
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
    """It may be maintenance, a retry timer, or progress to record."""
    drive = Drive(Settings(retry_backoff_us=300_000, retry_backoff_max_us=300_000))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 1)
    drive.advance(2 * S)
    maintenance_us = drive.broker.next_deadline_us()

    assert drive.now_us < maintenance_us <= drive.now_us + MAINTENANCE_US
    drive.poll(consumer)
    drive.commit_batch()
    assert drive.now_us + 300_000 == drive.broker.next_deadline_us()


def test_an_ended_subscriptions_acknowledgements_are_not_recorded() -> None:
    """The unsubscribe record makes them redundant."""
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


def test_refused_records_are_rolled_back() -> None:
    """The broker returns the refused publishes and subscriptions and reuses their ids."""
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
    """It is merged in order: the latest attempt count wins."""
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
        drive.advance(PROGRESS_DELAY_US)  # a separate record each time
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


def test_an_ended_subscriptions_refused_progress_is_dropped() -> None:
    """Only its unsubscribe record is written again."""
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
    """The record of its end is queued again with a new id: it may use the log's reserve."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish("a")
    drive.refuse()
    record_id = drive.broker.unsubscribe(consumer)
    drive.publish_many("a", 0)

    assert {} == drive.broker.subscriptions.by_id
    drive.broker.unsubscribe(drive.subscribe("b"))
    drive.refuse()
    drive.commit()
    drive.restart()
    assert record_id < drive.broker.outgoing.next_id
    assert {} == drive.broker.subscriptions.by_id


# Statistics.


def test_a_topic_counts_only_committed_messages() -> None:
    """Memory-only messages do not count."""
    drive = Drive()
    drive.subscribe("b")
    drive.publish_many("c", 2)
    drive.publish("a", qos=0)

    assert [("b", 0, 0), ("c", 2, 3), ("a", 0, 0)] == [
        (topic.name, topic.message_count, topic.last_id) for topic in drive.broker.topics.all()
    ]


def test_the_log_is_needed_from_the_oldest_unsettled_message() -> None:
    """Only durable subscriptions need it."""
    drive = Drive()
    drive.subscribe("a", qos=0)

    assert drive.broker.committed_id + 1 == drive.broker.needed_id()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 2)
    assert ids[0] == drive.broker.needed_id()
    drive.ack(consumer, ids[0])
    assert ids[1] == drive.broker.needed_id()
