"""Batches are written exactly once, wherever the process is killed."""

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from braidmq.spark.pipelines.tables import batches as module
from braidmq.spark.pipelines.tables.batches import DONE, INTENT, Batch, Batches
from braidmq.spark.pipelines.tables.batches import ForeignBatchError as Foreign
from braidmq.wal.disk import Disk
from tests.unit.spark.pipelines.written import decide, rows, seen, seen_rows

FIRST = [rows(0, 20)]
SECOND = [rows(20, 12), rows(32, 8)]
SECOND_CUT_DIFFERENTLY = [rows(20, 20)]
"""Fewer files than before, so that overwriting the old names would not be enough."""


class KilledError(BaseException):
    """The process was killed."""


class MortalDisk(Disk):
    """A disk that kills its user before a call that changes something."""

    calls_left = 10**9

    def _die(self) -> None:
        if MortalDisk.calls_left == 0:
            raise KilledError
        MortalDisk.calls_left -= 1

    def rename(self, old: str, new: str) -> None:
        self._die()
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        self._die()
        super().sync_dir(path)

    def unlink(self, path: str) -> None:
        self._die()
        super().unlink(path)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[MortalDisk]]:
    monkeypatch.setattr(module, "Disk", MortalDisk)
    yield MortalDisk
    MortalDisk.calls_left = 10**9


def write(out: Path, batch_id: int, tables: list[pa.Table], end: str = "") -> None:
    """Write a batch as a table does, in one process."""
    batches = Batches(out)
    record = batches.decided(Batch("query", batch_id, end))
    if record is None or not batches.finish(record):
        batches.finish(decide(batches, batch_id, tables, end))


def steps_of(out: Path) -> int:
    """Count the calls at which the process can be killed."""
    before = MortalDisk.calls_left = 10**6
    write(out, 0, FIRST)
    return before - MortalDisk.calls_left


def test_a_batch_is_seen_when_it_is_written(tmp_path: Path) -> None:
    """Its files carry its number, and nothing is left in the staging directory."""
    write(tmp_path, 7, FIRST)
    names = {file.name for file in tmp_path.glob("date=*/*/*")}

    assert list(range(20)) == seen(tmp_path)
    assert {"batch-0000000007-0000.parquet"} == names
    assert [] == list((tmp_path / "_table" / "staging" / "rows").iterdir())


@pytest.mark.slow
def test_each_row_is_seen_once_wherever_the_write_is_killed(
    tmp_path: Path, mortal: type[MortalDisk]
) -> None:
    """Never twice, and in the end all rows, even if the repeat cuts its files differently."""
    steps = steps_of(tmp_path / "counted")
    finals = set()
    for step in range(steps):
        out = tmp_path / str(step)
        out.mkdir()
        write(out, 0, FIRST)
        mortal.calls_left = step
        with pytest.raises(KilledError):
            write(out, 1, SECOND)
        mortal.calls_left = 10**9
        after = seen(out)
        assert len(after) == len(set(after))
        assert set(range(20)) <= set(after) <= set(range(40))
        assert after == [row["offset"] for row in seen_rows(out)]
        finals.add(len(after))

        write(out, 1, SECOND_CUT_DIFFERENTLY)
        assert list(range(40)) == seen(out)

    assert {20, 40} < finals  # some were killed in the middle of their renames
    assert steps > 12


class RecordingDisk(Disk):
    """A disk that records its syncs and renames in order."""

    calls: ClassVar[list[tuple[str, str]]] = []

    def rename(self, old: str, new: str) -> None:
        RecordingDisk.calls.append(("rename", new))
        super().rename(old, new)

    def sync_dir(self, path: str) -> None:
        RecordingDisk.calls.append(("sync", path))
        super().sync_dir(path)


