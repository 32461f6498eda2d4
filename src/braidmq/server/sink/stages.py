"""Stages: rows that a client sent for a sink and that wait for their batch, in files.

    stages/<32 hex>.arrow
    +--------+-------+-------+-----+-----+---------+--------+-----+-------+
    | schema | batch | batch | ... | EOS | trailer | length | crc | magic |
    +--------+-------+-------+-----+-----+---------+--------+-----+-------+
    `-------- an Arrow IPC stream --------'   JSON     u32     u32  "BRAIDSTG"

The trailer holds the owner, the time of creation, offset, rows and CRC-32C of each batch, and
the topics, which are judged again when the stage is committed; `crc` is its own. A file gets
its final name only when all of it is on the disk. Methods may be called on any thread; nothing
here knows about commits, or an event loop.
"""

import secrets
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate
from typing import Final

import google_crc32c
import msgspec
import pyarrow as pa

from braidmq.base.errors import (
    NO_SPACE,
    DamagedStageError,
    LogFullError,
    NotAllowedError,
    UnknownStageError,
)
from braidmq.base.limits import MIB
from braidmq.broker.authorize import ADMIN, PUBLISH, Principal, authorize
from braidmq.broker.sinks import STAGE_ID_BYTES, Row
from braidmq.columnar.flight.requests import Stage
from braidmq.server.sink.staged_rows import SCHEMA, RowJudge
from braidmq.wal.disk import PASSING_ERRNOS, File, Files, read_all, write_all
from braidmq.wal.failures import failure_of

STAGES_DIR: Final = "stages"

BATCH_ROWS: Final = 1_000
"""Rows that are read back, and published, at once."""

BATCH_BYTES: Final = MIB
"""Bytes of those rows; a single row may be larger."""

FREE_BYTES_MIN: Final = 64 * MIB
"""Free space that stages leave on the disk: the log needs it more."""

TOPICS_KEPT_MAX: Final = 1_000
"""Topics that a trailer lists; for a stage with more, its rows are read."""

LIFE_US: Final = 24 * 3600 * 1_000_000
"""A stage that is not committed after a day is abandoned."""

_END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_MAGIC: Final = b"BRAIDSTG"
_TAIL_BYTES: Final = 4 + 4 + len(_MAGIC)
_SUFFIX: Final = ".arrow"
_UNFINISHED: Final = ".tmp"


class BatchAt(msgspec.Struct, frozen=True, array_like=True):
    """A batch and its place in the file."""

    at: int
    size: int
    rows: int
    crc: int


class Trailer(msgspec.Struct, frozen=True):
    """The description of a stage, at the end of its file."""

    principal: str
    created_us: int
    pieces: list[BatchAt]
    topics: int = -1  # how many names its rows have, or a few more; -1: an earlier version's
    name_bytes: int = -1  # and their length
    names: list[str] | None = None  # None: too many to list, or an earlier version's

    @property
    def rows(self) -> int:
        """The number of rows in the stage."""
        return sum(piece.rows for piece in self.pieces)


class _RowIndex:
    """Finds the batch of each row of a stage."""

    def __init__(self, stage_id: str, trailer: Trailer) -> None:
        self.stage_id = stage_id
        self._pieces = trailer.pieces
        self._ends = list(accumulate(piece.rows for piece in trailer.pieces))

    def find(self, row: int) -> tuple[BatchAt | None, int]:
        """Return the batch that holds a row, and the row's number in it; None after the end."""
        at = bisect_right(self._ends, row)
        if at == len(self._pieces):
            return None, 0
        return self._pieces[at], row - (self._ends[at] - self._pieces[at].rows)


