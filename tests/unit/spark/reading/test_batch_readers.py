"""The batch reader, called as Spark calls it."""

import operator
import pickle
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    GreaterThan,
    InputPartition,
    LessThan,
    StringStartsWith,
)
from pyspark.sql.types import BinaryType, StructField, StructType

from braidmq.broker.records import encode_clock
from braidmq.columnar import endpoint
from braidmq.spark.reading.offsets import LostOffsetsError
from braidmq.spark.reading.readers import BatchReader, FilteringBatchReader
from braidmq.spark.values import OptionError
from tests.unit.columnar.logs import message, plain_rows, write_log
from tests.unit.spark.running import Running
from tests.unit.spark.sources import (
    batch_reader,
    logged_losses,
    read_batch,
    read_parts,
    stream_reader,
    varied,
)


def test_the_same_range_gives_the_same_rows(tmp_path: Path) -> None:
    """However often it is read."""
    path = write_log(tmp_path, varied(200))
    reader = batch_reader(path, includeHeaders=True, startingOffsets=20, endingOffsets=150)
    expected = [row for row in plain_rows(path) if 20 <= row["offset"] < 150]

    assert expected == read_parts(reader, reader.partitions())
    assert expected == read_parts(reader, reader.partitions())


def test_a_task_knows_the_filters(tmp_path: Path) -> None:
    """Spark pickles the reader before it asks for partitions, and sends both to tasks."""
    path = write_log(tmp_path, varied(100))
    reader = batch_reader(path)
    reader.pushFilters([EqualTo(("topic",), "a")])
    shipped = pickle.loads(pickle.dumps(reader))  # noqa: S301 - our own, as Spark does it
    parts = pickle.loads(pickle.dumps(reader.partitions()))  # noqa: S301 - as above

    assert {"a"} == {row["topic"] for row in read_parts(shipped, parts)}


CHOICES: list[dict[str, object]] = [
    {},
    {"startingOffsets": 20, "endingOffsets": 150, "minPartitions": 4},
    {"subscribe": "a,データ"},
    {"subscribePattern": "dlq.*|sensors/.*", "targetPartitionBytes": 500},
    {"startingTimestamp": 30, "endingTimestamp": 60},
    {"subscribe": "a,b", "startingOffsets": '{"a":{"0":50},"b":{"0":-2}}'},
    {"subscribe": "nowhere"},
]


@pytest.mark.parametrize("options", CHOICES)
def test_an_endpoint_gives_the_rows_of_the_directory(
    full_broker: Running, options: dict[str, object]
) -> None:
    """Row for row, whatever the options select, in a reader that was sent to a task."""
    remote = batch_reader(None, None, **full_broker.options(includeHeaders=True, **options))
    local = batch_reader(full_broker.path, None, includeHeaders=True, **options)
    shipped = pickle.loads(pickle.dumps(remote))  # noqa: S301 - our own, as Spark does it
    parts = remote.partitions()

    assert local.partitions() == parts
    assert read_parts(local, parts) == read_parts(shipped, parts)


def test_filters_are_pushed_down_over_the_network_too(full_broker: Running) -> None:
    """Timestamps are looked up in the log."""
    given = full_broker.options(includeHeaders=True)
    moment = datetime(1970, 1, 1, 0, 0, 0, 40_000, UTC)
    filters = [StringStartsWith(("topic",), "dlq."), GreaterThan(("timestamp",), moment)]
    expected = [
        row
        for row in plain_rows(full_broker.path)
        if row["topic"].startswith("dlq.") and row["timestamp"] >= moment
    ]

    assert expected == read_batch(None, None, filters, **given)


