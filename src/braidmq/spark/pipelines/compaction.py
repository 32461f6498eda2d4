"""Compaction: the small files of a directory become few, and one rename shows them.

1. A directory beside the table gets the merged file, and links to the large ones.
2. It and the directory in the table exchange their names: one rename, for all files at once.
3. What is outside now is deleted.

Killed before 2, the table is as it was; killed later, as it is. What is left beside the table
is deleted by the next one. A table is compacted by the process that writes it, when no batch is
between its record and its last rename.
"""

import ctypes
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from braidmq.base.errors import BraidError
from braidmq.base.limits import MIB
from braidmq.spark.pipelines.batches import INTENT, RECORDS
from braidmq.wal.disk import Disk

FILES_MIN: Final = 8
"""So many small files of one directory make it worth the while."""

SMALL_BYTES_MAX: Final = 64 * MIB
ROW_GROUP_BYTES: Final = 64 * MIB
BATCH_ROWS: Final = 16_384
SUFFIX: Final = ".compaction"
"""Of the directory beside the table. Not in it: some readers look into hidden directories."""

_BATCHES: Final = re.compile(r"(?:batch|merged)-(\d{10})(?:-(\d{10}))?-")
_AT_FDCWD: Final = -100
_RENAME_EXCHANGE: Final = 2


class CannotExchangeError(BraidError):
    """A file system cannot let two directories exchange their names."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"{path}: the file system cannot exchange two directories ({reason}); "
            "leave --compact out"
        )
        self.path = path


def compact(root: Path) -> int:
    """Merge small files in each directory of the table at *root*; return how many had them.

    Raises:
        CannotExchangeError: The file system is too simple.
        OSError: The disk fails.
    """
    beside = root.parent / f".{root.name}{SUFFIX}"
    shutil.rmtree(beside, ignore_errors=True)
    if any((root / RECORDS).glob(f"*/*.{INTENT}")):
        return 0
    done = 0
    for directory, files in _directories(root):
        small = [file for file in files if file.stat().st_size <= SMALL_BYTES_MAX]
        if len(small) >= FILES_MIN:
            _replace(directory, files, small, beside)
            done += 1
    shutil.rmtree(beside, ignore_errors=True)
    return done


def _directories(root: Path) -> Iterator[tuple[Path, list[Path]]]:
    for directory, names, files in os.walk(root):
        names[:] = sorted(name for name in names if not name.startswith(("_", ".")))
        found = sorted(Path(directory, name) for name in files if name.endswith(".parquet"))
        if found and not names and Path(directory) != root:  # with nothing else in it
            yield Path(directory), found


def _replace(
    directory: Path, files: Sequence[Path], small: Sequence[Path], beside: Path
) -> None:
    beside.mkdir(exist_ok=True)
    new = beside / "new"
    new.mkdir()
    for file in files:
        if file not in small:
            (new / file.name).hardlink_to(file)
    _merge(small, new / _merged_name(small, new))
    disk = Disk(beside)
    disk.sync_dir(new.name)
    exchange(new, directory)
    disk.sync_dir(str(directory.parent))
    shutil.rmtree(new)


def _merged_name(files: Sequence[Path], taken: Path) -> str:
    numbers = [int(n) for file in files for n in _numbers(file.name)]
    first, last = min(numbers, default=0), max(numbers, default=0)
    names = (f"merged-{first:010d}-{last:010d}-{part:04d}.parquet" for part in count())
    return next(name for name in names if not (taken / name).exists())


def _numbers(name: str) -> list[str]:
    found = _BATCHES.match(name)
    return [] if found is None else [number for number in found.groups() if number]


def _merge(files: Sequence[Path], target: Path) -> None:
    """Write the rows of *files* into one, a row group at a time."""
    sources = [pq.ParquetFile(file) for file in files]
    schema = pa.unify_schemas([source.schema_arrow for source in sources])
    with pq.ParquetWriter(target, schema) as writer:
        for group in _groups(sources, schema):
            writer.write_table(group)
    rows = pq.read_metadata(target).num_rows
    assert rows == sum(source.metadata.num_rows for source in sources)
    file = Disk(target.parent).open(target.name, write=False, create=False)
    file.fsync()
    file.close()


def _groups(sources: Sequence[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    waiting: list[pa.Table] = []
    for source in sources:
        for batch in source.iter_batches(BATCH_ROWS):
            waiting.append(_with_all_columns(pa.Table.from_batches([batch]), schema))
            if sum(table.nbytes for table in waiting) >= ROW_GROUP_BYTES:
                yield pa.concat_tables(waiting)
                waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _with_all_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


def exchange(one: Path, other: Path) -> None:
    """Let two directories exchange their names, in one step.

    Raises:
        CannotExchangeError: The file system cannot do it, or one is not there.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        raise CannotExchangeError(other, "the C library does not know it")
    names = os.fsencode(one), os.fsencode(other)
    if rename(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) != 0:
        raise CannotExchangeError(other, os.strerror(ctypes.get_errno()))