class Stages:
    """The stages of one data directory."""

    def __init__(self, files: Files, *, now_us: Callable[[], int], step_us: int = 0) -> None:
        self._files = files
        self._step_us = step_us  # what a wrong clock added to the age of those that are there
        self._now_us = now_us
        self._lock = threading.Lock()
        self._writing: set[str] = set()
        self._row_index: _RowIndex | None = None  # of the stage that was read last
        self._has_directory = False
        # On a full disk it has to wait for the first stage; the broker does not wait for it.
        with suppress(OSError):
            self._make_directory()
        self._found = frozenset(files.list_dir(STAGES_DIR)) if step_us else frozenset()

    def _make_directory(self) -> None:
        self._files.make_dir(STAGES_DIR)
        self._files.sync_dir("")
        self._has_directory = True

    # For clients that write rows.

    def write(
        self,
        principal: Principal,
        topic: str | None,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
    ) -> Stage:
        """Store rows until they are committed or dropped; durable when this returns.

        *topic* overrides a column of that name. Errors that *batches* raises pass through.

        Raises:
            ConfigError: The columns are not those that a sink accepts.
            RefusedRowError: A row cannot be a message.
            NotAllowedError: A row's topic may not be published to.
            LogFullError: There is no room.
        """
        judge = RowJudge(schema, topic, lambda name: authorize(principal, PUBLISH, name))
        stage_id = secrets.token_hex(STAGE_ID_BYTES)
        with self._lock:
            self._writing.add(stage_id)
        try:
            self._write(stage_id, principal, judge, map(judge.staged, batches))
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                raise failure_of("writing a stage", error) from error
            raise
        finally:
            with self._lock:
                self._writing.discard(stage_id)
        return Stage(stage_id, judge.rows)

    def drop(self, ids: Iterable[str], principal: Principal) -> int:
        """Delete those stages that exist and belong to *principal*; return how many."""
        owned: list[str] = []
        for stage_id in ids:
            with suppress(UnknownStageError, DamagedStageError):
                if _owns(principal, self._trailer(stage_id)):
                    owned.append(stage_id)
        return self.remove(owned)

    # For the sink, which appends the rows to the log.

    def rows_of(self, stage_id: str, principal: Principal) -> int:
        """Return how many rows a stage has.

        Raises:
            UnknownStageError: There is no such stage.
            NotAllowedError: It belongs to another principal, or holds a row for a topic that
                *principal* may not publish to, or no longer.
            DamagedStageError: It cannot be read.
        """
        trailer = self._trailer(stage_id)
        if not _owns(principal, trailer):
            raise NotAllowedError("commit stage", stage_id)
        for topics in self._topics_of(stage_id, trailer):
            for topic in topics:
                if not authorize(principal, PUBLISH, topic):
                    raise NotAllowedError(PUBLISH, topic)
        return trailer.rows

    def names_of(self, stage_id: str) -> tuple[int, int]:
        """Return how many topics its rows have at most, and the bytes of their names.

        Each is -1 if the stage does not say. Raises as :meth:`rows_of`.
        """
        trailer = self._trailer(stage_id)
        return trailer.topics, trailer.name_bytes

    def topics_of(self, stage_id: str) -> Iterator[list[str]]:
        """Yield the topics of its rows, some at a time, each perhaps more than once.

        Raises as :meth:`read`.
        """
        yield from self._topics_of(stage_id, self._trailer(stage_id))

    def read(
        self,
        stage_id: str,
        from_row: int,
        count_max: int = BATCH_ROWS,
        bytes_max: int = BATCH_BYTES,
    ) -> list[Row]:
        """Return rows of one batch from *from_row* on, at least one; none at the end.

        At most *count_max* rows, with about *bytes_max* bytes of payload.

        Raises:
            UnknownStageError: There is no such stage.
            DamagedStageError: It cannot be read.
        """
        row_index = self._row_index
        if row_index is None or row_index.stage_id != stage_id:
            row_index = self._row_index = _RowIndex(stage_id, self._trailer(stage_id))
        piece, row = row_index.find(from_row)
        if piece is None:
            return []
        # All of a piece is read and verified for each call; pieces are as large as a chunk.
        batch = self._batch(stage_id, piece).slice(row, count_max)
        columns = [column.to_pylist() for column in batch.columns]
        found: list[Row] = []
        for topic, value, headers, priority in zip(*columns, strict=True):
            bytes_max -= len(value)
            if found and bytes_max < 0:
                break
            found.append((topic, value, headers, priority))
        return found

    def remove(self, ids: Iterable[str]) -> int:
        """Delete the files of those stages that exist; return how many."""
        count = 0
        for stage_id in ids:
            with suppress(FileNotFoundError):
                self._files.unlink(_path(stage_id))
                count += 1
        return count

    def expire(self, in_use: set[str]) -> int:
        """Delete stages that are older than a day and not *in_use*; return how many.

        Unfinished files of a crash are deleted too. A stage that cannot be read stays.
        """
        oldest_us = self._now_us() - LIFE_US
        expired: list[str] = []
        for name in self._files.list_dir(STAGES_DIR):
            stage_id, dot, suffix = name.partition(".")
            if dot + suffix == _SUFFIX + _UNFINISHED:
                self._remove_unfinished(stage_id)
            elif dot + suffix == _SUFFIX and stage_id not in in_use:
                with suppress(UnknownStageError, DamagedStageError):
                    moved_us = self._step_us if name in self._found else 0
                    if self._trailer(stage_id).created_us + moved_us < oldest_us:
                        expired.append(stage_id)
        return self.remove(expired)

    # Inside.

    def _write(
        self,
        stage_id: str,
        principal: Principal,
        judge: RowJudge,
        batches: Iterator[pa.RecordBatch],
    ) -> None:
        unfinished = _path(stage_id) + _UNFINISHED
        if not self._has_directory:
            self._make_directory()
        try:
            file = self._files.open(unfinished, write=True, create=True)
            try:
                self._fill(file, principal, judge, batches)
                file.fsync()  # before the rename: a name must never belong to half a stage
            finally:
                file.close()
            self._files.rename(unfinished, _path(stage_id))
        except BaseException:
            with suppress(OSError):
                self._files.unlink(unfinished)
            raise
        self._files.sync_dir(STAGES_DIR)

    def _fill(
        self,
        file: File,
        principal: Principal,
        judge: RowJudge,
        batches: Iterator[pa.RecordBatch],
    ) -> None:
        head = SCHEMA.serialize().to_pybytes()
        write_all(file, head, 0)
        at = len(head)
        pieces: list[BatchAt] = []
        topics: set[str] = set()
        for batch in _pieces(batches):
            if len(topics) <= TOPICS_KEPT_MAX:
                topics.update(batch.column("topic").unique().to_pylist())
            data = batch.serialize().to_pybytes()
            if self._files.free_bytes() < FREE_BYTES_MIN + len(data):
                raise LogFullError(f"no room for a stage: {NO_SPACE}")
            write_all(file, data, at)
            pieces.append(BatchAt(at, len(data), len(batch), google_crc32c.value(data)))
            at += len(data)
        kept = sorted(topics) if len(topics) <= TOPICS_KEPT_MAX else None
        trailer = msgspec.json.encode(
            Trailer(
                principal.name, self._now_us(), pieces, judge.topics, judge.name_bytes, kept
            )
        )
        tail = (
            len(trailer).to_bytes(4, "little")
            + google_crc32c.value(trailer).to_bytes(4, "little")
            + _MAGIC
        )
        write_all(file, _END_OF_STREAM + trailer + tail, at)

    def _trailer(self, stage_id: str) -> Trailer:
        file = self._open(stage_id)
        try:
            trailer = _read_trailer(file)
        finally:
            file.close()
        if trailer is None:
            raise DamagedStageError(stage_id, "its trailer is missing or fails its checksum")
        return trailer

    def _topics_of(self, stage_id: str, trailer: Trailer) -> Iterator[list[str]]:
        """Yield the topics of a stage in parts; a topic may be in several."""
        if trailer.names is not None:
            yield trailer.names
            return
        for piece in trailer.pieces:
            yield self._batch(stage_id, piece).column("topic").unique().to_pylist()

    def _batch(self, stage_id: str, piece: BatchAt) -> pa.RecordBatch:
        file = self._open(stage_id)
        try:
            data = read_all(file, piece.size, piece.at)
        finally:
            file.close()
        if len(data) != piece.size or google_crc32c.value(data) != piece.crc:
            raise DamagedStageError(
                stage_id, f"the batch at offset {piece.at} fails its checksum"
            )
        return pa.ipc.read_record_batch(pa.py_buffer(data), SCHEMA)

    def _open(self, stage_id: str) -> File:
        if not is_stage_id(stage_id):
            raise UnknownStageError(stage_id[: 2 * STAGE_ID_BYTES])
        try:
            return self._files.open(_path(stage_id), write=False, create=False)
        except FileNotFoundError:
            raise UnknownStageError(stage_id) from None
        except OSError as error:
            if error.errno in PASSING_ERRNOS:
                raise failure_of("reading a stage", error) from error
            raise

    def _remove_unfinished(self, stage_id: str) -> None:
        # A client may be writing it at this moment, on another thread.
        with self._lock:
            is_written = stage_id in self._writing
        if not is_written:
            with suppress(FileNotFoundError):
                self._files.unlink(_path(stage_id) + _UNFINISHED)


