"""How SIGTERM ends a pipeline that has no handler of its own yet: in one line, with success.

Spark's modules take seconds to load on a busy machine, and nothing is begun by then.
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
    """SIGTERM has come; no `except Exception` on the way out is meant."""


def stoppable(command: Callable[..., None]) -> Callable[..., None]:
    """Return *command* as one that SIGTERM ends at any moment."""

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
    """Let the first SIGTERM be an exception, in the main thread.

    `timeout` sends it twice, to the process and to its group.
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
