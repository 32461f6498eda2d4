"""How many messages a batch has, against a plain count of the log."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from braidmq.spark.pipelines.runs.queries import Batch
from braidmq.spark.pipelines.runs.ranges import messages_of
from braidmq.spark.reading.offsets import LostOffsetsError
from braidmq.wal.wal import Wal
from tests.unit.columnar.logs import NOTE, log_of, message, plain_rows, retain_from

TOPICS = ("a", "b", "a", "c")


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    """Ids from 1 to 200; some are of no message."""
    bodies = [NOTE if n % 10 == 9 else message(TOPICS[n % 4], b"x" * 60) for n in range(200)]
    with log_of(tmp_path, bodies) as found:
        yield found


def batch(end: dict[str, Any], before: dict[str, Any] | None = None) -> Batch:
    return Batch("query", 1, json.dumps(end), "" if before is None else json.dumps(before))


def plain_count(path: Path, first: int, behind: int, *topics: str) -> int:
    found = [row for row in plain_rows(path) if first <= row["offset"] < behind]
    return sum(row["topic"] in topics for row in found)


@pytest.mark.usefixtures("wal")
def test_a_batch_has_what_the_log_has_of_its_topics(tmp_path: Path) -> None:
    """From behind the batch before it; the first one from where the query began."""
    source = {"path": str(tmp_path), "startingOffsets": "earliest"}
    later = batch({"offset": 150}, {"offset": 20})
    first = batch({"offset": 90, "begin": 30})

    for topics in (("a",), ("b", "c")):
        wanted = {**source, "subscribe": ",".join(topics)}
        assert plain_count(tmp_path, 20, 150, *topics) == messages_of(wanted, later)
        assert plain_count(tmp_path, 30, 90, *topics) == messages_of(wanted, first)
    pattern = {**source, "subscribePattern": "[ab]"}
    assert plain_count(tmp_path, 20, 150, "a", "b") == messages_of(pattern, later)
    assert 0 == messages_of(pattern, batch({"offset": 20}, {"offset": 20}))
    assert messages_of(source, batch({"offset": 20})) is None


@pytest.mark.usefixtures("wal")
def test_what_a_topic_has_before_its_own_beginning_is_not_of_the_batch(tmp_path: Path) -> None:
    """As the checkpoint says it; a topic that is not wanted does not count."""
    source = {"path": str(tmp_path), "startingOffsets": "earliest", "subscribe": "a,b"}
    floors = {"b": 60, "c": 70}
    begun = batch({"offset": 100, "begin": 10, "floors": floors})
    expected = plain_count(tmp_path, 10, 100, "a") + plain_count(tmp_path, 60, 100, "b")
    assert expected == messages_of(source, begun)

    still = batch({"offset": 50, "begin": 10, "floors": floors})
    assert plain_count(tmp_path, 10, 50, "a") == messages_of(source, still)


def test_what_is_lost_is_an_error_or_not_counted(wal: Wal, tmp_path: Path) -> None:
    """As it is for the read."""
    retain_from(wal, 100)
    source = {"path": str(tmp_path), "startingOffsets": "earliest", "subscribe": "a"}
    lost = batch({"offset": 150}, {"offset": 5})
    left = plain_count(tmp_path, 5, 150, "a")

    with pytest.raises(LostOffsetsError):
        messages_of(source, lost)
    assert left == messages_of({**source, "failOnDataLoss": "false"}, lost)
    assert 0 < left < 50
