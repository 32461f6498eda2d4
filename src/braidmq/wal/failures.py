"""What a failed call of the disk means to the log, as one of its errors.

    EMFILE, ENFILE, ENOMEM   nothing was done            LogScarceError     tried again
    Python's MemoryError     likewise                    LogScarceError     tried again
    ENOSPC, EDQUOT           there was no room           LogFullError       tried again
    anything else            the disk is in doubt        LogPoisonedError   final
    a read, but for the first row                        LogReadError       final

A failed sync is in doubt whatever its number, and its callers say so themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from braidmq.base.errors import (
    LogError,
    LogFullError,
    LogPoisonedError,
    LogReadError,
    LogScarceError,
)
from braidmq.wal.disk import FULL_ERRNOS, SCARCE_ERRNOS

NO_MEMORY: Final = "no memory"


def failure_of(operation: str, error: OSError | MemoryError) -> LogError:
    """Return what it means to the log that *operation* failed."""
    if isinstance(error, MemoryError):
        return LogScarceError(operation, NO_MEMORY)
    if error.errno in SCARCE_ERRNOS:
        return LogScarceError(operation, error.strerror or str(error))
    if error.errno in FULL_ERRNOS:
        return LogFullError(f"no space left on the log's disk: {operation}")
    return LogPoisonedError(operation, str(error))


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Turn a failed read of *path* into the log's error; a missing file stays what it is.

    Raises:
        LogReadError: The disk did not return the bytes. They may be intact.
        LogScarceError: There was no descriptor or memory for it.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except MemoryError as error:
        raise LogScarceError(f"reading {path}", NO_MEMORY) from error
    except OSError as error:
        if error.errno in SCARCE_ERRNOS:
            raise LogScarceError(f"reading {path}", error.strerror or str(error)) from error
        raise LogReadError(path, error.strerror or str(error)) from error


class Unfinished:
    """What must be undone before the log may be written to again.

    A batch, or a new segment, that could not be written whole is taken back. If even that has
    to wait, for a descriptor or for memory, nothing is written until it is done.
    """

    def __init__(self) -> None:
        self._operation = ""
        self._undo: Callable[[], None] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left to be undone."""
        return self._undo is None

    def add(self, operation: str, undo: Callable[[], None]) -> None:
        """Have *undo* called by `finish`, until it succeeds."""
        self._operation, self._undo = operation, undo

    def finish(self) -> None:
        """Undo what is left.

        Raises:
            LogFullError: It could not be undone yet; call this again.
            LogPoisonedError: The disk failed.
        """
        if self._undo is None:
            return
        try:
            self._undo()
        except (OSError, MemoryError) as error:
            raise failure_of(self._operation, error) from error
        self._undo = None