def is_stage_id(text: str) -> bool:
    """Return whether *text* can be a stage's id; anything else might be a path."""
    return len(text) == 2 * STAGE_ID_BYTES and not text.strip("0123456789abcdef")


def _path(stage_id: str) -> str:
    return f"{STAGES_DIR}/{stage_id}{_SUFFIX}"


def _owns(principal: Principal, trailer: Trailer) -> bool:
    return principal.name == trailer.principal or authorize(principal, ADMIN, "")


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of *batches* in pieces of bounded size; small batches are joined."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        held.append(batch)
        rows += len(batch)
        size += batch.nbytes
        if rows >= BATCH_ROWS or size >= BATCH_BYTES:
            yield from _cuts(pa.concat_batches(held))
            held = []
            rows = size = 0
    if held:
        yield from _cuts(pa.concat_batches(held))


def _cuts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yield a batch in pieces of at most `BATCH_ROWS`, and of `BATCH_BYTES` or a single row."""
    if not len(batch):
        return
    if len(batch) <= BATCH_ROWS and (batch.nbytes <= BATCH_BYTES or len(batch) == 1):
        yield batch
        return
    middle = len(batch) // 2
    yield from _cuts(batch.slice(0, middle))
    yield from _cuts(batch.slice(middle))


def _read_trailer(file: File) -> Trailer | None:
    size = file.size()
    tail = read_all(file, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    length = int.from_bytes(tail[:4], "little")
    at = size - _TAIL_BYTES - length
    if not tail.endswith(_MAGIC) or at < 0:
        return None
    data = read_all(file, length, at)
    if google_crc32c.value(data) != int.from_bytes(tail[4:8], "little"):
        return None
    return msgspec.json.decode(data, type=Trailer)
