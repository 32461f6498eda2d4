"""Reading the log as tables: row for row what a plain scan of its files gives."""

from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import braidmq
from braidmq import columnar
from braidmq.base.errors import ConfigError, DamagedLogError
from braidmq.columnar.loss import NOT_DURABLE, RETAINED, DataLossError, Loss
from braidmq.columnar.reading import microseconds
from braidmq.testing import running_broker
from braidmq.wal.disk import Disk
from braidmq.wal.format import encode_mark
from tests.unit.columnar.logs import (
    NOTE,
    dead_letter,
    first_message,
    flip,
    log_of,
    message,
    offsets_of,
    open_log,
    plain_rows,
    retain_from,
    segment_files,
    sink_row,
    write,
    write_log,
)

TOPICS = ("a", "b", "sensors/temp", "köln/straße-ß", "データ")


def mixed(count: int, seed: int = 1) -> list[bytes]:
    """Make messages of every kind, accepted one after the other, among other records."""
    dice = Random(seed)
    bodies: list[bytes] = []
    for number in range(count):
        kept = {f"h{i}": "ü" * dice.randrange(5) for i in range(dice.choice((0, 0, 0, 1, 3)))}
        if dice.random() < 0.3:
            kept["key"] = f"k{number}"
        if dice.random() < 0.1:
            kept[""] = f"id-{number}"
        payload = dice.randbytes(dice.choice((0, 1, 40, 300)))
        if dice.random() < 0.1:
            bodies.append(NOTE)
        elif dice.random() < 0.1:
            bodies.append(dead_letter(f"dlq.{dice.choice(TOPICS)}", payload, number, kept))
        elif dice.random() < 0.1:
            bodies.append(first_message(dice.choice(TOPICS), payload, number, kept))
        elif dice.random() < 0.2:
            bodies.append(sink_row(dice.choice(TOPICS), payload, number, kept))
        else:
            qos, priority = dice.randrange(2), dice.randrange(4)
            bodies.append(
                message(
                    dice.choice(TOPICS), payload, number, qos=qos, priority=priority, kept=kept
                )
            )
    return bodies


def read_rows(path: Path, pattern: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = columnar.read(path, headers=True, pattern=pattern).to_pylist()
    return found


def test_every_column_of_every_message_is_what_the_log_holds(tmp_path: Path) -> None:
    """Row for row as in a plain scan: all columns, all kinds, many segments."""
    with log_of(tmp_path, mixed(500)) as wal:
        assert len(wal.segments()) > 11
        expected = plain_rows(tmp_path)

        assert expected == read_rows(tmp_path)
    assert expected == read_rows(tmp_path)


def test_one_long_growing_segment_is_read_as_well(tmp_path: Path) -> None:
    """The segment that is not sealed gives the same rows as sealed ones."""
    with log_of(tmp_path, mixed(500), segment_bytes=2**24):
        assert 1 == len(segment_files(tmp_path))
        assert plain_rows(tmp_path) == read_rows(tmp_path)


def test_the_types_are_exactly_those_of_the_kafka_source(tmp_path: Path) -> None:
    """Names, types and their order are the contract with Spark."""
    write_log(tmp_path, [message("t", b"x")])

    assert [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
        ("qos", pa.int32()),
        ("priority", pa.string()),
        ("origin", pa.string()),
    ] == [(field.name, field.type) for field in columnar.read(tmp_path).schema]
    with_headers = columnar.read(tmp_path, headers=True).schema
    assert "timestampType" == with_headers.names[6]
    assert "headers" == with_headers.names[7]


def test_large_payloads_and_many_topics_are_read(tmp_path: Path) -> None:
    """Payloads of a MiB, ten thousand topics, and a name of the greatest length."""
    bodies = [message(f"topic/{i}", b"%d" % i) for i in range(10_000)]
    bodies += [message("big", bytes([i]) * 2**20) for i in range(5)]
    bodies += [message("x" * 65_535, b"long")]
    write_log(tmp_path, bodies, segment_bytes=2**20, batch=1000)

    assert plain_rows(tmp_path) == read_rows(tmp_path)
    assert [b"777"] == columnar.read(tmp_path, topics=["topic/777"])["value"].to_pylist()


def test_a_range_that_is_lost_entirely_is_recorded(tmp_path: Path) -> None:
    """No segment that is left has any of it: there are no rows, and one loss."""
    losses: list[Loss] = []
    with log_of(tmp_path, [message("t", bytes(500))] * 60) as wal:
        retain_from(wal, 40)
        assert columnar.offsets(tmp_path).earliest > 9
        found = columnar.read(tmp_path, start=1, end=9, fail_on_data_loss=False, losses=losses)

    assert 0 == found.num_rows
    assert [Loss(1, 8, RETAINED)] == losses


def test_the_same_range_read_twice_is_identical(tmp_path: Path) -> None:
    """Re-reading [start, end) gives the same batches, although the log has grown meanwhile."""
    with log_of(tmp_path, mixed(200)) as wal:
        first = list(columnar.batches(tmp_path, start=50, end=150, batch_rows=13))
        write(wal, mixed(200, seed=2))

        assert first == list(columnar.batches(tmp_path, start=50, end=150, batch_rows=13))


@pytest.fixture(scope="module")
def mixed_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("mixed"), mixed(400))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_filters_equal_a_brute_force_filter(mixed_log: Path, data: st.DataObject) -> None:
    """Topics, ids, times and qos select what a filter over all rows selects."""
    bound = st.none() | st.integers(1, 401)
    start, end = data.draw(bound), data.draw(bound)
    start_time = data.draw(st.none() | st.integers(0, 410))
    end_time = data.draw(st.none() | st.integers(0, 410))
    qos = data.draw(st.none() | st.integers(0, 2))
    topics = data.draw(st.none() | st.sets(st.sampled_from((*TOPICS, "dlq.a", "none"))))
    found = columnar.read(
        mixed_log,
        start=start,
        end=end,
        start_time=start_time,
        end_time=end_time,
        qos=qos,
        topics=topics,
        headers=True,
    )

    def wanted(row: dict[str, Any]) -> bool:
        at, number = microseconds(row["timestamp"]), row["offset"]
        since = at >= start_time if start_time is not None else number >= (start or 0)
        until = at < end_time if end_time is not None else number < (end or 2**60)
        return (
            since
            and until
            and (qos is None or row["qos"] == qos)
            and (topics is None or row["topic"] in topics)
        )

    assert list(filter(wanted, plain_rows(mixed_log))) == found.to_pylist()


