"""The broker's state: snapshots, replay of each record, and recovery after a restart."""

import msgspec
import pytest

from braidmq.base.errors import UnknownRecordError
from braidmq.broker import records, state
from braidmq.broker.broker import DELIVERED, MAINTENANCE_US, UNKNOWN, WAIT, Broker
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.settings import Settings
from braidmq.broker.topics import encode_headers
from tests.unit.broker.drive import (
    START_US,
    Drive,
    S,
    body_of,
    message_of,
    peer_of,
    replayed,
)

GAP = bytes([records.GAP]) + (5).to_bytes(8, "little") + (9).to_bytes(8, "little")


def message(topic: str, timestamp_us: int = 7) -> bytes:
    return records.encode_message(message_of(body_of(topic), timestamp_us=timestamp_us))


# Each record type.


def test_a_replayed_message_is_counted_on_its_topic() -> None:
    """The topic has its latest id, and the broker the latest timestamp of all."""
    broker = replayed(message("a", 9), message("a", 7), message("b", 3))
    rows = [(t.name, t.message_count, t.last_id) for t in broker.topics.all()]

    assert [("a", 2, 2), ("b", 1, 3)] == rows
    assert 9 == broker.times.newest_us
    assert (3, 4) == (broker.committed_id, broker.outgoing.next_id)


def test_a_replayed_message_without_a_dedup_id_leaves_none_behind() -> None:
    """Other headers are not dedup ids."""
    block = encode_headers({"k": "v"})
    broker = replayed(records.encode_message(message_of(body_of("a"), block=block)))

    assert 0 == len(broker.dedup)


def test_a_replayed_subscription_is_restored() -> None:
    """With its principal and topic, unless its QoS is 0: that is memory-only."""
    broker = replayed(
        records.encode_subscribe(1, 8, "ada", "a"), records.encode_subscribe(0, 9, "ada", "a")
    )

    assert [1] == list(broker.subscriptions.by_id)
    assert broker.subscriptions.attach(peer_of("ada"), 1) is not None
    assert broker.subscriptions.attach(peer_of("bob"), 1) is None
    assert 9 == broker.times.newest_us


def test_a_replayed_unsubscribe_ends_the_subscription() -> None:
    """One for an unknown subscription, whose QoS was 0, is ignored."""
    broker = replayed(
        records.encode_subscribe(1, 8, "ada", "a"),
        records.encode_unsubscribe(1, records.ENDED_BY_REQUEST),
        records.encode_unsubscribe(99, records.ENDED_BY_LEASE),
        message("a"),
    )

    assert {} == broker.subscriptions.by_id
    assert [[]] == [topic.subscriptions for topic in broker.topics.all()]


def test_replayed_progress_is_applied() -> None:
    """Ranges, the last delivery and attempts; an ended subscription's progress is skipped."""
    made = Progress()
    made.handed_id, made.ranges, made.attempts = 4, [(1, 2)], {3: 4}
    broker = replayed(
        records.encode_subscribe(1, 8, "ada", "a"),
        *(3 * [message("a")]),
        records.encode_progress({1: made, 77: made}),
    )
    subscription = broker.subscriptions.by_id[1]

    assert (2, 4) == (subscription.position.cursor, subscription.position.handed_id)
    assert {3: 4} == subscription.position.known_attempts
    assert subscription.position.behind


def test_a_replayed_dead_letter_settles_its_message() -> None:
    """One record does both; the letter is a message on its own topic."""
    letter = message_of(body_of("dlq.a"))
    broker = replayed(
        records.encode_subscribe(1, 8, "ada", "a"),
        message("a"),
        records.encode_dead_letter(letter, subscription_id=1, after_id=1, message_id=2),
        records.encode_dead_letter(letter, subscription_id=50, after_id=1, message_id=2),
    )
    rows = [(t.name, t.message_count, t.last_id) for t in broker.topics.all()]

    assert not broker.subscriptions.by_id[1].position.behind
    assert [("a", 1, 2), ("dlq.a", 2, 4)] == rows


def test_a_gap_is_skipped() -> None:
    """The records that a repair removed are missing; nothing else changes."""
    broker = replayed(message("a"), GAP)

    assert [1] == [topic.message_count for topic in broker.topics.all()]


def test_a_record_of_an_unknown_type_is_refused() -> None:
    """A newer version wrote it; ignoring it would lose its content."""
    with pytest.raises(UnknownRecordError, match="type 17"):
        replayed(b"\x11")


# Snapshots.


def deliveries_after_restart(drive: Drive) -> dict[int, list[int]]:
    """Return the ids that each subscription gets after a restart."""
    drive.restart()
    return {
        s.id: drive.poll_ids(drive.attach(s.id, peer=peer_of(s.principal)), 8)
        for s in drive.broker.subscriptions.by_id.values()
    }


