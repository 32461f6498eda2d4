"""Waiting for what other threads do."""

import time
from collections.abc import Callable

PATIENCE_S = 20.0


def until(is_so: Callable[[], bool]) -> None:
    """Return once *is_so*; fail after a while."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.001)
