"""What a failed call of the disk means to the log."""

import errno
import os

import pytest

from braidmq.base.errors import (
    EXIT_IO_ERROR,
    LogFullError,
    LogPoisonedError,
    LogReadError,
    LogScarceError,
)
from braidmq.wal.failures import Unfinished, failure_of, reading


def failed(number: int) -> OSError:
    return OSError(number, os.strerror(number))


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.EMFILE, LogScarceError),
        (errno.ENFILE, LogScarceError),
        (errno.ENOMEM, LogScarceError),
        (errno.ENOSPC, LogFullError),
        (errno.EDQUOT, LogFullError),
        (errno.EIO, LogPoisonedError),
        (errno.EROFS, LogPoisonedError),
    ],
)
def test_an_error_number_decides_whether_it_is_tried_again(
    number: int, expected: type[LogFullError | LogPoisonedError]
) -> None:
    """Only a lack of room, descriptors or memory passes."""
    error = failure_of("sealing", failed(number))

    assert expected is type(error)
    assert "sealing" in str(error)


def test_a_lack_of_descriptors_says_what_to_raise() -> None:
    """To its callers it is a log that has no room at the moment."""
    error = failure_of("snapshot", failed(errno.EMFILE))

    assert isinstance(error, LogFullError)
    assert "snapshot: Too many open files; the log tries again" in str(error)
    assert "ulimit -n" in str(error)


@pytest.mark.parametrize(
    ("number", "expected"),
    [(errno.EIO, LogReadError), (errno.ENOSPC, LogReadError), (errno.ENFILE, LogScarceError)],
)
def test_a_failed_read_is_not_called_damage(
    number: int, expected: type[LogReadError | LogScarceError]
) -> None:
    """Its text advises to look at the disk, and to give up nothing."""
    with pytest.raises(expected, match=r"wal/1\.wal") as caught, reading("wal/1.wal"):
        raise failed(number)

    assert EXIT_IO_ERROR == caught.value.exit_code
    assert "accept-loss" not in str(caught.value)


def test_a_missing_file_stays_what_it_is() -> None:
    """Retention may have deleted it; the caller looks."""
    with pytest.raises(FileNotFoundError), reading("wal/1.wal"):
        raise failed(errno.ENOENT)


def test_what_could_not_be_undone_is_undone_later() -> None:
    """As often as it takes, and then never again."""
    errors = [failed(errno.EMFILE), failed(errno.ENOMEM)]
    done: list[int] = []

    def undo() -> None:
        if errors:
            raise errors.pop()
        done.append(1)

    unfinished = Unfinished()
    unfinished.finish()
    unfinished.add("undoing", undo)
    for _ in range(2):
        with pytest.raises(LogScarceError, match="undoing"):
            unfinished.finish()
        assert not unfinished.is_empty
    unfinished.finish()
    unfinished.finish()

    assert unfinished.is_empty
    assert [1] == done
