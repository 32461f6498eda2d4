"""Reads of a running broker's log whose small files are damaged: all rows, or an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from braidmq.base.errors import BraidError, DamagedLogError, LogReadError
from braidmq.columnar.flight.failures import EndpointFailedError
from braidmq.spark.reading.readers import StreamReader
from tests.unit.columnar.logs import Row, message, segment_files, write_log
from tests.unit.spark.running import Running, running
from tests.unit.spark.sources import batch_reader, read_batch, read_parts, stream_reader

MARK: Final = "wal/durable"
OFFSETS: Final = list(range(1, 201))


def flipped(content: bytes) -> list[bytes]:
    return [bytes([*content[:i], content[i] ^ 4, *content[i + 1 :]]) for i in (0, 7, 11)]


def by_flight(broker: Running) -> list[int]:
    with broker.endpoint() as log:
        return [row["offset"] for row in log.read().to_pylist()]


def by_spark(broker: Running) -> list[int]:
    return offsets(read_batch(broker.path))


def by_spark_over_flight(broker: Running) -> list[int]:
    return offsets(read_batch(None, endpoint=broker.address, apiKey="dev-key"))


def by_a_stream(broker: Running) -> list[int]:
    return streamed(stream_reader(broker.path, startingOffsets="earliest"))


def by_a_stream_over_flight(broker: Running) -> list[int]:
    return streamed(stream_reader(None, **broker.options(startingOffsets="earliest")))


def streamed(reader: StreamReader) -> list[int]:
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    return offsets(read_parts(reader, reader.partitions(start, end)))


def offsets(rows: list[Row]) -> list[int]:
    return [row["offset"] for row in rows]


# An endpoint says what failed in the words of the broker's error.
READS: dict[str, tuple[Callable[[Running], list[int]], type[BraidError]]] = {
    "flight": (by_flight, EndpointFailedError),
    "spark": (by_spark, LogReadError),
    "spark over flight": (by_spark_over_flight, EndpointFailedError),
    "a stream": (by_a_stream, LogReadError),
    "a stream over flight": (by_a_stream_over_flight, EndpointFailedError),
}


def filled(path: Path) -> Path:
    return write_log(path, [message("t", b"x" * 100) for _ in OFFSETS])


@pytest.mark.parametrize("name", READS)
def test_a_mark_that_is_not_whole_is_an_error_of_every_read(tmp_path: Path, name: str) -> None:
    """Flipped, cut, empty or missing while the broker runs; whole again, all rows are there."""
    read, error = READS[name]
    with running(filled(tmp_path)) as broker:
        mark = broker.path / MARK
        whole = mark.read_bytes()
        assert OFFSETS == read(broker)
        for content in (*flipped(whole), whole[:7], b"", bytes(12), None):
            mark.unlink()
            if content is not None:
                mark.write_bytes(content)
            with pytest.raises(error, match=MARK):
                read(broker)
        mark.write_bytes(whole)
        assert OFFSETS == read(broker)


def test_a_task_does_not_go_by_a_mark_that_was_damaged_after_the_plan(tmp_path: Path) -> None:
    """Executors read it again."""
    path = filled(tmp_path)
    reader = batch_reader(path)
    parts = reader.partitions()
    (path / MARK).write_bytes(b"")

    with pytest.raises(LogReadError, match=MARK):
        read_parts(reader, parts)


@pytest.mark.parametrize("name", READS)
def test_oldest_segments_that_are_missing_are_damage_to_every_read(
    tmp_path: Path, name: str
) -> None:
    """Of a running broker, as of a directory: not fewer rows."""
    read, _ = READS[name]
    with running(filled(tmp_path)) as broker:
        for path in segment_files(broker.path)[:2]:
            path.unlink()
        with pytest.raises(DamagedLogError, match="missing segment"):
            read(broker)