def test_a_prefix_of_too_many_topics_is_left_to_spark(
    full_broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names do not fit in a request, so all topics are read and nothing fails."""
    monkeypatch.setattr(endpoint, "NAMES_BYTES_MAX", 10)
    prefix = StringStartsWith(("topic",), "dlq.")
    reader = batch_reader(None, None, **full_broker.options(includeHeaders=True))

    assert [prefix] == list(reader.pushFilters([prefix]))
    assert plain_rows(full_broker.path) == read_parts(reader, reader.partitions())


def test_a_subscription_to_too_many_topics_is_refused(
    full_broker: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the option and says what to do."""
    monkeypatch.setattr(endpoint, "NAMES_BYTES_MAX", 10)
    for option, value in {"subscribe": "a,sensors/temp", "subscribePattern": ".*"}.items():
        reader = batch_reader(None, None, **full_broker.options(**{option: value}))
        with pytest.raises(OptionError, match=rf"option {option}: '.*' wants more .*; choose"):
            reader.partitions()


def test_no_partitions_give_no_rows(tmp_path: Path) -> None:
    """Spark then makes up a partition of its own."""
    reader = batch_reader(write_log(tmp_path, varied(5)), subscribe="nowhere")

    assert [] == list(reader.partitions())
    assert [] == list(reader.read(InputPartition(None)))


def test_a_read_past_the_end_of_the_log_is_empty_when_loss_is_tolerated(tmp_path: Path) -> None:
    """The loss is logged; otherwise it is an error."""
    path = write_log(tmp_path, varied(50))

    with logged_losses() as problems:
        assert [] == read_batch(path, startingOffsets=5000, failOnDataLoss=False)
    assert ["the log ends at 51, before the offset 5000; it may be another log"] == problems
    with pytest.raises(LostOffsetsError, match="the log ends at 51, before the offset 5000"):
        read_batch(path, startingOffsets=5000)


def test_timestamps_select_rows(tmp_path: Path) -> None:
    """The end is exclusive; varied() has one message for each millisecond."""
    path = write_log(tmp_path, varied(100))
    rows = read_batch(path, startingTimestamp=30, endingTimestamp=60, includeHeaders=True)

    assert plain_rows(path)[0]["timestamp"] < rows[0]["timestamp"]
    assert [row for row in plain_rows(path) if 31 <= row["offset"] < 61] == rows


def stepped_back() -> list[bytes]:
    """100 messages of a clock that is right, 100 of one in the future, 100 of it corrected."""
    future = 10_000_000
    bodies = [message("t", b"x" * 50, number * 1_000) for number in range(100)]
    bodies += [encode_clock(future, future)]
    bodies += [message("t", b"y" * 50, future + number * 1_000) for number in range(100)]
    bodies += [encode_clock(-future, 200_000)]
    bodies += [message("t", b"z" * 50, number * 1_000) for number in range(200, 300)]
    return bodies


TIMES: list[dict[str, Any]] = [
    {"endingTimestamp": 250},
    {"startingTimestamp": 50},
    {"startingTimestamp": 150},
    {"startingTimestamp": 50, "endingTimestamp": 260},
    {"startingTimestamp": 5_000, "endingTimestamp": 10_020},
]


@pytest.mark.parametrize("options", TIMES, ids=str)
def test_timestamps_select_rows_whatever_the_clock_did(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """All rows between the two, and no others, also where their times went back."""
    path = write_log(tmp_path, stepped_back())
    since = at_ms(options.get("startingTimestamp", 0))
    before = at_ms(options.get("endingTimestamp", 10**9))
    expected = [row["offset"] for row in plain_rows(path) if since <= row["timestamp"] < before]

    assert expected == [row["offset"] for row in read_batch(path, **options)]
    only_values = read_batch(path, StructType([StructField("value", BinaryType())]), **options)
    assert len(expected) == len(only_values) > 0
    assert {"value"} == set(only_values[0])


def test_a_filter_by_time_narrows_no_row_away(tmp_path: Path) -> None:
    """Spark filters what is left, so the range may have more, but never less."""
    path = write_log(tmp_path, stepped_back())
    for kind, holds in ((LessThan, operator.lt), (GreaterThan, operator.gt)):
        reader = batch_reader(path)
        reader.pushFilters([kind(("timestamp",), at_ms(250))])
        found = {row["offset"] for row in read_parts(reader, reader.partitions())}
        wanted = [row for row in plain_rows(path) if holds(row["timestamp"], at_ms(250))]
        assert found >= {row["offset"] for row in wanted}


def test_a_stream_begins_with_the_first_message_since_a_timestamp(tmp_path: Path) -> None:
    """From there on it has every message, whatever their times are."""
    path = write_log(tmp_path, stepped_back())

    assert {"offset": 102, "begin": 102} == stream_reader(
        path, startingTimestamp=150
    ).initialOffset()


def at_ms(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def test_only_the_filtering_reader_takes_filters() -> None:
    """Spark rejects a reader that defines the method while its configuration is off."""
    assert BatchReader.pushFilters is DataSourceReader.pushFilters
    assert FilteringBatchReader.pushFilters is not DataSourceReader.pushFilters
