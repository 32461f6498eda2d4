"""How SIGTERM ends a pipeline that is still starting: with one line and exit code 0.

Loading Spark's modules takes seconds, and the pipeline installs its own handler only after
that. Until then it has begun nothing that would have to be finished.
"""

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import current_thread, main_thread
from types import FrameType
from typing import NoReturn


class _TerminatedError(BaseException):
    """SIGTERM arrived; a BaseException, so that no `except Exception` swallows it."""


def stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* wrapped so that SIGTERM ends it at any moment."""

    @wraps(command)
    def run(**given: object) -> None:
        with _raised():
            try:
                command(**given)
            except _TerminatedError:
                print(f"{command.__name__}: stopped", file=sys.stderr)

    return run


@contextmanager
def _raised() -> Iterator[None]:
    """Turn the first SIGTERM into an exception, in the main thread.

    Later ones are ignored: `timeout` sends it twice, to the process and to its group.
    """
    if current_thread() is not main_thread():
        yield
        return

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise _TerminatedError

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
