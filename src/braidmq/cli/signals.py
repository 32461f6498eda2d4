"""How signals end a command that must clean up first, or that is still loading Spark.

SIGTERM and SIGHUP cancel the command's task as Ctrl-C does, so that its `finally` blocks remove
the subscription, queue or process that it made. By default either would end it at once.

A pipeline installs its own handler once Spark's modules are loaded, which takes seconds. Until
then there is nothing to finish: `stoppable` ends it on SIGTERM, with one line and exit code 0.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, Final, NoReturn, TypeVar

ENDINGS: Final = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


def run_until_ended(
    work: Coroutine[Any, Any, T],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> T:
    """Run *work* and return its result.

    Raises:
        KeyboardInterrupt: A signal ended it.
    """

    async def watched() -> T:
        cancel_on_signals()
        return await work

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def cancel_on_signals() -> None:
    """Let SIGTERM and SIGHUP cancel the running task."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    for ending in ENDINGS:
        # Only where the default is in place: under `nohup` SIGHUP is ignored, and stays so.
        if signal.getsignal(ending) is signal.SIG_DFL:
            loop.add_signal_handler(ending, task.cancel)


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