def test_the_directories_of_a_record_are_durable_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut that lost a directory would lose the record and leave the files."""
    monkeypatch.setattr(module, "Disk", RecordingDisk)
    monkeypatch.setattr(RecordingDisk, "calls", [])
    write(tmp_path, 0, FIRST)
    decided = RecordingDisk.calls.index(
        ("rename", f"{module.RECORDS}/rows/0000000000.{INTENT}")
    )
    durable = {path for what, path in RecordingDisk.calls[:decided] if what == "sync"}

    directories = {"", module.STATE, module.RECORDS, module.STAGING, f"{module.STAGING}/rows"}
    assert directories < durable
    assert 1 == sum(path.startswith(f"{module.STAGING}/rows/") for path in durable)
    assert ("sync", f"{module.RECORDS}/rows") == RecordingDisk.calls[decided + 1]


def test_a_repeated_batch_changes_nothing(tmp_path: Path) -> None:
    """Whatever rows it has; the files are not even touched."""
    write(tmp_path, 0, FIRST, "up to 20")
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")}
    write(tmp_path, 0, SECOND, "up to 20")

    assert list(range(20)) == seen(tmp_path)
    assert before == {file: file.stat().st_mtime_ns for file in tmp_path.rglob("*.parquet")}


def test_a_batch_whose_staged_files_were_deleted_is_written_again(
    tmp_path: Path, mortal: type[MortalDisk]
) -> None:
    """Files already in place are removed first: late rows are better than duplicates."""
    write(tmp_path, 0, FIRST)
    batches = Batches(tmp_path)
    record = decide(batches, 1, SECOND)
    mortal.calls_left = 3
    with pytest.raises(KilledError):
        batches.finish(record)
    mortal.calls_left = 10**9
    assert 20 < len(seen(tmp_path)) < 40
    for file in (tmp_path / "_table" / "staging").rglob("*.staged"):
        file.unlink()

    assert not Batches(tmp_path).finish(record)
    assert list(range(20)) == seen(tmp_path)
    write(tmp_path, 1, SECOND)
    assert list(range(40)) == seen(tmp_path)


def test_another_query_is_refused(tmp_path: Path) -> None:
    """Its batches have the same numbers but other rows."""
    write(tmp_path, 3, FIRST)

    with pytest.raises(Foreign, match=r"batch 3 belongs to the query query; .*an empty --out"):
        Batches(tmp_path).decided(Batch("other", 4, ""))


def test_a_checkpoint_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    """A batch that ends elsewhere, or is repeated after later ones, has other rows."""
    write(tmp_path, 3, FIRST, "20")

    with pytest.raises(Foreign, match=r"batch 3 is written up to '20', but .* at '30'"):
        Batches(tmp_path).decided(Batch("query", 3, "30"))
    with pytest.raises(Foreign, match=r"batch 2 is repeated, but batch 3 is already written"):
        Batches(tmp_path).decided(Batch("query", 2, "10"))


def test_writers_of_one_table_are_told_apart_by_name(tmp_path: Path) -> None:
    """Each has its own batches, and its files carry its name."""
    one, other = Batches(tmp_path, "one"), Batches(tmp_path, "other")
    one.finish(decide(one, 0, FIRST))
    other.finish(decide(other, 0, SECOND))

    assert list(range(40)) == seen(tmp_path)
    assert {"one", "other"} == {f.name.split("-")[2] for f in tmp_path.rglob("*.parquet")}


def test_leftovers_of_failed_attempts_are_removed(tmp_path: Path) -> None:
    """But not what a decided batch still needs."""
    batches = Batches(tmp_path)
    abandoned = batches.new_stage()
    record = decide(batches, 0, FIRST)
    stage = batches.new_stage()

    assert (False, True) == (abandoned.exists(), stage.exists())
    assert [record] == batches.open_records()
    assert batches.finish(record)
    assert [] == batches.open_records()


def test_records_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that old cannot be repeated."""
    monkeypatch.setattr(module, "RECORDS_KEPT", 4)
    for batch_id in range(7):
        write(tmp_path, batch_id, [rows(batch_id, 1)])
    kept = sorted(path.name for path in (tmp_path / "_table" / "batches" / "rows").iterdir())

    assert 4 == len(kept)
    assert f"0000000003.{DONE}" == kept[0]
    assert not any(name.endswith(INTENT) for name in kept)
