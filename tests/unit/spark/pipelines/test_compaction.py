"""Small files become few, and a reader sees each row once before and after."""

from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.spark.pipelines import compaction
from braidmq.spark.pipelines.batches import Batches
from braidmq.spark.pipelines.compaction import CannotExchangeError, compact, exchange
from tests.unit.spark.pipelines.written import decide, rows, seen, seen_rows

BATCHES: Final = 9


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A table of nine batches, each with a file in each of six directories."""
    batches = Batches(tmp_path / "out")
    for number in range(BATCHES):
        batches.finish(decide(batches, number, [rows(number * 10, 10)]))
    return tmp_path / "out"


def files_of(out: Path) -> list[Path]:
    return sorted(out.rglob("*.parquet"))


def test_a_directory_has_one_file_and_the_same_rows(out: Path) -> None:
    """In order, and nothing is left beside the table."""
    before = seen_rows(out)
    assert 6 * BATCHES == len(files_of(out))

    assert 6 == compact(out)
    assert before == seen_rows(out)
    assert list(range(BATCHES * 10)) == seen(out)
    assert {"merged-0000000000-0000000008-0000.parquet"} == {f.name for f in files_of(out)}
    assert [out] == list(out.parent.iterdir())
    for file in files_of(out):
        offsets = pq.ParquetFile(file).read().column("offset").to_pylist()
        assert sorted(offsets) == offsets


class KilledError(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "behind"])
def test_killed_at_its_one_rename_each_row_is_seen_once(
    out: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before it nothing has happened, behind it everything; the next one tidies up."""

    def die(one: Path, other: Path) -> None:
        if when == "behind":
            exchange(one, other)
        raise KilledError

    before = seen_rows(out)
    monkeypatch.setattr(compaction, "exchange", die)
    with pytest.raises(KilledError):
        compact(out)
    monkeypatch.undo()

    merged = [file for file in files_of(out) if file.name.startswith("merged")]
    assert (0 if when == "before" else 1) == len(merged)
    assert before == seen_rows(out)
    assert (6 if when == "before" else 5) == compact(out)
    assert before == seen_rows(out)
    assert [out] == list(out.parent.iterdir())


def test_batches_go_on_behind_it_and_are_merged_in_turn(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merged file that is small is merged again."""
    compact(out)
    batches = Batches(out)
    assert batches.decided("query", BATCHES - 1, "") is not None
    batches.finish(decide(batches, BATCHES, [rows(BATCHES * 10, 10)]))

    assert list(range((BATCHES + 1) * 10)) == seen(out)
    assert 0 == compact(out)
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    assert 6 == compact(out)
    assert list(range((BATCHES + 1) * 10)) == seen(out)
    assert {"merged-0000000000-0000000009-0000.parquet"} == {f.name for f in files_of(out)}


def test_large_files_stay_as_they_are(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are linked into the new directory, and not read."""
    directory = min(out.glob("date=*/*"))
    large = rows(1000, 2000, 1).drop_columns("date")
    pq.write_table(large, directory / "batch-0000000003-0001.parquet")
    monkeypatch.setattr(compaction, "SMALL_BYTES_MAX", 4000)
    inode = (directory / "batch-0000000003-0001.parquet").stat().st_ino
    before = seen_rows(out)

    assert 6 == compact(out)
    assert inode == (directory / "batch-0000000003-0001.parquet").stat().st_ino
    assert 2 == len(list(directory.iterdir()))
    assert before == seen_rows(out)


def test_a_table_with_an_unfinished_batch_is_left_alone(out: Path) -> None:
    """Its files would go into a directory that is not the table's any more."""
    batches = Batches(out)
    record = decide(batches, BATCHES, [rows(BATCHES * 10, 10)])

    assert 0 == compact(out)
    batches.finish(record)
    assert list(range((BATCHES + 1) * 10)) == seen(out)


def test_files_of_an_older_schema_are_merged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they lack is null."""
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    directory = tmp_path / "out" / "date=2026-01-01"
    directory.mkdir(parents=True)
    pq.write_table(pa.table({"a": [1]}), directory / "batch-0000000000-0000.parquet")
    pq.write_table(
        pa.table({"b": ["x"], "a": [2]}), directory / "batch-0000000001-0000.parquet"
    )
    compact(tmp_path / "out")
    found = pq.ParquetFile(files_of(tmp_path)[0]).read()

    assert [{"a": 1, "b": None}, {"a": 2, "b": "x"}] == found.to_pylist()


def test_row_groups_are_bounded(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with what is merged."""
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 1)
    before = seen_rows(out)
    compact(out)

    assert BATCHES == pq.ParquetFile(files_of(out)[0]).metadata.num_row_groups
    assert before == seen_rows(out)


def test_a_name_that_is_taken_is_not_taken_again(tmp_path: Path) -> None:
    """Writers of one directory may have batches of the same numbers."""
    small = [Path("batch-0000000000-a-0000.parquet"), Path("batch-0000000002-b-0000.parquet")]
    first = "merged-0000000000-0000000002-0000.parquet"
    assert first == compaction._merged_name(small, tmp_path)  # noqa: SLF001 - a rare clash
    (tmp_path / first).touch()
    assert first.replace("-0000.", "-0001.") == compaction._merged_name(small, tmp_path)  # noqa: SLF001 - as above


def test_a_file_system_that_cannot_says_so(tmp_path: Path) -> None:
    """As any failure of the exchange: nothing has changed."""
    (tmp_path / "one").mkdir()

    with pytest.raises(CannotExchangeError, match=r"No such file.*; leave --compact out"):
        exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one").exists()
