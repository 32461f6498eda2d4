"""Snapshots: where recovery starts, so that it need not replay the whole log.

The body is opaque. A snapshot is `snapshot/<last id, 20 digits>.snap`:

    0       8         12        20       28    32
    +-------+---------+---------+--------+-----+----------+
    | magic | version | last id | length | crc | body ... |   crc: CRC-32C of the 28 bytes
    +-------+---------+---------+--------+-----+----------+   before it and of the body

Little-endian. A snapshot holds the state that the records up to its last id lead to. `save`:

1. The caller syncs the log up to the last id. *Otherwise a power cut could leave a snapshot
   that is ahead of the log. Recovery refuses that: the log would give its ids twice.*
2. `writing.tmp` is written and fsynced. *A crash leaves a file that recovery ignores and the
   next snapshot overwrites.*
3. It is renamed, and the directory fsynced. *Recovery uses the previous snapshot or this one.*
4. All but the newest two are removed, one directory fsync each. *A crash leaves one too many.*

Two are kept because a snapshot is only verified when it is loaded: if the newest is invalid,
recovery moves it to quarantine and replays more of the log, from the one before. Therefore
retention must keep the log after the older of the two.
"""

import re
from dataclasses import dataclass
from struct import Struct
from typing import Final

from braidmq.base.errors import DamagedLogError, LogPoisonedError
from braidmq.wal.disk import SCARCE_ERRNOS, File, Files, read_all, write_all
from braidmq.wal.failures import failure_of
from braidmq.wal.format import checksum
from braidmq.wal.quarantine import QUARANTINE_DIR, move_in

SNAPSHOT_DIR: Final = "snapshot"
SNAPSHOT_MAGIC: Final = b"BRAIDSNP"
SNAPSHOT_VERSION: Final = 1
KEPT_COUNT: Final = 2
SYNC_BYTES: Final = 4 * 1024 * 1024
"""How much of a snapshot is written before it is synced."""

