"""Compaction: many small files become few, and a reader always sees each row once."""

import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from braidmq.spark.pipelines.tables import compaction
from braidmq.spark.pipelines.tables.batches import Batch, Batches
from braidmq.spark.pipelines.tables.compaction import CannotExchangeError, compact, exchange
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


def test_each_directory_ends_up_with_one_file_and_the_same_rows(out: Path) -> None:
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
    """The process was killed."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_each_row_is_seen_once_if_killed_at_the_exchange(
    out: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Before it nothing has changed, after it everything; the next compaction cleans up."""

    def die(one: Path, other: Path) -> None:
        if when == "after":
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


def test_later_batches_are_merged_in_turn(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A merged file that is small is merged again."""
    compact(out)
    batches = Batches(out)
    assert batches.decided(Batch("query", BATCHES - 1, "")) is not None
    batches.finish(decide(batches, BATCHES, [rows(BATCHES * 10, 10)]))

    assert list(range((BATCHES + 1) * 10)) == seen(out)
    assert 0 == compact(out)
    monkeypatch.setattr(compaction, "FILES_MIN", 2)
    assert 6 == compact(out)
    assert list(range((BATCHES + 1) * 10)) == seen(out)
    assert {"merged-0000000000-0000000009-0000.parquet"} == {f.name for f in files_of(out)}


def place_files(directory: Path, names: list[str], large: str = "") -> None:
    """Write files of one row each, with consecutive offsets; the *large* one has many."""
    directory.mkdir(parents=True, exist_ok=True)
    first = sum(len(offsets_of(file)) for file in directory.iterdir())
    for name in names:
        count = 2000 if name == large else 1
        pq.write_table(pa.table({"offset": range(first, first + count)}), directory / name)
        first += count


def offsets_of(file: Path) -> list[int]:
    found: list[int] = pq.ParquetFile(file).read().column("offset").to_pylist()
    return found


def offsets_in_file_order(directory: Path) -> list[int]:
    """Concatenate the offsets of all files, in the order of their first offsets."""
    files = sorted(map(offsets_of, directory.iterdir()), key=lambda offsets: offsets[0])
    return [offset for offsets in files for offset in offsets]


def batch_files(numbers: range, part: int = 0) -> list[str]:
    return [f"batch-{number:010d}-{part:04d}.parquet" for number in numbers]


def test_rows_keep_their_order_through_any_number_of_compactions(tmp_path: Path) -> None:
    """Rows merged earlier stay before newer ones, although the file names sort otherwise."""
    directory = tmp_path / "out" / "date=2026-01-01"
    for first in range(0, 32, 8):
        place_files(directory, batch_files(range(first, first + 8)))
        assert 1 == compact(tmp_path / "out")

        (file,) = directory.iterdir()
        assert list(range(first + 8)) == offsets_of(file)


def test_a_large_file_is_left_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is linked, not read; the files before it and after it are merged separately."""
    directory = tmp_path / "out" / "date=2026-01-01"
    names = batch_files(range(10))
    names[5:5] = batch_files(range(4, 5), part=1)
    place_files(directory, names, large=names[4])
    monkeypatch.setattr(compaction, "SMALL_BYTES_MAX", 4000)
    inode = (directory / names[4]).stat().st_ino

    assert 1 == compact(tmp_path / "out")
    expected = [names[4], f"merged-{0:010d}-{3:010d}-0000.parquet"]
    expected += [f"merged-{4:010d}-{9:010d}-0001.parquet"]
    assert expected == sorted(file.name for file in directory.iterdir())
    assert inode == (directory / names[4]).stat().st_ino
    assert list(range(2010)) == offsets_in_file_order(directory)
    place_files(directory, batch_files(range(10, 18)))
    assert 1 == compact(tmp_path / "out")
    assert list(range(2018)) == offsets_in_file_order(directory)
    assert 0 == compact(tmp_path / "out")


def test_each_of_several_writers_keeps_its_order(tmp_path: Path) -> None:
    """Their batches have the same numbers, and one may be far behind another."""
    directory = tmp_path / "out" / "date=2026-01-01"
    directory.mkdir(parents=True)
    written: dict[str, int] = {"a": 0, "b": 0, "0000000007": 0}
    for step, writer in enumerate(["a", "a", "b", "a", "0000000007", "b", "a", "b"]):
        for _ in range(8):
            number = written[writer]
            written[writer] += 1
            row = pa.table({"writer": [writer], "offset": [number]})
            pq.write_table(row, directory / f"batch-{number:010d}-{writer}-0000.parquet")
        assert 1 == compact(tmp_path / "out"), step

    (file,) = directory.iterdir()
    rows = pq.ParquetFile(file).read().to_pylist()
    for writer, count in written.items():
        assert list(range(count)) == [r["offset"] for r in rows if r["writer"] == writer]


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    """Compaction cannot know where their rows belong."""
    directory = tmp_path / "out" / "date=2026-01-01"
    place_files(directory, [*batch_files(range(8)), "mine.parquet"])

    assert 1 == compact(tmp_path / "out")
    assert list(range(9)) == offsets_in_file_order(directory)
    assert [8] == offsets_of(directory / "mine.parquet")


def test_any_number_of_files_is_merged_with_few_of_them_open(tmp_path: Path) -> None:
    """A day of ten-second batches has thousands."""
    directory = tmp_path / "out" / "date=2026-01-01"
    place_files(directory, batch_files(range(80)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    now_open = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (now_open + 20, hard))
    try:
        assert 1 == compact(tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert list(range(80)) == offsets_in_file_order(directory)


NO_ROOM_BESIDE = {"a mount point": "out", "a long name": "o" * 250}


@pytest.mark.parametrize("name", NO_ROOM_BESIDE.values(), ids=NO_ROOM_BESIDE)
@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_a_table_with_no_room_beside_it_is_compacted_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, when: str
) -> None:
    """In a hidden directory, which readers skip and the next compaction cleans up."""
    out = tmp_path / name
    place_files(out / "date=2026-01-01", batch_files(range(8)))
    if len(name) < 10:  # a file is in the way, as if the parent were on another file system
        (tmp_path / f".{name}.compaction").write_text("")

    def die(one: Path, other: Path) -> None:
        assert out in one.parents
        if when != "before":
            exchange(one, other)
        if when != "never":
            raise KilledError

    monkeypatch.setattr(compaction, "exchange", die)
    with suppress(KilledError):
        compact(out)
    monkeypatch.undo()
    assert list(range(8)) == sorted(pq.read_table(out).column("offset").to_pylist())
    compact(out)

    assert list(range(8)) == offsets_in_file_order(out / "date=2026-01-01")
    assert 1 == len(files_of(out))


def test_a_link_to_a_table_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is beside the link may be on another disk."""
    place_files(tmp_path / "far" / "out" / "date=2026-01-01", batch_files(range(8)))
    (tmp_path / "near").mkdir()
    (tmp_path / "near" / "link").symlink_to(tmp_path / "far" / "out")
    used = []

    def recording(one: Path, other: Path) -> None:
        used.append(one)
        exchange(one, other)

    monkeypatch.setattr(compaction, "exchange", recording)
    assert 1 == compact(tmp_path / "near" / "link")
    assert [tmp_path / "far"] == [end.parents[1] for end in used]
    assert list(range(8)) == offsets_in_file_order(tmp_path / "far" / "out" / "date=2026-01-01")


def test_a_table_with_an_unfinished_batch_is_left_alone(out: Path) -> None:
    """Its files would go into a directory that no longer belongs to the table."""
    batches = Batches(out)
    record = decide(batches, BATCHES, [rows(BATCHES * 10, 10)])

    assert 0 == compact(out)
    batches.finish(record)
    assert list(range((BATCHES + 1) * 10)) == seen(out)


def test_files_of_an_older_schema_are_merged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns that they lack are null."""
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
    """Memory does not grow with the size of the merge."""
    monkeypatch.setattr(compaction, "ROW_GROUP_BYTES", 1)
    before = seen_rows(out)
    compact(out)

    assert BATCHES == pq.ParquetFile(files_of(out)[0]).metadata.num_row_groups
    assert before == seen_rows(out)


def test_a_failed_exchange_says_what_to_do(tmp_path: Path) -> None:
    """It leaves everything as it was."""
    (tmp_path / "one").mkdir()

    with pytest.raises(CannotExchangeError, match=r"No such file.*; leave --compact out"):
        exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one").exists()
