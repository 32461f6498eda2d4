"""Threads that are there before they are needed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from braidmq.base.errors import NoThreadError
from braidmq.transport.threads import start_pool, start_thread


@pytest.mark.parametrize("threads", [1, 5])
def test_all_threads_of_a_pool_run(threads: int) -> None:
    """Before the first work comes, and no more are started for it."""
    before = threading.active_count()
    with ThreadPoolExecutor(threads) as pool:
        start_pool(pool, "test", threads)
        assert threads == threading.active_count() - before
        assert 7 == pool.submit(lambda: 7).result()
        assert threads == threading.active_count() - before


def test_no_room_for_a_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the name of the thread and what to do; those that run can be ended."""
    really = threading.Thread.start
    started: list[threading.Thread] = []

    def start(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        really(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    with ThreadPoolExecutor(2) as pool, pytest.raises(NoThreadError, match=r"test.*ulimit -u"):
        start_pool(pool, "test", 2)
    with pytest.raises(NoThreadError, match="named"):
        start_thread(threading.Thread(name="named"))