def test_a_snapshot_and_later_records_equal_all_records() -> None:
    """Recovery from the snapshot leads to the same deliveries."""
    drive = Drive()
    consumer = drive.subscribe("a")
    other = drive.subscribe("b", name="bob")
    ids = drive.publish_many("a", 6)
    others = drive.publish_many("b", 2)
    drive.poll_ids(consumer, 4)
    drive.poll_id(other)
    drive.ack(consumer, ids[1])
    drive.snapshot()
    drive.commit()
    drive.ack(consumer, ids[0])
    (fresh,) = drive.publish_many("a", 1)
    by_snapshot = deliveries_after_restart(drive)
    drive.log.snapshots.clear()

    assert [ids[2], ids[3], ids[4], ids[5], fresh, 0, 0, 0] == by_snapshot[1]
    assert [*others, 0, 0, 0, 0, 0, 0] == by_snapshot[2]
    assert by_snapshot == deliveries_after_restart(drive)


def test_a_snapshot_covers_uncommitted_records() -> None:
    """Messages, subscriptions and dead letters whose ids are below its own."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.disconnect(consumer)  # dead-lettered, not committed
    late = drive.publish("a", b"late")
    pending = drive.broker.subscribe(peer_of("bob"), drive.topic("a"), 1, drive.now_us)
    drive.broker.subscribe(peer_of("bob"), drive.topic("a"), 0, drive.now_us)
    after = drive.publish("a", b"after")
    drive.snapshot()
    drive.commit()
    drive.restart()
    rows = [(t.name, t.message_count, t.last_id) for t in drive.broker.topics.all()]

    # The record after it holds the progress of the dead-lettered message.
    assert after + 1 == drive.log.snapshots[0][0]
    assert [("a", 3, after), ("dlq.a", 1, 4)] == rows
    assert [1, pending] == list(drive.broker.subscriptions.by_id)
    assert [late, after, 0] == drive.poll_ids(drive.attach(1), 3)
    assert [after, 0] == drive.poll_ids(drive.attach(pending, peer=peer_of("bob")), 2)


def test_a_snapshot_counts_only_once_its_records_are_committed() -> None:
    """A crash before that falls back to the previous one."""
    drive = Drive()
    drive.subscribe("a")
    drive.publish("a")
    drive.snapshot()
    drive.restart()

    assert [] == drive.log.snapshots
    assert 1 == drive.broker.committed_id


def test_a_snapshot_keeps_the_attempts_of_unread_messages() -> None:
    """Two crashes in a row do not give a poison message new attempts."""
    drive = Drive(Settings(max_retries=3, window=1))
    consumer = drive.subscribe("a")
    (poison,) = drive.publish_many("a", 1)
    for _ in range(2):
        assert poison == drive.poll_id(consumer)
        drive.disconnect(consumer)
        consumer = drive.attach(1)
    drive.snapshot()
    drive.commit()
    drive.restart()
    drive.snapshot()
    drive.restart()
    consumer = drive.attach(1)

    assert poison == drive.poll_id(consumer)
    drive.disconnect(consumer)
    drive.commit()
    assert [poison] == [letter.settles_id for letter in drive.dead_letters("dlq.a")]


def test_downtime_does_not_count_towards_a_lease() -> None:
    """A lease unused for 50 of 60 seconds has 10 left, however long the broker was down."""
    drive = Drive(Settings(lease_us=60 * S))
    drive.subscribe("a")
    drive.advance(50 * S)
    drive.snapshot()
    drive.now_us += 1_000 * S
    drive.restart()
    drive.advance(9 * S)

    assert [1] == list(drive.broker.subscriptions.by_id)

    drive.advance(1 * S + MAINTENANCE_US)

    assert {} == drive.broker.subscriptions.by_id


def test_use_after_the_snapshot_renews_the_lease() -> None:
    """The progress record proves use; the snapshot is out of date."""
    drive = Drive(Settings(lease_us=60 * S))
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.advance(59 * S)
    drive.snapshot()
    drive.poll(consumer)
    drive.ack(consumer, ids[0])
    drive.commit()
    drive.restart()
    drive.advance(50 * S)

    assert [1] == list(drive.broker.subscriptions.by_id)


# Restarts.


def test_acknowledged_messages_stay_acknowledged() -> None:
    """The others are redelivered oldest first, with the same tags, before newer ones."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 6)
    drive.poll_ids(consumer, 4)
    drive.ack(consumer, ids[0])
    drive.ack(consumer, ids[2])
    drive.commit()
    drive.restart()

    assert [ids[1], ids[3], ids[4], ids[5], 0] == drive.poll_ids(drive.attach(1), 5)


def test_a_crash_loses_uncommitted_acknowledgements() -> None:
    """A client that must be sure waits for a barrier."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 1)
    drive.poll(consumer)
    drive.commit_batch()
    drive.ack(consumer, ids[0])
    drive.restart()

    assert ids == drive.poll_ids(drive.attach(1), 1)


def test_a_tag_from_before_the_restart_is_looked_up_in_the_log() -> None:
    """Its message is unsettled but not in memory, so the answer waits for the log."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 2)
    drive.commit_batch()
    drive.restart()
    consumer = drive.attach(1)

    assert WAIT == drive.ack_once(consumer, ids[1])
    assert WAIT == drive.ack_once(consumer, ids[1])
    drive.serve_reads()
    assert [consumer.peer] == drive.broker.take_touched()
    assert DELIVERED == drive.ack_once(consumer, ids[1])
    assert UNKNOWN == drive.ack_once(consumer, ids[2])  # never delivered
    assert [ids[0], ids[2]] == drive.poll_ids(consumer, 2)