def test_a_pattern_matches_whole_names(mixed_log: Path) -> None:
    """A pattern that matches only part of a name does not select it."""
    expected = [row for row in plain_rows(mixed_log) if row["topic"] in {"a", "b"}]

    assert expected == read_rows(mixed_log, pattern="[ab]")
    assert [] == read_rows(mixed_log, pattern="dlq")


def test_columns_are_a_projection(mixed_log: Path) -> None:
    """Exactly the named columns, in that order; a count needs none at all."""
    found = columnar.read(mixed_log, columns=["offset", "key", "topic"])

    assert ["offset", "key", "topic"] == found.schema.names
    expected = plain_rows(mixed_log)
    assert [(r["offset"], r["key"], r["topic"]) for r in expected] == [
        tuple(row.values()) for row in found.to_pylist()
    ]
    counted = columnar.batches(mixed_log, columns=[])
    assert len(expected) == sum(batch.num_rows for batch in counted)


def test_a_projection_without_payloads_does_not_look_at_them(tmp_path: Path) -> None:
    """A damaged payload does not disturb a count; a read of it raises the error."""
    write_log(tmp_path, [message("t", b"x" * 200) for _ in range(100)])
    flip(segment_files(tmp_path)[0], 150)

    assert 100 == columnar.read(tmp_path, columns=["topic", "offset"]).num_rows
    with pytest.raises(DamagedLogError):
        columnar.read(tmp_path, columns=["value"])


@pytest.mark.parametrize("bounds", [{"batch_rows": 3}, {"batch_bytes": 500}, {}])
def test_batches_are_bounded(mixed_log: Path, bounds: dict[str, int]) -> None:
    """Each batch keeps its bounds of rows and bytes; together they are complete."""
    found = list(columnar.batches(mixed_log, **bounds))  # type: ignore[arg-type]  # one of them

    for batch in found:
        assert batch.num_rows <= bounds.get("batch_rows", 10**9)
        small = sum(map(len, batch["value"].to_pylist())) <= bounds.get("batch_bytes", 10**9)
        assert small or batch.num_rows == 1
    assert columnar.read(mixed_log) == pa.Table.from_batches(found)


def test_nothing_beyond_the_durable_mark_is_read(tmp_path: Path) -> None:
    """Records that were written but not synced are in the file, but no reader gets them."""
    wal = open_log(tmp_path, fsync="none")
    write(wal, [message("t", b"%d" % i) for i in range(10)])
    wal.sync()
    write(wal, [message("t", b"not durable") for _ in range(5)])

    assert (1, 11) == columnar.offsets(tmp_path)
    assert list(range(1, 11)) == offsets_of(columnar.read(tmp_path))
    with pytest.raises(DataLossError) as caught:
        columnar.read(tmp_path, end=13)
    assert Loss(11, 12, NOT_DURABLE) == caught.value.loss
    wal.sync()
    assert 15 == columnar.read(tmp_path).num_rows
    wal.close()


