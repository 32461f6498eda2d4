"""Sinks: a batch from its intent to its end, queues on the way, a full log, restarts."""

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


def append(drive: Drive, given: list[Row]) -> int:
    return drive.broker.sinks.append(given, drive.broker.committed_id, drive.now_us)


def payloads(drive: Drive, topic: str = "t") -> list[bytes]:
    """Return what the log has of a sink's rows on a topic."""
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


def test_a_batch_is_an_intent_its_rows_and_its_end() -> None:
    """One behind the other, and other records between if they come then."""
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


def test_rows_are_delivered_as_durable_messages_of_spark() -> None:
    """With the headers and priority of the row, in its order."""
    drive = Drive()
    consumer = drive.subscribe("t")
    block = encode_headers({"k": "v"})
    begin(drive, 2)
    append(drive, [("t", b"1", block, PRIORITY_HIGH), ("t", b"2", b"", 1)])
    assert drive.poll(consumer) is None  # it is not committed
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


def test_rows_that_wait_in_the_log_are_read_back_from_it() -> None:
    """Backlog is of one kind, whoever wrote it."""
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
    """As any publish to it."""
    drive = Drive(Settings(message_ttl_us=5 * MS))
    declared = Policy()
    declared.ttl_us = 7 * MS
    drive.declare("q", declared)
    begin(drive, 2)
    append(drive, [*rows(b"1"), *rows(b"2", topic="q")])
    drive.commit()
    found = [records.StoredMessage(r) for r in drive.log.records if r[0] == records.SINK_ROW]

    assert [5 * MS, 7 * MS] == [one.expires_us - drive.now_us for one in found]


def test_a_batch_without_rows_is_done_too() -> None:
    """A repeat of it must be known."""
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
def test_each_row_of_a_batch_has_its_place_in_a_stage(
    row: int, stage: bytes, number: int
) -> None:
    """Stages without rows are passed over."""
    empty = bytes(16)
    stages = [(empty, 0), (STAGE, 2), (empty, 0), (OTHER, 3), (empty, 0)]
    intent = Intent(1, "ada", "q", "", 1, stages)

    assert 5 == intent.rows
    assert (stage, number) == intent.locate(row)


# What is remembered.


def test_the_last_batch_of_each_query_and_sink_is_remembered() -> None:
    """Two sinks of one query are two."""
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
    assert drive.broker.sinks.last_done("nobody", "") is None


def plain(number: int) -> str:
    return f"{number:032x}"


def test_of_plain_writes_the_newest_are_remembered() -> None:
    """Each has a query of its own; a stream is kept though it has done batch 0 only."""
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


def test_queries_are_never_forgotten_so_there_is_a_bound() -> None:
    """A new one is not taken above it; plain writes and known queries are."""
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
    """Whether it blocks or refuses its publishers: no row is lost."""
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


def test_the_oldest_gives_way_in_a_queue_that_drops_it() -> None:
    """The rows are in the log all the same."""
    drive = Drive()
    full_queue(drive, DROP_OLDEST)
    begin(drive)
    append(drive, rows(b"1", b"2", b"3"))
    drive.commit()

    assert [b"1", b"2", b"3"] == payloads(drive)
    assert 2 == drive.queue("t").waiting()
    assert 1 == drive.broker.stats.dropped.overflow


def test_rows_are_redirected_to_the_dead_letters_of_a_queue_that_says_so() -> None:
    """They count as appended: one record each, in the place of the row."""
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


def test_rows_wait_where_a_redirection_leads_nowhere() -> None:
    """A queue without dead letters refuses what it has no room for."""
    drive = Drive()
    full_queue(drive, REDIRECT_TO_DLQ, letters=False)
    begin(drive)

    assert 2 == append(drive, rows(b"1", b"2", b"3"))


def test_rows_are_durable_in_a_queue_that_is_not() -> None:
    """A row without a record would come again after a crash, or never."""
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
    """A publisher could not make one more either."""
    drive = Drive()
    drive.topic("t")
    drive.broker.topics._names_bytes = TOPIC_NAMES_BYTES_MAX  # noqa: SLF001 - to be there soon
    begin(drive, 2)

    assert 1 == append(drive, [*rows(b"1"), *rows(b"2", topic="new")])
    assert "there are too many topics" == drive.broker.sinks.waits_for


# A full log.


def test_rows_that_a_full_log_refused_are_due_again() -> None:
    """Those before them are not; nobody is told that a message was refused."""
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


def test_an_intent_that_a_full_log_refused_was_never_there() -> None:
    """Nor were the rows behind it."""
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
def test_an_end_that_a_full_log_refused_is_not_the_end(earlier: list[int]) -> None:
    """The batch is open again, with all its rows, and what was done before it is so again."""
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


def test_a_row_and_its_batchs_end_can_be_refused_together() -> None:
    """The batch is open, and the row is due."""
    drive = Drive()
    intent = begin(drive, 2)
    append(drive, rows(b"1"))
    drive.commit()
    append(drive, rows(b"2"))
    drive.broker.sinks.finish()
    drive.refuse()

    assert intent is drive.broker.sinks.open
    assert 1 == intent.appended


def test_what_was_done_before_a_refusal_stays_done() -> None:
    """A later batch's refusal does not reach back."""
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
    """However many have their records by then; a snapshot in the middle changes nothing."""
    drive = Drive()
    begin(drive)
    given = rows(b"1", b"2", b"3")
    append(drive, given[:committed])
    if with_snapshot:
        drive.snapshot()
    drive.commit()
    append(drive, given[committed:])
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
    append(drive, given[committed:])
    drive.broker.sinks.finish()
    drive.commit()
    assert [b"1", b"2", b"3"] == payloads(drive)


@pytest.mark.parametrize("with_snapshot", [False, True])
def test_what_is_done_is_known_after_a_restart(*, with_snapshot: bool) -> None:
    """Whether a snapshot or the records say so."""
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


def test_rows_and_ends_whose_intent_a_repair_gave_up_are_messages_and_nothing() -> None:
    """The rows are on their topic; of what batch they were, nobody knows any more."""
    drive = Drive()
    do_batch(drive, 1)
    drive.log.records[0] = bytes([records.GAP]) + bytes(16)
    drive.restart()

    assert drive.broker.sinks.open is None
    assert drive.broker.sinks.last_done("q", "") is None
    assert 1 == drive.topic("t").message_count


def test_a_row_is_no_repeat_of_a_message() -> None:
    """A header that looks like a publisher's own id says nothing of a row."""
    drive = Drive()
    block = encode_headers({HEADER: "7"})
    begin(drive, 1)
    append(drive, [("t", b"row", block, 1)])
    drive.commit()
    assert NEW == drive.broker.dedup.find("t", "7", drive.now_us)
    drive.restart()

    assert NEW == drive.broker.dedup.find("t", "7", drive.now_us)


def test_a_refused_row_does_not_make_a_message_unknown() -> None:
    """The id in its header may be that of a message which is there."""
    drive = Drive()
    first = drive.publish_once(drive.message("t"), "7")
    drive.commit()
    begin(drive, 1)
    append(drive, [("t", b"row", encode_headers({HEADER: "7"}), 1)])
    drive.refuse()

    assert first == drive.broker.dedup.find("t", "7", drive.now_us)
