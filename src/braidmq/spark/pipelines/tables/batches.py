"""Publish the staged files of a batch: one record decides, then each file gets its name.

1. The tasks have staged their files (`staging`): complete, durable, and invisible to readers.
2. A record, `<batch>.intent`, is made durable: from now on exactly these files are the batch.
3. Each file is renamed into the table; the directories are synced.
4. The record is renamed to `<batch>.done`, and the staging directory is deleted.

Killed before 2, readers see nothing of the batch, and it is staged again. Killed later, readers
see some of its files, each once, and a repeat continues from the record, even if it would split
its rows differently by then. A file keeps its name and rows until a compaction replaces it.
"""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from uuid import uuid4

import msgspec

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.tables.staging import StagedFile
from braidmq.wal.disk import Disk, replace_file

STATE: Final = "_table"
"""The directory of records and staged files in a table; readers skip names with `_`."""

RECORDS: Final = f"{STATE}/batches"
STAGING: Final = f"{STATE}/staging"
RECORDS_KEPT: Final = 100
"""As many batches as Spark keeps offsets of; it cannot repeat an older one."""

DEFAULT_NAME: Final = "rows"
INTENT: Final = "intent"
DONE: Final = "done"
QUERY: Final = "query"


class ForeignBatchError(BraidError):
    """The table was written by another query, or by this one with another checkpoint."""

    def __init__(self, out: Path, batch_id: int, problem: str) -> None:
        super().__init__(
            f"{out}: batch {batch_id} {problem}; "
            "use the checkpoint that belongs to it, or an empty --out"
        )
        self.out = out
        self.batch_id = batch_id


class Batch(NamedTuple):
    """A micro-batch of a query: where it ends and starts, as its checkpoint says it."""

    query_id: str
    batch_id: int
    end: str = ""
    start: str = ""


class Move(msgspec.Struct, frozen=True):
    """A staged file and its name in the table."""

    staged: str
    file: str
    rows: int


