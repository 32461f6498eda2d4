"""The streaming reader, called as Spark calls it."""

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
)

from braidmq.spark.offsets import LostOffsetsError
from braidmq.spark.stream import StreamReader
from tests.unit.columnar.logs import Row, log_of, message, plain_rows, retain_from, write_log
from tests.unit.spark.sources import read_parts, stream_reader, varied

ALL = ReadAllAvailable()


def run(reader: StreamReader, limit: ReadLimit) -> list[list[Row]]:
    """Micro-batches until nothing is left, as Trigger.AvailableNow does it."""
    reader.prepareForTriggerAvailableNow()
    at, found = reader.initialOffset(), []
    while (end := reader.latestOffset(at, limit)) != at:
        found.append(read_parts(reader, reader.partitions(at, end)))
        at = end
    return found


@pytest.mark.parametrize(
    ("options", "limit"),
    [
        ({"maxOffsetsPerTrigger": 30}, ReadMaxRows(30)),
        ({"maxBytesPerTrigger": 100}, ReadMaxBytes(100)),
        ({}, ReadAllAvailable()),
    ],
)
def test_micro_batches_have_every_message_once(
    tmp_path: Path, options: dict[str, int], limit: ReadLimit
) -> None:
    """In order, and none has more than its limit."""
    path = write_log(tmp_path, varied(200))
    reader = stream_reader(path, startingOffsets="earliest", includeHeaders=True, **options)
    batches = run(reader, reader.getDefaultReadLimit())

    assert limit == reader.getDefaultReadLimit()
    assert plain_rows(path) == [row for batch in batches for row in batch]
    if isinstance(limit, ReadMaxRows):
        assert all(len(batch) == 30 for batch in batches[:-1])
    if isinstance(limit, ReadMaxBytes):
        assert all(sum(len(row["value"]) for row in batch) <= 100 for batch in batches)


def test_the_limit_is_that_of_the_engine(tmp_path: Path) -> None:
    """Trigger.Once asks for everything, whatever the options say."""
    path = write_log(tmp_path, varied(200))
    reader = stream_reader(path, startingOffsets="earliest", maxOffsetsPerTrigger=3)

    assert {"offset": 201} == reader.latestOffset(reader.initialOffset(), ALL)


def test_available_now_ends_with_what_there_was(tmp_path: Path) -> None:
    """What comes while the query runs is for the next one; a plain query goes on."""
    with log_of(tmp_path, varied(50)) as log:
        now = stream_reader(tmp_path, startingOffsets="earliest")
        on = stream_reader(tmp_path, startingOffsets="earliest")
        now.prepareForTriggerAvailableNow()
        first = [r.latestOffset({"offset": 1}, ALL) for r in (now, on)]
        log.append(varied(10, 50))
        log.commit(1)
        second = [r.latestOffset({"offset": 51}, ALL) for r in (now, on)]

        assert [{"offset": 51}] * 2 == first
        assert [{"offset": 51}, {"offset": 61}] == second
        assert {"offset": 61} == now.reportLatestOffset()


def test_a_query_that_is_past_the_target_stays_where_it_is(tmp_path: Path) -> None:
    """It can be: batches that were planned before a restart are run first."""
    with log_of(tmp_path, varied(50)) as log:
        reader = stream_reader(tmp_path, startingOffsets="earliest")
        reader.prepareForTriggerAvailableNow()
        reader.latestOffset({"offset": 1}, ALL)
        log.append(varied(10, 50))
        log.commit(1)

        assert {"offset": 58} == reader.latestOffset({"offset": 58}, ALL)


def test_what_is_not_durable_is_not_seen(tmp_path: Path) -> None:
    """Spark has only what a power cut cannot take back."""
    with log_of(tmp_path, varied(50)) as log:
        log.append(varied(10, 50))  # and no commit
        reader = stream_reader(tmp_path, startingOffsets="earliest")

        assert {"offset": 51} == reader.latestOffset({"offset": 1}, ALL)


def test_the_beginning_is_looked_up_once(tmp_path: Path) -> None:
    """Spark asks twice for it, and retention may come between."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(100)]) as log:
        reader = stream_reader(tmp_path, startingOffsets="earliest")
        before = reader.initialOffset()
        retain_from(log, 60)

        assert {"offset": 1} == before == reader.initialOffset()


@pytest.mark.parametrize("fail", [True, False])
def test_a_log_that_ends_before_the_checkpoint_is_a_loss(tmp_path: Path, fail: bool) -> None:
    """It is another log, or was cut; to wait in silence would look like health."""
    path = write_log(tmp_path, varied(50))
    reader = stream_reader(path, startingOffsets="earliest", failOnDataLoss=fail)
    if fail:
        with pytest.raises(LostOffsetsError, match="the log ends at 51, before the offset 99"):
            reader.latestOffset({"offset": 99}, ALL)
    else:
        assert {"offset": 99} == reader.latestOffset({"offset": 99}, ALL)


@pytest.mark.parametrize("fail", [True, False])
def test_a_first_batch_whose_end_retention_has_passed_is_a_loss(
    tmp_path: Path, fail: bool
) -> None:
    """It is planned again after a restart, from a beginning that has moved."""
    path = write_log(tmp_path, varied(50))
    reader = stream_reader(path, startingOffsets="earliest", failOnDataLoss=fail)
    if fail:
        with pytest.raises(LostOffsetsError, match="before 20 are lost: the log begins at 30"):
            reader.partitions({"offset": 30}, {"offset": 20})
    else:
        assert [] == reader.partitions({"offset": 30}, {"offset": 20})


def test_topics_own_beginnings_hold_for_the_stream(tmp_path: Path) -> None:
    """Kafka's JSON, with a number for each topic."""
    path = write_log(tmp_path, varied(100))
    own = '{"a":{"0":50},"b":{"0":-2}}'
    reader = stream_reader(path, subscribe="a,b", startingOffsets=own, includeHeaders=True)
    (rows,) = run(reader, ALL)

    assert rows == [
        row
        for row in plain_rows(path)
        if row["topic"] == "b" or (row["topic"] == "a" and row["offset"] >= 50)
    ]
