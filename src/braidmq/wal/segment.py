"""Segments: their names and facts, the active one that grows, and the reserve beside it.

`braidmq.wal.wal` decides when to make, sync, seal and delete a segment; this module does not.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from braidmq.base.errors import DamagedLogError, LogPoisonedError
from braidmq.base.limits import KIB, MIB
from braidmq.wal.disk import (
    FULL_ERRNOS,
    LOG_DIR,
    PASSING_ERRNOS,
    SCARCE_ERRNOS,
    File,
    Files,
    read_all,
    synced,
    write_all,
)
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_MAGIC,
    Describe,
    encode_batch,
    encode_header,
)
from braidmq.wal.index import BlockSums, IndexWriter, index_path
from braidmq.wal.recovery import Read, Verdict
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES, Trailer

RESERVE_PATH: Final = f"{LOG_DIR}/reserve"
RESERVE_BYTES_MAX: Final = 16 * MIB
_RESERVE_STEP_BYTES: Final = 64 * KIB
"""Released on top of each request: the file system needs some blocks for its own metadata."""

_SEGMENT_NAME: Final = re.compile(r"([0-9]{20})\.wal")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """Facts about one segment; `last_id` is `first_id` - 1 while it holds no record."""

    first_id: int
    last_id: int
    size: int
    created_us: int
    sealed: bool

    @property
    def path(self) -> str:
        """The segment's path below the data directory."""
        return segment_path(self.first_id)


def segment_path(first_id: int) -> str:
    """Return the path of the segment that starts with *first_id*."""
    return f"{LOG_DIR}/{first_id:020}.wal"


def list_segments(files: Files) -> list[int]:
    """Return the first ids of the segments, in order; other files are ignored."""
    names = (_SEGMENT_NAME.fullmatch(name) for name in files.list_dir(LOG_DIR))
    return sorted(int(name[1]) for name in names if name)


def reader_of(file: File) -> Read:
    """Return the function through which the pure modules read *file*."""
    return lambda size, offset: read_all(file, size, offset)


def damage(
    first_id: int, lost: tuple[int, int], reason: str, *, offset: int = 0
) -> DamagedLogError:
    """Return the error that the ids *lost*, first and last, cannot be read from a segment."""
    return DamagedLogError(
        segment_path(first_id), offset=offset, first_id=lost[0], last_id=lost[1], reason=reason
    )


def judged_damage(first_id: int, verdict: Verdict) -> DamagedLogError:
    """Return *verdict* on the segment that starts with *first_id* as an error."""
    lost = verdict.first_id, verdict.last_id
    return damage(first_id, lost, verdict.reason, offset=verdict.offset)


class ActiveSegment:
    """The active segment, with its index and the checksums of its blocks.

    `size` and `next_id` describe what was written whole. After a failed append the file may be
    longer than `size`; the log then calls `roll_back` or poisons itself.
    """

    def __init__(self, file: File, index: IndexWriter, created_us: int) -> None:
        self.file = file
        self.index = index
        self.first_id = index.first_id
        self.created_us = created_us
        self.next_id = index.first_id
        self.size = 0
        self.blocks = BlockSums(SEGMENT_BLOCK_BYTES)
        # The header is in the file already; it counts for size and checksums like everything
        # else.
        self.grow(encode_header(SEGMENT_MAGIC, self.first_id, created_us), self.next_id)

    def grow(self, data: bytes, next_id: int) -> None:
        """Account for *data*, which is now in the file; the next record gets *next_id*."""
        self.size += len(data)
        self.next_id = next_id
        self.blocks.update(data)

    def append(self, bodies: list[bytes], describe: Describe, *, fence: bool) -> None:
        """Write *bodies* and their index rows, one write each.

        Raises:
            OSError: A write failed; call `roll_back` before anything else.
            MemoryError: There was none for it; likewise.
        """
        index = self.index
        before = self.size, self.next_id, self.blocks.place(), index.place()
        try:
            data, rows = encode_batch(
                self.next_id, bodies, self.size, fence, describe, index.topics
            )
            assert self.size + len(data) <= SEGMENT_BYTES_LIMIT
            # The segment first: rows must never point at bytes that were not written.
            write_all(self.file, data, self.size)
            write_all(index.file, rows, index.size)
            # Memory may run out in the middle of these too.
            self.grow(data, self.next_id + len(bodies))
            index.grow(rows)
        except BaseException:
            self.size, self.next_id, blocks, rows_before = before
            self.blocks.go_back(blocks)
            index.go_back(rows_before)
            raise

    def roll_back(self) -> None:
        """Remove what a failed append left in the files.

        1. Both files are truncated to their last whole record. *A crash brings back any part
           of the cut-off bytes: a torn tail, of records that no publisher was told about.*
        2. The segment is fdatasynced. *Otherwise the next batch would be written over bytes
           that a power cut could bring back, between the sectors of the new ones.*

        Raises:
            OSError: The bytes may still be there: append nothing.
        """
        self.file.truncate(self.size)
        self.index.file.truncate(self.index.size)
        synced(self.file.fdatasync)

    @property
    def is_empty(self) -> bool:
        """Whether it holds no record."""
        return self.size == HEADER_BYTES

    def info(self, *, sealed: bool) -> SegmentInfo:
        """Return the facts about this segment as it is now."""
        return SegmentInfo(self.first_id, self.next_id - 1, self.size, self.created_us, sealed)

    def seal_index(self) -> None:
        """Append tables and trailer to the index; nothing in the segment file marks a seal.

        A segment counts as sealed because a successor exists. A torn or missing trailer
        therefore only costs a rebuild of the index.

        Raises:
            OSError: The index is incomplete; `unseal_index` lets it grow again.
        """
        index = self.index
        trailer = Trailer(
            index.rows, self.next_id - 1, self.size, index.gap_count, has_steps=index.has_steps
        )
        self.index.seal(trailer, self.blocks.all())

    def unseal_index(self) -> None:
        """Remove what `seal_index` appended to the rows."""
        self.index.file.truncate(self.index.size)