class Record(msgspec.Struct, frozen=True, rename={"end": "place"}):  # as on disk
    """The decision what a batch consists of."""

    query_id: str
    batch_id: int
    end: str
    stage: str
    moves: tuple[Move, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(move.rows for move in self.moves)


class Batches:
    """The batches of one writer of a table; *name* distinguishes several writers."""

    def __init__(self, root: Path, name: str = "") -> None:
        self.root = root
        self.name = name
        self._disk = Disk(root)
        self._records = f"{RECORDS}/{name or DEFAULT_NAME}"
        self._staging = f"{STAGING}/{name or DEFAULT_NAME}"

    def decided(self, batch: Batch) -> Record | None:
        """Return the record of a batch; None if it is new.

        Raises:
            ForeignBatchError: The table has the batch with another end, or later batches.
        """
        known = self._known()
        newest = max(known, default=-1)
        if newest < 0:
            return None
        record = self._read(newest, known)
        if record.query_id != batch.query_id:
            problem = f"belongs to the query {record.query_id}"
            raise ForeignBatchError(self.root, newest, problem)
        if newest < batch.batch_id:
            return None
        if newest > batch.batch_id:
            problem = f"is repeated, but batch {newest} is already written"
            raise ForeignBatchError(self.root, batch.batch_id, problem)
        if record.end != batch.end:
            problem = f"is written up to {record.end!r}, but should end at {batch.end!r}"
            raise ForeignBatchError(self.root, newest, problem)
        return record

    def claim(self, batch: Batch) -> None:
        """Record which query owns the table, for a format that keeps its own batch records.

        Raises:
            ForeignBatchError: Another query owns it.
        """
        path = f"{self._records}/{QUERY}"
        if not self._disk.exists(path):
            (self.root / self._records).mkdir(parents=True, exist_ok=True)
            replace_file(self._disk, path, batch.query_id.encode())
        owner = (self.root / path).read_text()
        if owner != batch.query_id:
            problem = f"would follow batches of the query {owner}"
            raise ForeignBatchError(self.root, batch.batch_id, problem)

    def new_stage(self) -> Path:
        """Return an empty directory for staged files; delete those of earlier attempts."""
        open_stages = {record.stage for record in self.open_records()}
        for name in self._disk.list_dir(self._staging):
            if name not in open_stages:
                shutil.rmtree(self.root / self._staging / name, ignore_errors=True)
        stage = self.root / self._staging / uuid4().hex
        stage.mkdir(parents=True)
        return stage

    def decide(self, batch: Batch, stage: Path, files: Sequence[StagedFile]) -> Record:
        """Make the decision durable that *files*, which are in *stage*, are the batch."""
        moves = tuple(
            Move(file.staged, f"{file.directory}/{name}".lstrip("/"), file.rows)
            for file, name in zip(files, self.names(batch.batch_id, files), strict=True)
        )
        record = Record(batch.query_id, batch.batch_id, batch.end, stage.name, moves)
        (self.root / self._records).mkdir(parents=True, exist_ok=True)
        # A record must never be durable without the files it names: sync every directory on the
        # way to both before the record is written.
        stages = (f"{self._staging}/{stage.name}", self._staging, STAGING)
        for directory in (*stages, RECORDS, STATE, ""):
            self._disk.sync_dir(directory)
        path = self._path(batch.batch_id, INTENT)
        replace_file(self._disk, path, msgspec.json.encode(record))
        return record

    def names(self, batch_id: int, files: Sequence[StagedFile]) -> Iterator[str]:
        """Yield a name for each file, unique in its directory."""
        counts: Counter[str] = Counter()
        for file in files:
            yield file_name(batch_id, self.name, counts[file.directory])
            counts[file.directory] += 1

    def finish(self, record: Record) -> bool:
        """Rename every file into the table; if a staged file is gone, undo and return False."""
        if self._known().get(record.batch_id) == DONE:
            return True
        stage = f"{self._staging}/{record.stage}"
        directories = set()
        for move in record.moves:
            target = self.root / move.file
            # Not staged but in the table: an attempt that was killed has renamed it. In
            # neither place: it was deleted from outside.
            if self._disk.exists(f"{stage}/{move.staged}"):
                target.parent.mkdir(parents=True, exist_ok=True)
                self._disk.rename(f"{stage}/{move.staged}", move.file)
            elif not target.exists():
                self._undo(record)
                return False
            directories.add(target.parent)
        # Durable in their directories before the record says done; new directories have to be
        # durable in theirs.
        parents = {parent for path in directories for parent in (path, *path.parents)}
        for path in {self.root} | {path for path in parents if path.is_relative_to(self.root)}:
            self._disk.sync_dir(str(path.relative_to(self.root)))
        self._disk.rename(
            self._path(record.batch_id, INTENT), self._path(record.batch_id, DONE)
        )
        self._disk.sync_dir(self._records)
        shutil.rmtree(self.root / stage, ignore_errors=True)
        self._forget()
        return True

    def _undo(self, record: Record) -> None:
        # Staged files were deleted from outside. Unpublish first, and remove the record last: a
        # crash in between finds the record and undoes the rest.
        for move in record.moves:
            (self.root / move.file).unlink(missing_ok=True)
        self._disk.unlink(self._path(record.batch_id, INTENT))
        self._disk.sync_dir(self._records)

    def has_records(self) -> bool:
        """Tell whether there is a record of any batch."""
        return bool(self._known())

    def open_records(self) -> list[Record]:
        """Return the batches with an intent that is not done; there is at most one."""
        known = self._known()
        return [self._read(n, known) for n, kind in known.items() if kind == INTENT]

    def _forget(self) -> None:
        done = sorted(n for n, kind in self._known().items() if kind == DONE)
        for batch_id in done[:-RECORDS_KEPT]:
            self._disk.unlink(self._path(batch_id, DONE))

    def _known(self) -> dict[int, str]:
        found = {}
        for name in self._disk.list_dir(self._records):
            number, _, kind = name.partition(".")
            if number.isdigit() and kind in {INTENT, DONE}:
                found[int(number)] = kind
        return found

    def _path(self, batch_id: int, kind: str) -> str:
        return f"{self._records}/{batch_id:010d}.{kind}"

    def _read(self, batch_id: int, known: dict[int, str]) -> Record:
        path = self.root / self._path(batch_id, known[batch_id])
        return msgspec.json.decode(path.read_bytes(), type=Record)


def file_name(batch_id: int, writer: str, part: int) -> str:
    """Return the name of a file of a batch; `compaction` reads such names."""
    return f"batch-{batch_id:010d}{f'-{writer}' if writer else ''}-{part:04d}.parquet"
