"""Compaction: merge the small files of a directory, and publish them with one rename.

1. A directory beside the table gets the merged files, and hard links to the other files.
2. It and the directory in the table exchange their names: one rename, for all files at once.
3. The old directory, now outside the table, is deleted.

Killed before 2, the table is unchanged; killed after it, the table is compacted. Either way the
next compaction deletes what is left. The process that writes a table also compacts it, and only
while no batch is between its record and its last rename.

Rows keep their order, within files and across files: only neighbours are merged, and the merged
file takes the position of the first one. See `BatchFile`.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.base.errors import BraidError
from braidmq.base.limits import MIB
from braidmq.spark.pipelines.tables.batches import INTENT, RECORDS, STATE
from braidmq.wal.disk import Disk

FILES_MIN: Final = 8
"""The fewest small files in one directory that are worth merging."""

SMALL_BYTES_MAX: Final = 64 * MIB
ROW_GROUP_BYTES: Final = 64 * MIB
BATCH_ROWS: Final = 16_384
SUFFIX: Final = ".compaction"
"""Suffix of the work directory, beside the table or, if need be, inside it."""

_UNFINISHED: Final = ".merging"
_WRITER_AND_PART: Final = r"(?:-(?P<writer>.+))?-(?P<part>\d+)\.parquet"
_BATCH: Final = re.compile(r"batch-(?P<number>\d+)" + _WRITER_AND_PART)
_MERGED: Final = re.compile(r"merged-(?P<number>\d+)-(?P<last>\d+)" + _WRITER_AND_PART)
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class CannotExchangeError(BraidError):
    """The file system cannot exchange the names of two directories."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: the file system cannot exchange two directories ({reason}); "
            "leave --compact out"
        )
        self.path = path


class BatchFile(NamedTuple):
    """A file of the table, sorted by the position of its rows, which its name tells.

        batch-<number>[-<writer>]-<part>.parquet            a file of a batch
        merged-<number>-<last>[-<writer>]-<part>.parquet    files of the batches number to last

    The batch numbers of one writer only grow. So its later files sort after its earlier ones,
    merged or not, and the files of several writers each keep their order.
    """

    number: int
    writer: str
    part: int
    last: int
    path: Path

    @classmethod
    def of(cls, path: Path) -> "BatchFile | None":
        """Return a file of the table; None if we did not name it."""
        found = _BATCH.fullmatch(path.name) or _MERGED.fullmatch(path.name)
        if found is None:
            return None
        named = found.groupdict()
        number = int(named["number"])
        last = int(named.get("last") or number)
        return cls(number, named["writer"] or "", int(named["part"]), last, path)

    def merged_name(self, last: int) -> str:
        """Return the name of a merged file that starts here and has batches up to *last*."""
        writer = f"-{self.writer}" if self.writer else ""
        return f"merged-{self.number:010d}-{last:010d}{writer}-{self.part:04d}.parquet"


def compact(root: Path) -> int:
    """Merge small files in each directory of the table at *root*; return how many it merged.

    Raises:
        CannotExchangeError: The file system cannot exchange directories.
        OSError: The disk fails.
    """
    root = root.resolve()
    _tidy(root)
    if any((root / RECORDS).glob(f"*/*.{INTENT}")):
        return 0
    found = [(directory, _runs(files)) for directory, files in _directories(root)]
    worth = [(d, runs) for d, runs in found if sum(map(len, runs)) >= FILES_MIN]
    if worth:
        work = _work_directory(root)
        for directory, runs in worth:
            _replace(directory, runs, work)
        _tidy(root)
    return len(worth)


def _work_directories(root: Path) -> tuple[Path, Path]:
    """Return the two possible work directories, inside the table and beside it."""
    return root / STATE / SUFFIX, root.parent / f".{root.name}{SUFFIX}"


def _tidy(root: Path) -> None:
    for directory in _work_directories(root):
        shutil.rmtree(directory, ignore_errors=True)