_TEMPORARY: Final = f"{SNAPSHOT_DIR}/writing.tmp"
_NAME: Final = re.compile(r"([0-9]{20})\.snap")
_HEADER: Final = Struct(
    "<8s"  # magic
    "I"  # version
    "Q"  # last id
    "Q"  # length of the body
    "I"  # crc
)
_CRC_AT: Final = _HEADER.size - 4


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state that the records up to `last_id` lead to."""

    last_id: int
    body: bytes


def encode(last_id: int, body: bytes) -> bytes:
    """Return the content of a snapshot file."""
    return b"".join(_with_head(last_id, [body]))


def decode(data: bytes) -> Snapshot | None:
    """Return the snapshot in *data*, or None if it is not valid.

    Raises:
        DamagedLogError: It is intact, but of a version that this program does not read. It is
            not to be replaced by an older one: a newer program wrote it.
    """
    if len(data) < _HEADER.size:
        return None
    magic, version, last_id, length, crc = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    if magic != SNAPSHOT_MAGIC or length != len(body):
        return None
    if checksum(data[:_CRC_AT] + body) != crc:
        return None
    if version != SNAPSHOT_VERSION:
        raise DamagedLogError(
            snapshot_path(last_id),
            offset=len(SNAPSHOT_MAGIC),
            first_id=last_id,
            last_id=last_id,
            reason=f"snapshot format version {version}, this version reads {SNAPSHOT_VERSION}",
        )
    return Snapshot(last_id, body)


def snapshot_path(last_id: int) -> str:
    """Return the path of the snapshot that ends with *last_id*."""
    return f"{SNAPSHOT_DIR}/{last_id:020}.snap"


def list_ids(files: Files) -> list[int]:
    """Return the last ids of all snapshots, newest first, without verifying any."""
    names = (_NAME.fullmatch(name) for name in files.list_dir(SNAPSHOT_DIR))
    return sorted((int(name[1]) for name in names if name), reverse=True)


def list_quarantined(files: Files) -> list[int]:
    """Return the last ids of the snapshots that were invalid and set aside."""
    names = (_NAME.match(name) for name in files.list_dir(QUARANTINE_DIR))
    return [int(name[1]) for name in names if name]


def save(files: Files, last_id: int, body: bytes) -> None:
    """Write a snapshot durably, as :func:`save_parts`."""
    save_parts(files, last_id, [body])


def save_parts(files: Files, last_id: int, parts: list[bytes]) -> None:
    """Write a snapshot durably, then delete all but the newest two.

    No step handles more than one of the *parts*, so that the writer need not hold the
    interpreter, or the disk, for long.

    Raises:
        LogFullError: The disk is full, or the system has no descriptor or memory; at least the
            snapshots that existed are intact.
        LogPoisonedError: The disk failed.
    """
    try:
        if not list_ids(files):  # also if only the sync failed the last time
            files.make_dir(SNAPSHOT_DIR)
            _sync_dir(files, "")
        _write_durably(files, snapshot_path(last_id), _with_head(last_id, parts))
        for old in list_ids(files)[KEPT_COUNT:]:
            files.unlink(snapshot_path(old))
            _sync_dir(files, SNAPSHOT_DIR)
    except (OSError, MemoryError) as error:
        raise failure_of("snapshot", error) from error


def _with_head(last_id: int, parts: list[bytes]) -> list[bytes]:
    """Return the content of a snapshot file, in the same parts."""
    length = sum(map(len, parts))
    fields = _HEADER.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, last_id, length, 0)[:_CRC_AT]
    crc = checksum(fields)
    for part in parts:
        crc = checksum(part, crc)
    return [fields + crc.to_bytes(4, "little") + parts[0], *parts[1:]]


def _write_durably(files: Files, path: str, parts: list[bytes]) -> None:
    file = files.open(_TEMPORARY, write=True, create=True)
    file.truncate(0)
    at = synced = 0
    for part in parts:
        try:
            write_all(file, part, at)
        except (OSError, MemoryError):
            file.truncate(0)  # on a full disk, do not keep what was written so far
            raise
        at += len(part)
        if at - synced >= SYNC_BYTES:
            # A disk that gets all of a large file at once makes the log's commits wait.
            _sync(file)
            synced = at
    if at > synced:
        _sync(file)
    file.close()
    files.rename(_TEMPORARY, path)
    _sync_dir(files, SNAPSHOT_DIR)


def _sync(file: File) -> None:
    try:
        file.fsync()
    except OSError as error:
        raise LogPoisonedError("fsync of a snapshot", str(error)) from error


def _sync_dir(files: Files, path: str) -> None:
    try:
        files.sync_dir(path)
    except OSError as error:
        if error.errno in SCARCE_ERRNOS:
            raise  # the sync has not begun
        raise LogPoisonedError("fsync of a directory", str(error)) from error


def oldest_kept(files: Files) -> int:
    """Return the last id of the oldest snapshot, 0 if there is none; their names are durable.

    Recovery may have to start from it, so it is how far retention may go.

    Raises:
        LogFullError: There is no descriptor or memory for it now.
        LogPoisonedError: The disk failed.
    """
    try:
        kept = list_ids(files)
        if kept:
            # The newest may have its name since a save that could not make it durable.
            _sync_dir(files, SNAPSHOT_DIR)
    except (OSError, MemoryError) as error:
        raise failure_of("reading the snapshots", error) from error
    return min(kept, default=0)


def read(files: Files, last_id: int) -> Snapshot | None:
    """Return the snapshot of that last id, or None if it is not valid."""
    file = files.open(snapshot_path(last_id), write=False, create=False)
    found = decode(read_all(file, file.size(), 0))
    file.close()
    return found if found is not None and found.last_id == last_id else None


def load(files: Files, rejected: list[str] | None = None) -> Snapshot | None:
    """Return the newest valid snapshot, or None if there is none.

    Newer ones that are invalid are moved to quarantine, never deleted; their new paths are
    added to *rejected*.
    """
    for last_id in list_ids(files):
        found = read(files, last_id)
        if found is not None:
            return found
        # Move it away: retention goes by the oldest snapshot listed, and recovery must not find
        # this one again.
        kept = move_in(files, snapshot_path(last_id))
        if rejected is not None:
            rejected.append(kept)
    return None
