"""The checkpoint of a query, as Spark writes it."""

from pathlib import Path

import pytest

from braidmq.spark.pipelines.runs.checkpoints import Checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    (tmp_path / "metadata").write_text('{"id":"3f0b34a7-7a1c"}')
    (tmp_path / "offsets" / "0").write_text(
        'v1\n{"batchWatermarkMs":0,"batchTimestampMs":17}\n{"offset": 101}\n{"offset": 7}'
    )
    (tmp_path / "commits" / "0").touch()
    return Checkpoint(tmp_path)


def test_the_end_is_what_the_sources_say(checkpoint: Checkpoint) -> None:
    """Not what Spark notes besides, as the time of day."""
    assert '{"offset": 101} {"offset": 7}' == checkpoint.end(0)


def test_a_batch_begins_where_the_one_before_ends(checkpoint: Checkpoint) -> None:
    """The first one has none."""
    assert "" == checkpoint.start(0)
    assert checkpoint.end(0) == checkpoint.start(1)


def test_a_batch_that_was_not_planned_has_no_end(checkpoint: Checkpoint) -> None:
    """It cannot be written, then."""
    with pytest.raises(FileNotFoundError):
        checkpoint.end(1)


def test_a_query_is_known_by_its_checkpoint(checkpoint: Checkpoint) -> None:
    """For as long as there is one."""
    assert "3f0b34a7-7a1c" == checkpoint.query_id()


def test_a_batch_is_committed_when_spark_says_so(checkpoint: Checkpoint) -> None:
    """It does not come again then."""
    assert (True, False) == (checkpoint.is_committed(0), checkpoint.is_committed(1))
