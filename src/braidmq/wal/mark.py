"""The durable mark, `wal/durable`: the last id that a sync has returned for.

It is rewritten in place after each sync and never synced itself, so a power cut may leave an
older one, a torn one or none. Recovery uses it to recognise damage only; readers beside the
broker go by it, and must not take a mark that they cannot read for an empty log.
"""

from typing import Final

from braidmq.wal.disk import LOG_DIR, PASSING_ERRNOS, Files, read_all, write_all
from braidmq.wal.format import MARK_BYTES, decode_mark, encode_mark

MARK_PATH: Final = f"{LOG_DIR}/durable"


def read_mark(files: Files) -> int | None:
    """Return the durable mark, 0 if there is none, None if it is unreadable.

    The mark is written after a sync and is itself never synced, so it may be old or torn. That
    is no damage: it is a lower bound of what is durable, and 0 is a valid one.
    """
    if not files.exists(MARK_PATH):
        return 0
    file = files.open(MARK_PATH, write=False, create=False)
    data = read_all(file, MARK_BYTES, 0)
    file.close()
    # An empty or zeroed mark: the power went before its first write was durable.
    return decode_mark(data) if data.strip(b"\0") else 0


def known_mark(files: Files) -> int | None:
    """Return the durable mark, None if there is none that can be relied on.

    Unlike recovery, a reader that goes by the mark must tell "nothing is durable" from "not
    known": it would return fewer rows than there are.
    """
    if not files.exists(MARK_PATH):
        return None
    file = files.open(MARK_PATH, write=False, create=False)
    data = read_all(file, MARK_BYTES, 0)
    file.close()
    return decode_mark(data)


class DurableMark:
    """The mark of a log that is open."""

    def __init__(self, files: Files) -> None:
        self._file = files.open(MARK_PATH, write=True, create=True)

    def write(self, durable_id: int) -> None:
        """Write the mark, unless there is no room for it now.

        Raises:
            OSError: The disk failed.
        """
        try:
            write_all(self._file, encode_mark(durable_id), 0)
        except OSError as error:
            # A copy-on-write file system may lack room even to overwrite twelve bytes. The
            # mark is a lower bound, so an old one does no harm until the next sync.
            if error.errno not in PASSING_ERRNOS:
                raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()
