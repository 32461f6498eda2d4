"""How signals end a command that must undo something first: a subscription, a queue, a process.

SIGTERM and SIGHUP cancel the command's task as Ctrl-C does, so that its `finally` blocks run.
By default either would end the process at once, and leave behind what it has made.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

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
