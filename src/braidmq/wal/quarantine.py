"""Where rejected bytes are kept: torn tails, invalid snapshots, segments before a repair.

The broker never deletes anything here. Only an operator can judge whether the bytes matter.
"""

from typing import Final

from braidmq.wal.disk import File, Files, read_all, synced, write_all

QUARANTINE_DIR: Final = "quarantine"
_COPY_BYTES: Final = 1024 * 1024


def _free_name(files: Files, name: str) -> str:
    if not files.exists(QUARANTINE_DIR):
        files.make_dir(QUARANTINE_DIR)
        files.sync_dir("")
    # Never overwrite: two starts may quarantine different bytes of the same place.
    taken = set(files.list_dir(QUARANTINE_DIR))
    number = 1
    while f"{name}.{number}" in taken:
        number += 1
    return f"{QUARANTINE_DIR}/{name}.{number}"


def keep_copy(files: Files, file: File, name: str, offset: int) -> str:
    """Copy the bytes of *file* from *offset* on, durably, and return the copy's path.

    The copy and its name are synced before this returns, so the caller may then truncate or
    replace the original: a power cut at any point leaves the bytes in at least one place.

    Raises:
        OSError: The copy is not complete: leave the original as it is.
    """
    path = _free_name(files, f"{name}.at{offset}")
    copy = files.open(path, write=True, create=True)
    size = file.size()
    for at in range(offset, size, _COPY_BYTES):
        write_all(copy, read_all(file, min(_COPY_BYTES, size - at), at), at - offset)
    synced(copy.fsync)
    copy.close()
    files.sync_dir(QUARANTINE_DIR)
    return path


def move_in(files: Files, path: str) -> str:
    """Move the file *path* into quarantine, durably, and return its new path.

    Raises:
        OSError: The file is whole, but may be in either place.
    """
    directory, _, name = path.rpartition("/")
    kept = _free_name(files, name)
    files.rename(path, kept)
    # The new name first: a power cut may leave the file under both names, never under neither.
    files.sync_dir(QUARANTINE_DIR)
    files.sync_dir(directory)
    return kept