def test_torn_bytes_after_the_mark_are_ignored(tmp_path: Path) -> None:
    """A torn tail, in segment or index, changes nothing."""
    with log_of(tmp_path, [message("t", b"%d" % i) for i in range(10)], segment_bytes=2**20):
        expected = columnar.read(tmp_path)
        for path in (segment_files(tmp_path)[0], next(tmp_path.glob("wal/*.idx"))):
            with path.open("ab") as file:
                file.write(b"\xff" * 57)

        assert expected == columnar.read(tmp_path)


def test_a_mark_past_the_end_of_the_log_is_damage(tmp_path: Path) -> None:
    """Durable records that are missing are never skipped."""
    write_log(tmp_path, [message("t", b"x") for _ in range(10)], segment_bytes=2**20)
    (tmp_path / "wal/durable").write_bytes(encode_mark(12))

    with pytest.raises(DamagedLogError) as caught:
        columnar.read(tmp_path)
    assert 11 == caught.value.first_id


@pytest.mark.parametrize("segment_bytes", [4096, 2**20], ids=["sealed", "growing"])
@pytest.mark.parametrize("only", [None, ["t3"]], ids=["all", "one topic"])
def test_every_flipped_bit_of_a_payload_is_found(
    tmp_path: Path, segment_bytes: int, only: list[str] | None
) -> None:
    """No damaged payload is handed out, whichever way it is verified."""
    bodies = [message(f"t{i % 5}", b"payload %d" % i * 5) for i in range(60)]
    write_log(tmp_path, bodies, segment_bytes=segment_bytes)
    path = segment_files(tmp_path)[0]
    data = path.read_bytes()
    at = data.index(b"payload 13")

    flip(path, at)
    with pytest.raises(DamagedLogError) as caught:
        columnar.read(tmp_path, topics=only)
    assert (14, 14) == (caught.value.first_id, caught.value.last_id)
    path.write_bytes(data)
    assert columnar.read(tmp_path, topics=only).num_rows == (60 if only is None else 12)


def test_a_read_from_below_what_retention_left_is_a_loss(tmp_path: Path) -> None:
    """Ids below the first segment are an error, or skipped and recorded, never silently."""
    with log_of(tmp_path, [message("t", b"x" * 100) for _ in range(200)]) as wal:
        retain_from(wal, 120)
        first = wal.first_id
        assert 1 < first <= 120

        assert (first, 201) == columnar.offsets(tmp_path)
        assert list(range(first, 201)) == offsets_of(columnar.read(tmp_path))
        with pytest.raises(DataLossError) as caught:
            columnar.read(tmp_path, start=5)
        assert Loss(5, first - 1, RETAINED) == caught.value.loss
        losses: list[Loss] = []
        found = columnar.read(tmp_path, start=5, fail_on_data_loss=False, losses=losses)
    assert list(range(first, 201)) == offsets_of(found)
    assert [Loss(5, first - 1, RETAINED)] == losses


@pytest.mark.parametrize("fail", [True, False])
def test_retention_that_races_a_reader_is_never_a_silent_short_read(
    tmp_path: Path, fail: bool
) -> None:
    """A segment that disappears once listed is an error or recorded; mapped ones stay."""
    with log_of(tmp_path, [message("t", b"x" * 100) for _ in range(200)]) as wal:
        second = int(segment_files(tmp_path)[1].stem)
        losses: list[Loss] = []
        found = columnar.batches(tmp_path, fail_on_data_loss=fail, losses=losses, batch_rows=5)
        seen = [next(found)]
        retain_from(wal, 120)
        first = wal.first_id
        if fail:
            with pytest.raises(DataLossError):
                list(found)
            return
        seen += found
    assert [*range(1, second), *range(first, 201)] == offsets_of(pa.Table.from_batches(seen))
    assert (second, first - 1) == (losses[0].first_id, losses[-1].last_id)
    assert all(a.last_id + 1 == b.first_id for a, b in pairwise(losses))


def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    """Even a missing index is rebuilt in memory only."""
    write_log(tmp_path, mixed(200))
    expected = columnar.read(tmp_path, headers=True)
    for path in tmp_path.glob("wal/*.idx"):
        path.unlink()
    before = sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))

    assert expected == columnar.read(tmp_path, headers=True)
    assert before == sorted((p, p.stat().st_mtime_ns) for p in tmp_path.rglob("*"))


