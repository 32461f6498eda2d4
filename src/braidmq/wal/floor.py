"""The floor: the lowest id that the log must still hold, so that a missing segment is seen.

Retention deletes the oldest segments, and what is left looks the same whether retention or an
accident took them. So the floor is written down, `wal/floor`, in two copies, each of them

    0       8        16    20
    +-------+--------+-----+
    | floor | forced | crc |        floor   u64, every record from this id on must be there
    +-------+--------+-----+        forced  u64, up to here retention did not wait for readers

at 0 and 512, little-endian, the crc being CRC-32C of the 16 bytes before it. `rise`:

1. The first copy is written and fdatasynced, then the second. *A crash leaves at least one copy
   whole. If it is the old one, nothing was deleted yet.*
2. Only now are segments deleted. *A crash leaves some that are below the floor: they are still
   part of the log, and retention deletes them later.*

A copy is written in place, so a full disk does not keep retention from making room. The higher
of two valid copies counts. A log of a version that had no floor gets one at its first start.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

from braidmq.base.errors import DamagedLogError
from braidmq.base.ids import FIRST_ID
from braidmq.wal.disk import (
    FULL_ERRNOS,
    LOG_DIR,
    File,
    Files,
    passes,
    read_all,
    replace_file,
    synced,
    write_all,
)
from braidmq.wal.format import checksum
from braidmq.wal.index import index_path
from braidmq.wal.segment import SegmentInfo

FLOOR_PATH: Final = f"{LOG_DIR}/floor"
_COPY_BYTES: Final = 512  # a sector each, so that a torn write harms one of them
_COPIES: Final = 2
_FIELDS: Final = Struct(
    "<Q"  # floor
    "Q"  # forced
)
_CRC: Final = Struct("<I")


@dataclass(frozen=True, slots=True)
class Floor:
    """`first_id` is the floor; up to `forced_id` retention did not wait for readers."""

    first_id: int = FIRST_ID
    forced_id: int = 0


def encode_floor(floor: Floor) -> bytes:
    """Return one copy of the floor."""
    fields = _FIELDS.pack(floor.first_id, floor.forced_id)
    return fields + _CRC.pack(checksum(fields))


def decode_floor(data: bytes) -> Floor | None:
    """Return the floor that the first bytes of *data* hold, or None if they are not valid."""
    if len(data) < _FIELDS.size + _CRC.size:
        return None
    fields = data[: _FIELDS.size]
    if _CRC.unpack_from(data, _FIELDS.size)[0] != checksum(fields):
        return None
    return Floor(*_FIELDS.unpack(fields))


def read_floor(files: Files) -> Floor | None:
    """Return the floor, or None if there is no file.

    Raises:
        DamagedLogError: Neither copy is valid.
        OSError: The disk failed.
    """
    if not files.exists(FLOOR_PATH):
        return None
    data = _content(files)
    copies = (decode_floor(data[number * _COPY_BYTES :]) for number in range(_COPIES))
    valid = [copy for copy in copies if copy is not None]
    if not valid:
        # Never torn: it got its name when both copies were synced, and is changed one by one.
        raise DamagedLogError(
            FLOOR_PATH,
            offset=0,
            first_id=FIRST_ID,
            last_id=FIRST_ID,
            reason="not a valid floor",
        )
    return max(valid, key=lambda copy: (copy.first_id, copy.forced_id))


def is_whole(files: Files, floor: Floor) -> bool:
    """Return whether both copies are those of *floor*; a start writes a torn one anew."""
    return _content(files) == _both(floor)


def _content(files: Files) -> bytes:
    file = files.open(FLOOR_PATH, write=False, create=False)
    data = read_all(file, file.size(), 0)
    file.close()
    return data


def _both(floor: Floor) -> bytes:
    return encode_floor(floor).ljust(_COPY_BYTES, b"\0") * _COPIES


def write_floor(files: Files, floor: Floor) -> None:
    """Make a new file with *floor*, durably.

    Raises:
        OSError: The disk failed, or is full.
    """
    replace_file(files, FLOOR_PATH, _both(floor))


class DurableFloor:
    """The floor of a log that is open, and the deletions that follow it."""

    def __init__(self, files: Files, floor: Floor) -> None:
        self.floor = floor
        self._files = files
        self._file: File | None = None
        self._is_name_unsynced = False
        self._is_removal_unsynced = False

    def establish(self) -> None:
        """Open the file, or make it anew; on a full disk, before the floor first rises.

        Raises:
            OSError: The disk failed.
        """
        try:
            self._open()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                raise

    def rise(self, expired: Sequence[SegmentInfo], needed_id: int) -> None:
        """Move the floor behind the *expired* segments; readers need the ids from *needed_id*.

        Raises:
            OSError: The floor has not moved: delete nothing.
        """
        forced = [segment.last_id for segment in expired if segment.last_id >= needed_id]
        first_id = max(self.floor.first_id, expired[-1].last_id + 1)
        floor = Floor(first_id, max([self.floor.forced_id, *forced]))
        file = self._open()
        if floor == self.floor:
            return  # a call before this one deleted only a part
        data = encode_floor(floor)
        for number in range(_COPIES):
            write_all(file, data, number * _COPY_BYTES)
            synced(file.fdatasync)
        self.floor = floor

    def delete(self, segment: SegmentInfo) -> bool:
        """Delete the oldest segment, below the floor; return False if it has to wait.

        1. Its file is removed. *A reader with an older view that found the segment without its
           index would rebuild the index.*
        2. The directory is synced before the next segment is removed. *Otherwise a power cut
           could keep an older segment and lose a younger one: a hole, that is, damage.*
        3. Its index is removed, not synced. *One that comes back is an orphan, which the next
           start removes.*

        Raises:
            OSError: The disk failed.
        """
        try:
            self._sync_removal()
            self._files.unlink(segment.path)
        except (OSError, MemoryError) as error:
            if not passes(error):
                raise
            return False
        self._is_removal_unsynced = True
        try:
            self._sync_removal()
            index = index_path(segment.first_id)
            if self._files.exists(index):
                self._files.unlink(index)
        except (OSError, MemoryError) as error:
            if not passes(error):
                raise
        return True

    def _sync_removal(self) -> None:
        if self._is_removal_unsynced:
            self._files.sync_dir(LOG_DIR)
            self._is_removal_unsynced = False

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _open(self) -> File:
        if self._file is None:
            is_there = self._files.exists(FLOOR_PATH)
            if not is_there or not is_whole(self._files, self.floor):
                self._is_name_unsynced = True
                write_floor(self._files, self.floor)
            elif self._is_name_unsynced:
                self._files.sync_dir(LOG_DIR)
            self._is_name_unsynced = False
            self._file = self._files.open(FLOOR_PATH, write=True, create=False)
        return self._file