def test_recovery_skips_settled_messages_after_a_stuck_one() -> None:
    """Ten thousand acknowledged messages after it are one range, which reads skip."""
    drive = Drive(Settings(window=64))
    consumer = drive.subscribe("a")
    stuck = drive.publish("a")
    drive.commit()
    assert stuck == drive.poll_id(consumer)
    for _ in range(200):
        for message_id in drive.publish_many("a", 50):
            assert message_id == drive.poll_id(consumer)
            drive.ack(consumer, message_id)
    settled_id = drive.topic("a").last_id
    drive.publish_many("b", 1)
    (fresh,) = drive.publish_many("a", 1)
    drive.restart()
    drive.log.reads.clear()

    assert [stuck, fresh, 0] == drive.poll_ids(drive.attach(1), 3)
    spans = [(request.after_id, request.up_to) for request in drive.log.reads]
    assert [(1, stuck), (settled_id, fresh)] == spans


def test_messages_settled_up_to_the_newest_need_no_read() -> None:
    """Ranges that reach the newest message leave nothing to read."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 3)
    drive.poll_ids(consumer, 3)
    drive.ack(consumer, ids[2])
    drive.ack(consumer, ids[1])
    drive.commit()
    drive.restart()
    consumer = drive.attach(1)

    assert ids[0] == drive.poll_id(consumer)
    drive.log.reads.clear()
    assert 0 == drive.poll_id(consumer)
    assert [] == drive.log.reads
    assert consumer.subscription.position.settled is None


def test_dedup_ids_survive_a_restart() -> None:
    """From the records, and from a snapshot."""
    drive = Drive()
    message_id = drive.publish_once(drive.message("a"), "one")
    drive.commit()
    drive.restart()

    assert message_id == drive.publish_once(drive.message("a"), "one")

    drive.snapshot()
    drive.restart()

    assert message_id == drive.publish_once(drive.message("a"), "one")
    assert 1 == drive.broker.stats.duplicates


def test_a_dead_letters_dedup_header_is_ignored() -> None:
    """It keeps its message's headers, but no publisher sent it with that id."""
    drive = Drive(Settings(max_retries=1))
    consumer = drive.subscribe("a")
    drive.publish_once(drive.message("a"), "one")
    drive.commit()
    drive.poll(consumer)
    drive.disconnect(consumer)
    drive.commit()
    drive.restart()
    message_id = drive.publish_once(drive.message("dlq.a"), "one")

    assert drive.broker.committed_id + 1 == message_id


def test_recovery_forgets_the_attempts_of_settled_messages() -> None:
    """Otherwise every snapshot would carry them for ever."""
    drive = Drive()
    consumer = drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.poll_ids(consumer, 2)
    drive.disconnect(consumer)
    consumer = drive.attach(1)
    drive.poll_ids(consumer, 2)
    drive.advance(20_000)  # the attempts get their own record
    drive.commit()
    drive.ack(consumer, ids[0])
    drive.commit()
    drive.restart()

    assert {ids[1]: 2} == drive.attach(1).subscription.position.known_attempts


NEWER = {
    2: ["followers", "cursors", "intent", "done", "accounts", "queues_at"],
    3: ["cursors", "intent", "done", "accounts", "queues_at"],
    4: ["accounts", "queues_at"],
    5: [],
}


@pytest.mark.parametrize("version", NEWER)
def test_a_snapshot_of_an_earlier_version_is_read(version: int) -> None:
    """It lacks what did not exist then, and everything else is restored."""
    drive = Drive()
    drive.subscribe("a")
    ids = drive.publish_many("a", 2)
    drive.snapshot()
    last_id, data = drive.log.snapshots.pop()
    content = msgspec.msgpack.decode(data)
    assert 5 == content["version"]
    older = {key: value for key, value in content.items() if key not in NEWER[version]}
    older["version"] = version
    if version < 5:
        older["topics"] = [row[:3] for row in older["topics"]]
    drive.log.snapshots.append((last_id, msgspec.msgpack.encode(older)))

    assert {1: [*ids, 0, 0, 0, 0, 0, 0]} == deliveries_after_restart(drive)
    assert drive.broker.sinks.open is None
    assert [] == drive.broker.cursors.all()


def test_a_snapshot_of_a_later_version_is_refused() -> None:
    """Reading it could lose part of its content."""
    drive = Drive()
    _, data = state.snapshot(drive.broker, START_US)
    content = {**msgspec.msgpack.decode(data), "version": 6}

    with pytest.raises(AssertionError):
        state.restore(Broker(Settings()), msgspec.msgpack.encode(content))
