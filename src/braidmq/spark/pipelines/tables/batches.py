"""What becomes of a batch's staged files: one record decides, then each gets its name.

1. The tasks have staged their files (`staging`): whole, on the disk, seen by nobody.
2. One record is made durable, `<batch>.intent`: from now on exactly these files are the batch.
3. Each file gets its name in the table by one rename; the directories are made durable.
4. The record is renamed to `<batch>.done`, and the staging directory goes.

Killed before 2, nothing of the batch is seen, and it is staged anew. Killed later, what is seen
of it is right and is seen once, and a repeat goes on with the record, however it would cut its
rows by then. A file keeps its name and its rows until a compaction takes it away.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

import msgspec

from braidmq.base.errors import BraidError
from braidmq.spark.pipelines.tables.staging import StagedFile
from braidmq.wal.disk import Disk
from braidmq.wal.files import replace_file

STATE: Final = "_table"
"""The directory of records and staged files in a table's root; readers pass over `_` names."""

RECORDS: Final = f"{STATE}/batches"
STAGING: Final = f"{STATE}/staging"
RECORDS_KEPT: Final = 100
"""As many as Spark keeps the offsets of; a batch that is older cannot come again."""

DEFAULT_NAME: Final = "rows"
INTENT: Final = "intent"
DONE: Final = "done"
QUERY: Final = "query"


class ForeignBatchError(BraidError):
    """A table has been written by another query, or by this one with another checkpoint."""

    def __init__(self, out: Path, batch_id: int, problem: str) -> None:
        super().__init__(
            f"{out}: batch {batch_id} {problem}; "
            "use the checkpoint that belongs to it, or an empty --out"
        )
        self.out = out
        self.batch_id = batch_id


class Move(msgspec.Struct, frozen=True):
    """A staged file and its name in the table."""

    staged: str
    file: str
    rows: int


class Record(msgspec.Struct, frozen=True):
    """A batch, as it was decided on."""

    query_id: str
    batch_id: int
    place: str
    stage: str
    moves: tuple[Move, ...]

    @property
    def rows(self) -> int:
        """The rows of all files."""
        return sum(move.rows for move in self.moves)


class Batches:
    """The batches of one writer of a table: *name* tells several writers apart."""

    def __init__(self, root: Path, name: str = "") -> None:
        self.root = root
        self.name = name
        self._disk = Disk(root)
        self._records = f"{RECORDS}/{name or DEFAULT_NAME}"
        self._staging = f"{STAGING}/{name or DEFAULT_NAME}"

    def decided(self, query_id: str, batch_id: int, place: str) -> Record | None:
        """Return what was decided for a batch; None: it is new.

        Raises:
            ForeignBatchError: The table has the batch with other rows, or later ones.
        """
        known = self._known()
        newest = max(known, default=-1)
        if newest >= 0 and (other := self._read(newest, known)).query_id != query_id:
            raise ForeignBatchError(self.root, newest, f"is of the query {other.query_id}")
        if newest > batch_id:
            problem = f"comes again, but batch {newest} is written already"
            raise ForeignBatchError(self.root, batch_id, problem)
        if newest < batch_id:
            return None
        record = self._read(batch_id, known)
        if record.place != place:
            problem = f"is written up to {record.place!r}, and should be up to {place!r}"
            raise ForeignBatchError(self.root, batch_id, problem)
        return record

    def claim(self, query_id: str, batch_id: int) -> None:
        """Note whose table it is, for a format that has records of its own.

        Raises:
            ForeignBatchError: It is another query's.
        """
        path = f"{self._records}/{QUERY}"
        if not self._disk.exists(path):
            (self.root / self._records).mkdir(parents=True, exist_ok=True)
            replace_file(self._disk, path, query_id.encode())
        owner = (self.root / path).read_text()
        if owner != query_id:
            raise ForeignBatchError(self.root, batch_id, f"follows some of the query {owner}")

    def new_stage(self) -> Path:
        """Return an empty directory for staged files; those of earlier attempts go."""
        open_stages = {record.stage for record in self.open_records()}
        for name in self._disk.list_dir(self._staging):
            if name not in open_stages:
                shutil.rmtree(self.root / self._staging / name, ignore_errors=True)
        stage = self.root / self._staging / uuid4().hex
        stage.mkdir(parents=True)
        return stage

    def decide(
        self,
        query_id: str,
        batch_id: int,
        place: str,
        stage: Path,
        files: Sequence[StagedFile],
    ) -> Record:
        """Make it durable that *files*, which are in *stage*, are the batch."""
        moves = tuple(
            Move(file.staged, f"{file.directory}/{name}".lstrip("/"), file.rows)
            for file, name in zip(files, self.names(batch_id, files), strict=True)
        )
        record = Record(query_id, batch_id, place, stage.name, moves)
        (self.root / self._records).mkdir(parents=True, exist_ok=True)
        # What lies on the way to the record and to what it names, or it could be lost alone.
        stages = (f"{self._staging}/{stage.name}", self._staging, STAGING)
        for directory in (*stages, RECORDS, STATE, ""):
            self._disk.sync_dir(directory)
        replace_file(self._disk, self._path(batch_id, INTENT), msgspec.json.encode(record))
        return record

    def names(self, batch_id: int, files: Sequence[StagedFile]) -> Iterator[str]:
        """Yield a name for each file that no other file of its directory has."""
        name = f"-{self.name}" if self.name else ""
        counts: dict[str, int] = {}
        for file in files:
            part = counts.get(file.directory, 0)
            counts[file.directory] = part + 1
            yield f"batch-{batch_id:010d}{name}-{part:04d}.parquet"

    def finish(self, record: Record) -> bool:
        """Give every file its name; False: a staged file is gone, so the batch is undone."""
        if self._known().get(record.batch_id) == DONE:
            return True
        stage = f"{self._staging}/{record.stage}"
        directories = set()
        for move in record.moves:
            target = self.root / move.file
            if self._disk.exists(f"{stage}/{move.staged}"):
                target.parent.mkdir(parents=True, exist_ok=True)
                self._disk.rename(f"{stage}/{move.staged}", move.file)
            elif not target.exists():
                self._undo(record)
                return False
            directories.add(target.parent)
        for directory in _with_parents(directories, self.root):
            self._disk.sync_dir(str(directory.relative_to(self.root)))
        self._disk.rename(
            self._path(record.batch_id, INTENT), self._path(record.batch_id, DONE)
        )
        self._disk.sync_dir(self._records)
        shutil.rmtree(self.root / stage, ignore_errors=True)
        self._forget()
        return True

    def _undo(self, record: Record) -> None:
        # Somebody has cleaned up among staged files. First goes what has its name already.
        for move in record.moves:
            (self.root / move.file).unlink(missing_ok=True)
        self._disk.unlink(self._path(record.batch_id, INTENT))
        self._disk.sync_dir(self._records)

    def has_records(self) -> bool:
        """Return whether a batch was decided on here."""
        return bool(self._known())

    def open_records(self) -> list[Record]:
        """Return the batches that are decided on and not finished; there is one at most."""
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


def _with_parents(directories: set[Path], root: Path) -> set[Path]:
    found = {root}
    for directory in directories:
        while directory != root:
            found.add(directory)
            directory = directory.parent  # noqa: PLW2901 - it walks upwards
    return found
