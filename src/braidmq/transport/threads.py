"""Threads that are started before they are needed.

A pool of the standard library starts a thread when there is work for it. On a machine without
memory for one more stack that fails, in the middle of whatever wanted the work done; a broker
that has started must have what it needs to go on.
"""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread

from braidmq.base.errors import NoThreadError


def start_thread(thread: Thread) -> None:
    """Start a thread.

    Raises:
        NoThreadError: The system has no room for it.
    """
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThreadError(thread.name, str(error)) from error


def start_pool(pool: ThreadPoolExecutor, name: str, threads: int) -> None:
    """Start all *threads* of a new pool, which has that many at most; *name* is for the error.

    Raises:
        NoThreadError: The system has no room for one of them; those before it are started.
    """
    together = Barrier(threads)  # a thread that waits for the others takes no second turn
    try:
        for _ in range(threads):
            pool.submit(together.wait)
    except RuntimeError as error:
        together.abort()
        raise NoThreadError(name, str(error)) from error