def test_a_datetime_is_the_same_as_its_microseconds(tmp_path: Path) -> None:
    """One without a time zone is refused."""
    write_log(tmp_path, [message("t", b"x", i * 1_000_000) for i in range(100)])
    moment = datetime(1970, 1, 1, 0, 1, tzinfo=UTC)

    assert 60_000_000 == microseconds(moment)
    assert list(range(61, 101)) == offsets_of(columnar.read(tmp_path, start_time=moment))
    with pytest.raises(ConfigError, match="time zone"):
        columnar.read(tmp_path, start_time=datetime(1970, 1, 1))  # noqa: DTZ001 - it is refused


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ({"topics": "t"}, "list of names"),
        ({"topics": ["t"], "pattern": "t"}, "together with"),
        ({"pattern": "("}, "regular expression"),
        ({"columns": ["payload"]}, "no column 'payload'"),
        ({"columns": ["topic", "topic"]}, "twice"),
        ({"start": -1}, "not be negative"),
        ({"end": -1}, "not be negative"),
        ({"batch_rows": 0}, "at least 1"),
        ({"batch_bytes": 0}, "between 1"),
    ],
)
def test_invalid_arguments_are_refused_by_name(
    mixed_log: Path, wanted: dict[str, Any], problem: str
) -> None:
    """The error says which argument it is, before anything is read."""
    with pytest.raises(ConfigError, match=problem):
        columnar.batches(mixed_log, **wanted)


def test_a_path_without_a_log_is_refused(tmp_path: Path) -> None:
    """A wrong directory is not an empty log; a new log is."""
    with pytest.raises(ConfigError, match="not a data directory"):
        columnar.read(tmp_path)
    open_log(tmp_path).close()
    assert 0 == columnar.read(tmp_path).num_rows
    assert (1, 1) == columnar.offsets(tmp_path)


def test_counts_of_topics_come_from_the_index(mixed_log: Path) -> None:
    """Messages and payload bytes of each topic, in a range of ids."""
    expected: dict[str, tuple[int, int]] = {}
    for row in plain_rows(mixed_log):
        if 100 <= row["offset"] < 300:
            count, size = expected.get(row["topic"], (0, 0))
            expected[row["topic"]] = count + 1, size + len(row["value"])

    assert expected == columnar.topic_counts(mixed_log, start=100, end=300)


def test_a_reader_beside_a_writer_and_retention_never_reads_short(tmp_path: Path) -> None:
    """At any moment, rows and losses together are exactly the range."""
    wal = open_log(tmp_path)
    write(wal, [message("t", b"%d" % i) for i in range(1, 8)])

    def grow() -> None:
        for number in range(8, 4_000, 7):
            write(wal, [message("t", b"%d" % i) for i in range(number, number + 7)])
            if number % 5 == 0:
                retain_from(wal, number - 200)

    writer = Thread(target=grow)
    writer.start()
    rounds = 0
    while writer.is_alive() or not rounds:
        start, end = columnar.offsets(tmp_path)
        losses: list[Loss] = []
        found = columnar.read(
            tmp_path, start=start, end=end, fail_on_data_loss=False, losses=losses
        )
        lost = [i for loss in losses for i in range(loss.first_id, loss.last_id + 1)]
        assert list(range(start, end)) == sorted(lost + offsets_of(found))
        assert [b"%d" % i for i in offsets_of(found)] == found["value"].to_pylist()
        rounds += 1
    writer.join()
    wal.close()
    assert rounds > 1


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    """Arrow holds about a batch at a time, however long the log is."""
    bodies = [message("t", b"x" * 10_000) for _ in range(1_000)]
    write_log(tmp_path, bodies, segment_bytes=2**20, batch=100)
    before = pa.total_allocated_bytes()
    held = [
        pa.total_allocated_bytes() - before
        for _ in columnar.batches(tmp_path, batch_bytes=100_000)
    ]

    assert len(held) > 100
    assert max(held) < 1_000_000


@pytest.mark.asyncio
async def test_the_log_of_a_running_broker_can_be_read(tmp_path: Path) -> None:
    """A reader needs no lock, and sees what the broker has committed."""
    async with (
        running_broker(data_dir=tmp_path) as broker,
        braidmq.connect(broker.url()) as client,
    ):
        await client.publish_many("live", [b"%d" % number for number in range(20)])
        found = columnar.read(tmp_path, topics=["live"])

    assert [b"%d" % i for i in range(20)] == found["value"].to_pylist()
    assert {"blip"} == set(found["origin"].to_pylist())
    assert Disk(tmp_path).exists("wal/durable")


def test_an_unknown_argument_is_refused(tmp_path: Path) -> None:
    """A misspelt filter would let everything through."""
    write_log(tmp_path, [message("t", b"x")])
    misspelt: Any = {"topic": ["t"]}

    for read in (columnar.read, columnar.batches, columnar.DirectoryLog.read):
        log: Any = columnar.open_log(tmp_path) if "Log" in read.__qualname__ else tmp_path
        with pytest.raises(TypeError, match="no argument 'topic': topics, pattern"):
            read(log, **misspelt)