def start_segment(files: Files, first_id: int, created_us: int) -> ActiveSegment:
    """Make an empty segment with its index.

    Header and name of the segment are durable on return. Both must be before the first record
    is written: recovery takes a last segment with an invalid header for an unfinished rotation
    only if it is no longer than the header. The bytes of the index are not synced: it can be
    rebuilt.

    Raises:
        OSError: A write failed, or there was no descriptor; either file may exist, in part.
        LogPoisonedError: The segment was written but could not be synced.
    """
    file = files.open(segment_path(first_id), write=True, create=True)
    file.truncate(0)  # one may be left from a rotation that was interrupted
    write_all(file, encode_header(SEGMENT_MAGIC, first_id, created_us), 0)
    try:
        file.fsync()
    except OSError as error:
        raise LogPoisonedError("fsync of a new segment", str(error)) from error
    _sync_names(files)
    index = IndexWriter.create(
        files, index_path(first_id), first_id=first_id, created_us=created_us
    )
    _sync_names(files)
    return ActiveSegment(file, index, created_us)


def removal_of(files: Files, first_id: int) -> Callable[[], None]:
    """Return what removes a segment again that `start_segment` could not finish.

    It must be gone before the one before it grows again: a start that found both would take the
    older for sealed, with records after its end. The function may be called until it succeeds.
    """
    new = index_path(first_id), segment_path(first_id)
    made = [path for path in new if files.exists(path)]

    def remove() -> None:
        for path in made:
            if files.exists(path):
                files.unlink(path)
        if made:
            files.sync_dir(LOG_DIR)

    return remove


def _sync_names(files: Files) -> None:
    try:
        files.sync_dir(LOG_DIR)
    except OSError as error:
        if error.errno in SCARCE_ERRNOS:
            raise  # the sync has not begun
        raise LogPoisonedError("fsync of a directory", str(error)) from error


class Reserve:
    """Disk space set aside so that acknowledgements can still be written when the disk is full.

    Without it a full disk would be a deadlock: consumers free space by acknowledging, and an
    acknowledgement is itself a record that needs space. It is a preallocated file that shrinks
    as urgent batches use it up.
    """

    def __init__(self, files: Files, segment_bytes: int) -> None:
        self.bytes_full = min(RESERVE_BYTES_MAX, segment_bytes // 4)
        self._files = files
        self._file: File | None = None  # a full disk may have no room even for its name
        # An allocation is not durable, so a crash may have lost the last run's: start from 0.
        self.bytes_left = 0

    @property
    def is_whole(self) -> bool:
        """Whether all of it is still reserved."""
        return self.bytes_left == self.bytes_full

    def release(self, wanted: int) -> bool:
        """Release at least *wanted* bytes if that much is left; return False if none is.

        A caller whose write still fails asks again, until the reserve is used up.

        Raises:
            OSError: The file could not be truncated.
        """
        if not self.bytes_left or self._file is None:
            return False
        # If less is left than wanted, release it all: *wanted* is a generous estimate.
        left = max(0, self.bytes_left - wanted - _RESERVE_STEP_BYTES)
        self._file.truncate(left)
        self.bytes_left = left
        return True

    def refill(self) -> bool:
        """Reserve the full size again if the disk has room; return whether it is whole.

        If there is room for a part only, reserve that part: acknowledgements need some of it.

        Raises:
            OSError: It failed for a reason that does not pass.
        """
        wanted = self.bytes_full
        while self.bytes_left < wanted:
            try:
                if self._file is None:
                    self._file = self._files.open(RESERVE_PATH, write=True, create=True)
                self._file.allocate(wanted)
                self.bytes_left = wanted
            except OSError as error:
                if error.errno not in PASSING_ERRNOS:
                    raise
                if self._file is None or error.errno not in FULL_ERRNOS:
                    break
                # A failed allocation may have taken part of the space; give that part back.
                self._file.truncate(self.bytes_left)
                wanted //= 2
        return self.is_whole

    def close(self) -> None:
        """Close the file; the space stays reserved."""
        if self._file is not None:
            self._file.close()