def _work_directory(root: Path) -> Path:
    """Make an empty directory on the file system of the table.

    No reader looks beside the table, so that is where it should be. If the table is a mount
    point, or its parent is not writable, the directory stays in the table, hidden. A reader
    that searches hidden directories may then see rows twice, for a moment around the rename.
    """
    inside, beside = _work_directories(root)
    inside.mkdir(parents=True)
    try:
        return inside.rename(beside)
    except OSError:
        return inside


def _directories(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    for directory, names, files in os.walk(root):
        is_leaf = not names and Path(directory) != root
        names[:] = sorted(name for name in names if not name.startswith(("_", ".")))
        if is_leaf:
            yield Path(directory), [Path(directory, name) for name in files]


def _runs(files: Sequence[Path]) -> list[list[BatchFile]]:
    """Return the runs of small files to merge: neighbours, with no large file between them."""
    runs: list[list[BatchFile]] = [[]]
    for file in sorted(filter(None, map(BatchFile.of, files))):
        if file.path.stat().st_size <= SMALL_BYTES_MAX:
            runs[-1].append(file)
        else:
            runs.append([])
    return [run for run in runs if len(run) > 1]


def _replace(directory: Path, runs: Sequence[Sequence[BatchFile]], work: Path) -> None:
    new = work / "new"
    new.mkdir()
    names = [_merged(run, new) for run in runs]
    gone = {file.path.name for run in runs for file in run}
    for file in directory.iterdir():
        if file.name not in gone:
            (new / file.name).hardlink_to(file)
    # Only now as .parquet: the work directory may be inside the table, and a reader that
    # searches hidden directories would see these rows twice while the merge runs.
    for name in names:
        (new / f"{name}{_UNFINISHED}").rename(new / name)
    disk = Disk(work)
    disk.sync_dir(new.name)
    exchange(new, directory)
    disk.sync_dir(str(directory.parent))
    shutil.rmtree(new)


def _merged(run: Sequence[BatchFile], new: Path) -> str:
    """Merge a run into a file with a temporary name; return the name it will get."""
    name = run[0].merged_name(max(file.last for file in run))
    _merge([file.path for file in run], new / f"{name}{_UNFINISHED}")
    return name


def _merge(files: Sequence[Path], target: Path) -> None:
    """Write the rows of *files* into one, holding one file and one row group at a time."""
    schemas, expected = [], 0
    for file in files:
        with pq.ParquetFile(file) as source:
            schemas.append(source.schema_arrow)
            expected += source.metadata.num_rows
    schema = pa.unify_schemas(schemas)
    with pq.ParquetWriter(target, schema) as writer:
        for group in _groups(files, schema):
            writer.write_table(group)
    assert pq.read_metadata(target).num_rows == expected
    opened = Disk(target.parent).open(target.name, write=False, create=False)
    opened.fsync()
    opened.close()


def _groups(files: Sequence[Path], schema: pa.Schema) -> Iterator[pa.Table]:
    def grouped() -> pa.Table:
        # The empty table puts columns in order, and into files from before a column existed.
        found = pa.concat_tables([schema.empty_table(), *waiting], promote_options="default")
        return found.cast(schema)

    waiting: list[pa.Table] = []
    size = 0
    for file in files:
        with pq.ParquetFile(file) as source:
            for batch in source.iter_batches(BATCH_ROWS):
                waiting.append(pa.Table.from_batches([batch]))
                size += batch.nbytes
                if size >= ROW_GROUP_BYTES:
                    yield grouped()
                    waiting, size = [], 0
    if waiting:
        yield grouped()


def exchange(one: Path, other: Path) -> None:
    """Exchange the names of two directories, atomically.

    Raises:
        CannotExchangeError: The file system cannot do it, or one does not exist.
    """
    # Through ctypes, because Python has no call for it. Two plain renames would leave a moment
    # in which the table has no such directory.
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise CannotExchangeError(other, "the C library has no renameat2")
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise CannotExchangeError(other, os.strerror(ctypes.get_errno()))
