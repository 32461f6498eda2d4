"""Segments: their names, what is known of each, how one is made and the one that grows.

It does not decide when to make or delete one, and it never syncs data: `braidmq.wal.wal` does.
"""

import re
from dataclasses import dataclass
from typing import Final

from braidmq.base.errors import DamagedLogError, LogPoisonedError
from braidmq.wal.files import LOG_DIR, File, Files, read_all, write_all
from braidmq.wal.format import (
    HEADER_BYTES,
    SEGMENT_BYTES_LIMIT,
    SEGMENT_MAGIC,
    Describe,
    encode_batch,
    encode_header,
)
from braidmq.wal.index import IndexWriter
from braidmq.wal.recovery import Read, Verdict
from braidmq.wal.tables import SEGMENT_BLOCK_BYTES, BlockSums, Trailer

_SEGMENT_NAME: Final = re.compile(r"([0-9]{20})\.wal")


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """One segment as it is now; `last_id` is `first_id` - 1 while it holds no record."""

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
    """Return the first ids of the segments, in order; other files are not looked at."""
    names = (_SEGMENT_NAME.fullmatch(name) for name in files.list_dir(LOG_DIR))
    return sorted(int(name[1]) for name in names if name)


def create_segment(files: Files, first_id: int, created_us: int) -> File:
    """Make an empty segment that is whole on the disk, header and directory entry, on return.

    Raises:
        OSError: A write failed; something of it may be there.
        LogPoisonedError: It was written and could not be synced.
    """
    file = files.open(segment_path(first_id), write=True, create=True)
    file.truncate(0)
    write_all(file, encode_header(SEGMENT_MAGIC, first_id, created_us), 0)
    try:
        file.fsync()
        files.sync_dir(LOG_DIR)
    except OSError as error:
        raise LogPoisonedError("fsync of a new segment", str(error)) from error
    return file


def reader_of(file: File) -> Read:
    """Return the function that the pure rooms read *file* with."""
    return lambda size, offset: read_all(file, size, offset)


def damage(first_id: int, verdict: Verdict) -> DamagedLogError:
    """Return the error that tells of *verdict* on the segment that starts with *first_id*."""
    return DamagedLogError(
        segment_path(first_id),
        offset=verdict.offset,
        first_id=verdict.first_id,
        last_id=verdict.last_id,
        reason=verdict.reason,
    )


class ActiveSegment:
    """The segment that grows, with its index and the checksums of its blocks."""

    def __init__(self, file: File, index: IndexWriter, created_us: int) -> None:
        self.file = file
        self.index = index
        self.first_id = index.first_id
        self.created_us = created_us
        self.next_id = index.first_id
        self.size = 0
        self.blocks = BlockSums(SEGMENT_BLOCK_BYTES)
        self.grow(encode_header(SEGMENT_MAGIC, self.first_id, created_us), self.next_id)

    def grow(self, data: bytes, next_id: int) -> None:
        """Take note that *data* is now in the file, and what the next record's id is."""
        self.size += len(data)
        self.next_id = next_id
        self.blocks.update(data)

    def append(self, bodies: list[bytes], describe: Describe, *, fence: bool) -> None:
        """Write *bodies* and their index rows, one write each.

        Raises:
            OSError: A write failed; call `roll_back` before anything else.
        """
        index = self.index
        topics_before = len(index.topics)
        try:
            data, rows = encode_batch(
                self.next_id, bodies, self.size, fence, describe, index.topics
            )
            assert self.size + len(data) <= SEGMENT_BYTES_LIMIT
            write_all(self.file, data, self.size)
            write_all(index.file, rows, index.size)
        except BaseException:
            while len(index.topics) > topics_before:
                index.topics.popitem()
            raise
        self.grow(data, self.next_id + len(bodies))
        index.grow(rows)

    def roll_back(self) -> None:
        """Cut off what a failed append left, and make sure that it stays away.

        Raises:
            OSError: It may still be there.
        """
        self.file.truncate(self.size)
        self.index.file.truncate(self.index.size)
        # Without this a power cut could bring old bytes back in the middle of new ones.
        self.file.fdatasync()

    @property
    def is_empty(self) -> bool:
        """Whether no record was written here yet."""
        return self.size == HEADER_BYTES

    def info(self, *, sealed: bool) -> SegmentInfo:
        """Return what is known of this segment now."""
        return SegmentInfo(self.first_id, self.next_id - 1, self.size, self.created_us, sealed)

    def seal_index(self) -> None:
        """Complete the index; the segment itself is complete as it is.

        Raises:
            OSError: The index is not complete; `unseal_index` makes it go on growing.
        """
        trailer = Trailer(self.index.rows, self.next_id - 1, self.size, self.index.gap_count)
        self.index.seal(trailer, self.blocks.all())

    def unseal_index(self) -> None:
        """Take off what `seal_index` put behind the rows."""
        self.index.file.truncate(self.index.size)
