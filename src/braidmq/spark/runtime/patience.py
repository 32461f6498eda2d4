"""Patience with a broker that cannot be reached: it may be starting again.

Only what is the same when it is done twice is tried twice. A log in a directory is never
unavailable, so nobody waits for one.
"""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Final, TypeVar

from braidmq.columnar.flight.failures import UnavailableError

RETURN_S_MAX: Final = 60.0
"""So long a broker may be gone; with its log in order it is back in seconds."""

PAUSE_S: Final = 0.25

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer], seconds: float = RETURN_S_MAX) -> Answer:
    """Return what *call* returns; as long as its broker is unavailable, try it again.

    Raises:
        UnavailableError: It is still unavailable after *seconds*.
        BraidError: What *call* raises otherwise, at once.
    """
    give_up = monotonic() + seconds
    while True:
        try:
            return call()
        except UnavailableError:
            if monotonic() >= give_up:
                raise
        Event().wait(PAUSE_S)
