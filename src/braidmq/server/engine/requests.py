"""Requests from outside a connection: can the engine serve them now, and if not, why?

HTTP, Flight and the sink are up before recovery is done and stay up while the broker drains, so
each of their requests begins with `running` or `changing`. The errors say why it cannot be
served, and every endpoint translates them: HTTP into 503, Flight into its status for a service
that is unavailable.

    UnavailableError         not now
    |-- RecoveringError      the log is still being recovered
    |-- ShuttingDownError    the broker drains, or has stopped
    |-- LogRefusedError      the log did not take the record; it will never be committed
    `-- LogFailedError       the log has failed; whether the record is stored is unknown
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

RECOVERING: Final = "recovering the log"
SHUTTING_DOWN: Final = "the broker is shutting down"

FindEngine = Callable[[], "Engine | None"]
"""Returns the engine, or None until recovery is done."""


class UnavailableError(BraidError):
    """The broker cannot serve the request now; the text says why."""


class RecoveringError(UnavailableError):
    """The broker is still reading its log."""

    def __init__(self) -> None:
        super().__init__(RECOVERING)


class ShuttingDownError(UnavailableError):
    """The broker accepts no more changes: it drains or has stopped."""

    def __init__(self) -> None:
        super().__init__(SHUTTING_DOWN)


class LogRefusedError(UnavailableError):
    """The log did not take a record, for example because its disk is full."""


class LogFailedError(UnavailableError):
    """The log has failed; what it was writing may or may not be stored."""


def running(engine: "Engine | None") -> "Engine":
    """Return the engine once it can be read from.

    Raises:
        RecoveringError: The log is still being recovered.
    """
    if engine is None:
        raise RecoveringError
    return engine


def changing(engine: "Engine | None") -> "Engine":
    """Return the engine if it accepts changes.

    Raises:
        RecoveringError: The log is still being recovered.
        LogFailedError: The log has failed.
        ShuttingDownError: The broker drains.
    """
    engine = running(engine)
    if engine.failed is not None:
        raise LogFailedError(str(engine.failed))
    if engine.draining:
        raise ShuttingDownError
    return engine
