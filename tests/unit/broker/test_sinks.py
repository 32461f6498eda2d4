"""Sinks: a batch from its intent to its end, full queues, a full log, and restarts."""

import pytest

from braidmq.broker import records
from braidmq.broker.dedup import HEADER, NEW
from braidmq.broker.policy import (
    BLOCK_PUBLISHER,
    DROP_NEWEST,
    DROP_OLDEST,
    REDIRECT_TO_DLQ,
    Policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.sinks import PLAIN_WRITES_MAX, QUERIES_MAX, Intent, Row
from braidmq.broker.topics import (
    ORIGIN_SPARK,
    PRIORITY_HIGH,
    TOO_MANY,
    TOPIC_NAMES_BYTES_MAX,
    encode_headers,
)
from tests.unit.broker.drive import MS, Drive

STAGE, OTHER = bytes(range(16)), bytes(range(16, 32))


def rows(*payloads: bytes, topic: str = "t") -> list[Row]:
    return [(topic, payload, b"", 1) for payload in payloads]


def begin(
    drive: Drive, count: int = 3, *, query: str = "q", sink: str = "", batch: int = 1
) -> Intent:
    return drive.broker.sinks.begin("ada", query, sink, batch, [(STAGE, count)])


def append(drive: Drive, batch_rows: list[Row]) -> int:
    return drive.broker.sinks.append(batch_rows, drive.broker.committed_id, drive.now_us)


def payloads(drive: Drive, topic: str = "t") -> list[bytes]:
    """Return the payloads of a topic's sink rows in the log."""
    found = [
        records.StoredMessage(record)
        for record in drive.log.records
        if record[0] == records.SINK_ROW
    ]
    return [one.body[2 + len(topic) :] for one in found if one.topic == topic]


def do_batch(drive: Drive, batch: int, *, query: str = "q") -> None:
    """Append a batch of one row, and commit its end."""
    begin(drive, 1, query=query, batch=batch)
    append(drive, rows(b"%d" % batch))
    drive.broker.sinks.finish()
    drive.commit()


# One batch.


def test_a_batch_writes_an_intent_its_rows_and_its_end() -> None:
    """In that order; records of other publishers may come in between."""
    drive = Drive()
    begin(drive)
    append(drive, rows(b"1", b"2"))
    drive.publish("t", b"else")
    append(drive, rows(b"3"))
    drive.broker.sinks.finish()
    drive.commit()
    kinds = [record[0] for record in drive.log.records]

    row = records.SINK_ROW
    assert [records.INTENT, row, row, records.MESSAGE, row, records.DONE] == kinds
    assert [b"1", b"2", b"3"] == payloads(drive)


def test_rows_are_delivered_as_durable_messages_from_spark() -> None:
    """In order, each with its headers and priority."""
    drive = Drive()
    consumer = drive.subscribe("t")
    block = encode_headers({"k": "v"})
    begin(drive, 2)
    append(drive, [("t", b"1", block, PRIORITY_HIGH), ("t", b"2", b"", 1)])
    assert drive.poll(consumer) is None  # not committed yet
    drive.commit()
    first, second = drive.poll(consumer), drive.poll(consumer)

    assert first is not None
    assert second is not None
    assert (b"1", block, PRIORITY_HIGH, ORIGIN_SPARK, 1) == (
        first.message.payload,
        first.message.headers,
        first.message.priority,
        first.message.origin,
        first.qos,
    )
    assert b"2" == second.message.payload


def test_a_backlog_of_rows_is_read_back_from_the_log() -> None:
    """A backlog of rows is read like any other."""
    drive = Drive(Settings(window=1))
    consumer = drive.subscribe("t")
    begin(drive)
    append(drive, rows(b"1", b"2", b"3"))
    drive.commit()
    got: list[bytes] = []
    while (delivery := drive.poll(consumer)) is not None:
        got.append(delivery.message.payload)
        drive.ack(consumer, delivery.message.id)

    assert [b"1", b"2", b"3"] == got


def test_rows_have_the_time_to_live_of_their_topic_or_queue() -> None:
    """Just as a publish to it has."""
    drive = Drive(Settings(message_ttl_us=5 * MS))
    declared = Policy()
    declared.ttl_us = 7 * MS
    drive.declare("q", declared)
    begin(drive, 2)
    append(drive, [*rows(b"1"), *rows(b"2", topic="q")])
    drive.commit()
    found = [records.StoredMessage(r) for r in drive.log.records if r[0] == records.SINK_ROW]

    assert [5 * MS, 7 * MS] == [one.expires_us - drive.now_us for one in found]


def test_a_batch_without_rows_is_recorded_as_done() -> None:
    """The broker must recognize a retry of it."""
    drive = Drive()
    drive.broker.sinks.begin("ada", "q", "", 4, [])
    drive.broker.sinks.finish()
    drive.commit()
    done = drive.broker.sinks.last_done("q", "")

    assert done is not None
    assert ("ada", 4, 0) == (done.principal, done.batch, done.rows)


@pytest.mark.parametrize(
    ("row", "stage", "number"),
    [(0, STAGE, 0), (1, STAGE, 1), (2, OTHER, 0), (4, OTHER, 2)],
)
def test_each_row_of_a_batch_is_located_in_a_stage(row: int, stage: bytes, number: int) -> None:
    """Stages without rows are skipped."""
    empty = bytes(16)
    stages = [(empty, 0), (STAGE, 2), (empty, 0), (OTHER, 3), (empty, 0)]
    intent = Intent(1, "ada", "q", "", 1, stages)

    assert 5 == intent.rows
    assert (stage, number) == intent.locate(row)


# Completed batches.


def test_the_last_batch_of_each_query_and_sink_is_remembered() -> None:
    """Two sinks of one query are remembered separately."""
    drive = Drive()
    do_batch(drive, 1)
    do_batch(drive, 2)
    do_batch(drive, 7, query="other")
    begin(drive, 0, sink="s", batch=1)
    drive.broker.sinks.finish()
    found = [
        drive.broker.sinks.last_done(*key) for key in (("q", ""), ("q", "s"), ("other", ""))
    ]

    assert [2, 1, 7] == [done.batch for done in found if done is not None]
    assert drive.broker.sinks.last_done("unknown", "") is None


def plain(number: int) -> str:
    return f"{number:032x}"


def test_only_the_newest_plain_writes_are_remembered() -> None:
    """Each has its own query name; a stream is kept even if it has only done batch 0."""
    drive = Drive()
    stream = "00000000-0000-0000-0000-000000000000"
    do_batch(drive, 0, query=stream)
    writes = [(plain(number), "", "ada", 0, 1) for number in range(PLAIN_WRITES_MAX)]
    drive.broker.sinks.restore(None, writes)

    def known() -> list[bool]:
        names = (stream, plain(0), plain(1), plain(PLAIN_WRITES_MAX))
        return [drive.broker.sinks.last_done(name, "") is not None for name in names]

    assert [True, True, True, False] == known()
    do_batch(drive, 0, query=plain(PLAIN_WRITES_MAX))
    assert [True, False, True, True] == known()
    drive.snapshot()
    drive.restart()
    assert [True, False, True, True] == known()
    do_batch(drive, 0, query=plain(0))
    assert [True, True, False, True] == known()


def test_the_number_of_queries_is_bounded() -> None:
    """Queries are never forgotten; above the limit only known ones and plain writes fit."""
    drive = Drive()
    known = [(str(number), "", "ada", 1, 1) for number in range(QUERIES_MAX - 1)]
    drive.broker.sinks.restore(None, known)
    do_batch(drive, 0, query=plain(0))
    assert drive.broker.sinks.has_room("q", "", 1)
    do_batch(drive, 0)

    assert drive.broker.sinks.has_room("q", "", 2)
    assert drive.broker.sinks.has_room(plain(1), "", 0)
    assert not drive.broker.sinks.has_room("new", "", 0)
    assert not drive.broker.sinks.has_room("q", "other", 1)


# Queues.


def full_queue(drive: Drive, overflow: int, *, letters: bool = True) -> None:
    """Declare queue t with room for two messages."""
    declared = Policy()
    declared.max_size = 2
    declared.overflow = overflow
    declared.dead_letters = letters
    drive.declare("t", declared)


@pytest.mark.parametrize("overflow", [BLOCK_PUBLISHER, DROP_NEWEST])
def test_rows_wait_for_room_in_their_queue(overflow: int) -> None:
    """Whether the queue blocks or refuses its publishers, no row is lost."""
    drive = Drive()
    full_queue(drive, overflow)
    begin(drive)

    assert 2 == append(drive, rows(b"1", b"2", b"3"))
    assert "queue 't' is full" == drive.broker.sinks.waits_for
    drive.commit()
    assert 0 == append(drive, rows(b"3"))
    consumer = drive.join(drive.queue("t"))
    drive.ack_all(consumer)
    assert 1 == append(drive, rows(b"3"))
    assert "" == drive.broker.sinks.waits_for
    drive.commit()
    assert [b"1", b"2", b"3"] == payloads(drive)


def test_rows_displace_the_oldest_where_the_queue_drops_it() -> None:
    """All rows are in the log all the same."""
    drive = Drive()
    full_queue(drive, DROP_OLDEST)
    begin(drive)
    append(drive, rows(b"1", b"2", b"3"))
    drive.commit()

    assert [b"1", b"2", b"3"] == payloads(drive)
    assert 2 == drive.queue("t").waiting()
    assert 1 == drive.broker.stats.dropped.overflow


def test_rows_are_redirected_to_dead_letters_where_the_policy_says_so() -> None:
    """They count as appended: each dead letter replaces its row."""
    drive = Drive()
    full_queue(drive, REDIRECT_TO_DLQ)
    intent = begin(drive)
    assert 3 == append(drive, rows(b"1", b"2", b"3"))
    drive.broker.sinks.finish()
    drive.commit()

    assert 3 == intent.appended
    assert [b"1", b"2"] == payloads(drive)
    assert [b"3"] == payloads(drive, "dlq.t")
    assert 1 == drive.broker.stats.dead_lettered


def test_rows_wait_where_redirection_is_impossible() -> None:
    """A full queue without dead letters refuses them."""
    drive = Drive()
    full_queue(drive, REDIRECT_TO_DLQ, letters=False)
    begin(drive)

    assert 2 == append(drive, rows(b"1", b"2", b"3"))


def test_rows_are_durable_even_in_a_memory_only_queue() -> None:
    """After a crash, a row without a record would be repeated or lost."""
    drive = Drive()
    declared = Policy()
    declared.durable = False
    drive.declare("t", declared)
    begin(drive, 2)
    append(drive, rows(b"1", b"2"))
    drive.commit()
    drive.restart()
    consumer = drive.join(drive.queue("t"))

    assert [b"1", b"2"] == payloads(drive)
    assert 2 == len(drive.ack_all(consumer))
    assert 0 == drive.queue("t").waiting()


def test_rows_wait_while_there_are_too_many_topics() -> None:
    """A publisher could not create another topic either."""
    drive = Drive()
    drive.topic("t")
    drive.broker.topics._names_bytes = TOPIC_NAMES_BYTES_MAX  # noqa: SLF001 - a million names take long
    begin(drive, 2)

    assert 1 == append(drive, [*rows(b"1"), *rows(b"2", topic="new")])
    assert TOO_MANY == drive.broker.sinks.waits_for


# A full log.


def test_rows_refused_by_a_full_log_are_due_again() -> None:
    """Earlier rows are not, and no publish counts as refused."""
    drive = Drive()
    drive.declare("t")
    intent = begin(drive)
    append(drive, rows(b"1"))
    drive.commit()
    append(drive, rows(b"2", b"3"))
    drive.refuse()

    assert intent is drive.broker.sinks.open
    assert 1 == intent.appended
    assert 0 == drive.broker.stats.refused
    assert 0 == drive.queue("t").pending
    drive.broker.accept_again()
    append(drive, rows(b"2", b"3"))
    drive.broker.sinks.finish()
    drive.commit()
    assert [b"1", b"2", b"3"] == payloads(drive)


def test_an_intent_refused_by_a_full_log_is_dropped() -> None:
    """The rows after it are dropped too."""
    drive = Drive()
    begin(drive)
    append(drive, rows(b"1"))
    drive.refuse()

    assert drive.broker.sinks.open is None
    assert not drive.broker.wants_commit()
    drive.broker.accept_again()
    do_batch(drive, 1)
    assert [b"1"] == payloads(drive)


@pytest.mark.parametrize("earlier", [[], [3]])
def test_a_batch_whose_end_was_refused_is_open_again(earlier: list[int]) -> None:
    """It has all its rows, and the batch before it is the last one done."""
    drive = Drive()
    for batch in earlier:
        do_batch(drive, batch)
    intent = begin(drive, 1, batch=4)
    append(drive, rows(b"4"))
    drive.commit()
    drive.broker.sinks.finish()
    drive.refuse()
    done = drive.broker.sinks.last_done("q", "")

    assert intent is drive.broker.sinks.open
    assert (1, 1) == (intent.appended, intent.rows)
    assert earlier == ([] if done is None else [done.batch])
    drive.broker.accept_again()
    drive.broker.sinks.finish()
    drive.commit()
    drive.restart()
    done = drive.broker.sinks.last_done("q", "")
    assert done is not None
    assert 4 == done.batch


def test_a_row_and_the_end_of_its_batch_can_be_refused_together() -> None:
    """The batch is open again, and the row is due."""
    drive = Drive()
    intent = begin(drive, 2)
    append(drive, rows(b"1"))
    drive.commit()
    append(drive, rows(b"2"))
    drive.broker.sinks.finish()
    drive.refuse()

    assert intent is drive.broker.sinks.open
    assert 1 == intent.appended


def test_a_batch_done_before_a_refusal_stays_done() -> None:
    """Refusing a later batch does not affect it."""
    drive = Drive()
    do_batch(drive, 1)
    begin(drive, 1, batch=2)
    drive.refuse()
    drive.publish("t")
    drive.refuse()
    done = drive.broker.sinks.last_done("q", "")

    assert drive.broker.sinks.open is None
    assert done is not None
    assert 1 == done.batch


# Restarts.


@pytest.mark.parametrize("with_snapshot", [False, True])
@pytest.mark.parametrize("committed", range(4))
def test_after_a_restart_the_next_row_is_due(committed: int, *, with_snapshot: bool) -> None:
    """For any number of committed rows, with and without a snapshot in between."""
    drive = Drive()
    begin(drive)
    batch_rows = rows(b"1", b"2", b"3")
    append(drive, batch_rows[:committed])
    if with_snapshot:
        drive.snapshot()
    drive.commit()
    append(drive, batch_rows[committed:])
    drive.restart()
    intent = drive.broker.sinks.open

    assert with_snapshot == bool(drive.log.snapshots)
    assert intent is not None
    assert (1, "ada", "q", "", 1, [(STAGE, 3)]) == (
        intent.id,
        intent.principal,
        intent.query,
        intent.sink,
        intent.batch,
        intent.stages,
    )
    assert (committed, 3) == (intent.appended, intent.rows)
    append(drive, batch_rows[committed:])
    drive.broker.sinks.finish()
    drive.commit()
    assert [b"1", b"2", b"3"] == payloads(drive)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_done_batch_is_known_after_a_restart(*, with_snapshot: bool) -> None:
    """Whether it is recovered from a snapshot or from the records."""
    drive = Drive()
    begin(drive, 2, batch=4)
    append(drive, rows(b"1", b"2"))
    drive.broker.sinks.finish()
    if with_snapshot:
        drive.snapshot()
    drive.commit()
    drive.restart()
    done = drive.broker.sinks.last_done("q", "")

    assert drive.broker.sinks.open is None
    assert done is not None
    assert ("ada", 4, 2) == (done.principal, done.batch, done.rows)


def test_rows_whose_intent_a_repair_removed_are_plain_messages() -> None:
    """The rows are on their topic; the end of their batch is ignored."""
    drive = Drive()
    do_batch(drive, 1)
    drive.log.records[0] = bytes([records.GAP]) + bytes(16)
    drive.restart()

    assert drive.broker.sinks.open is None
    assert drive.broker.sinks.last_done("q", "") is None
    assert 1 == drive.topic("t").message_count


def test_a_rows_dedup_header_is_ignored() -> None:
    """A header that looks like a dedup id means nothing on a row."""
    drive = Drive()
    block = encode_headers({HEADER: "7"})
    begin(drive, 1)
    append(drive, [("t", b"row", block, 1)])
    drive.commit()
    assert NEW == drive.broker.dedup.find("t", "7", drive.now_us)
    drive.restart()

    assert NEW == drive.broker.dedup.find("t", "7", drive.now_us)


def test_a_refused_row_does_not_erase_a_dedup_id() -> None:
    """The id in its header may belong to a message in the log."""
    drive = Drive()
    first = drive.publish_once(drive.message("t"), "7")
    drive.commit()
    begin(drive, 1)
    append(drive, [("t", b"row", encode_headers({HEADER: "7"}), 1)])
    drive.refuse()

    assert first == drive.broker.dedup.find("t", "7", drive.now_us)
