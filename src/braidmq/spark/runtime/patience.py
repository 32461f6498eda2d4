"""Retry calls to a broker that cannot be reached, because it may be restarting.

Only idempotent calls may be retried this way. A log in a directory is never unavailable, so a
read of one does not wait.
"""

from collections.abc import Callable
from threading import Event
from time import monotonic
from typing import Final, TypeVar

from braidmq.columnar.flight.failures import UnavailableError

RETURN_S_MAX: Final = 60.0
"""How long a broker may be away; one with an intact log restarts within seconds."""

PAUSE_S: Final = 0.25

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer], seconds: float = RETURN_S_MAX) -> Answer:
    """Return the result of *call*; retry it as long as its broker is unavailable.

    Raises:
        UnavailableError: The broker is still unavailable after *seconds*.
        BraidError: Any other error of *call*, at once.
    """
    give_up = monotonic() + seconds
    while True:
        try:
            return call()
        except UnavailableError:
            if monotonic() >= give_up:
                raise
        Event().wait(PAUSE_S)
