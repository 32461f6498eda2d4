"""`publish --lines`: each line of standard input is a message, published as it arrives.

A thread reads; while the broker confirms one batch, lines gather for the next. Ctrl-C and the
end of the input stop the reading, and what was sent is still waited for, so that the count is
that of messages that are safe.
"""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from io import UnsupportedOperation
from typing import TYPE_CHECKING, Any, Final

from braidmq.base.counts import counted
from braidmq.base.errors import BraidError
from braidmq.base.limits import MESSAGE_BYTES_MAX
from braidmq.cli.signals import ENDINGS

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Client

READ_BYTES: Final = 256 * 1024
"""At most this much is read at once, and waits for the broker."""

_LOOP_ENDED: Final = (RuntimeError, CancelledError)
"""What the thread gets when the loop is closed, or closes meanwhile."""

_STOPS: Final = (signal.SIGINT, *ENDINGS)


class LineError(BraidError):
    """A line could not be published."""


class Lines:
    """Publishes the lines of standard input; `confirmed` counts those that are safe."""

    def __init__(self) -> None:
        self.confirmed = 0
        self.is_interrupted = False
        self._sent = 0
        self._batches: asyncio.Queue[list[bytes] | BraidError | None] = asyncio.Queue(1)

    async def publish(self, client: "Client", topic: str, options: dict[str, Any]) -> None:
        """Publish until the input ends or a signal arrives.

        Raises:
            LineError: A line is too long, or was refused.
        """
        loop = asyncio.get_running_loop()
        # A daemon: it may wait for a line that never comes.
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        stopped = asyncio.Event()
        # Only where a signal would end the program: under `nohup` SIGHUP is ignored.
        numbers = [one for one in _STOPS if signal.getsignal(one) is not signal.SIG_IGN]
        if threading.current_thread() is not threading.main_thread():
            numbers = []  # there, Python allows none
        for number in numbers:
            loop.add_signal_handler(number, self._stop, loop, stopped)
        try:
            while (batch := await self._next(stopped)) is not None:
                await self._publish(client, topic, batch, options)
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    def _stop(self, loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
        self.is_interrupted = True
        stopped.set()
        loop.remove_signal_handler(signal.SIGINT)  # a second Ctrl-C does not wait

    async def _next(self, stopped: asyncio.Event) -> list[bytes] | None:
        """Return the lines that have arrived; None at the end."""
        waits = [asyncio.create_task(one) for one in (self._batches.get(), stopped.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            batch = None if stopped.is_set() else self._batch(waits[0].result())
        finally:
            for task in waits:
                task.cancel()
        return batch

    def _batch(self, got: object) -> list[bytes] | None:
        if isinstance(got, BraidError):
            raise got
        assert got is None or isinstance(got, list)
        return got

    async def _publish(
        self, client: "Client", topic: str, batch: list[bytes], options: dict[str, Any]
    ) -> None:
        from braidmq.client import PublishError

        results = await client.publish_many(topic, batch, **options)
        failed = [at for at, one in enumerate(results) if isinstance(one, PublishError)]
        self.confirmed += len(results) - len(failed)
        if failed:
            line = self._sent + failed[0] + 1
            safe = counted(self.confirmed, "message")
            raise LineError(f"line {line}: {results[failed[0]]}; {safe} published")
        self._sent += len(batch)

    # In the thread.

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        end: BraidError | None = None
        try:
            for batch in batches(_reader()):
                self._hand_over(batch, loop)
        except BraidError as error:
            end = error
        except OSError as error:
            end = LineError(f"standard input cannot be read: {error.strerror or error}")
        except _LOOP_ENDED:  # a signal, or a line that was refused
            return
        with suppress(*_LOOP_ENDED):
            self._hand_over(end, loop)

    def _hand_over(
        self, item: list[bytes] | BraidError | None, loop: asyncio.AbstractEventLoop
    ) -> None:
        """Wait until there is room for *item* in the loop's queue."""
        work = self._batches.put(item)
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError:
            work.close()  # otherwise Python warns that it was never awaited
            raise
        future.result()


def _reader() -> Callable[[], bytes]:
    """Return what reads some of standard input, as soon as there is any."""
    # Below Python's buffer: a thread that waits in it holds a lock that the exit needs.
    try:
        number = sys.stdin.fileno()
    except (UnsupportedOperation, ValueError):  # not a file, as in a test
        return lambda: sys.stdin.buffer.read(READ_BYTES)
    return lambda: os.read(number, READ_BYTES)


def batches(read: Callable[[], bytes]) -> Iterator[list[bytes]]:
    """Yield the lines that each read completes, without their line breaks.

    Raises:
        LineError: A line is longer than a message may be.
    """
    begun: list[bytes] = []  # pieces of a line whose end has not come
    size = number = 0
    while data := read():
        first, *others = data.split(b"\n")
        begun.append(first)
        size += len(first)
        if others:
            lines = [b"".join(begun), *others[:-1]]
            number += len(lines)
            begun, size = [others[-1]], len(others[-1])
            yield lines
        if size > MESSAGE_BYTES_MAX:
            raise LineError(f"line {number + 1} has more than {MESSAGE_BYTES_MAX} bytes")
    if size:
        yield [b"".join(begun)]
