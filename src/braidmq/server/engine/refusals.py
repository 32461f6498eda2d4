"""Why the engine cannot serve a request now, as errors that every endpoint translates.

    UnavailableError         not now
    |-- RecoveringError      the log is still being recovered
    |-- ShuttingDownError    the broker drains, or has stopped
    |-- LogRefusedError      the log did not take the record; it will never be committed
    `-- LogFailedError       the log has failed; whether the record is stored is unknown

HTTP answers all of them with 503, Flight with its own status for a service that is unavailable.
The engine knows neither.
"""

from typing import Final

from braidmq.base.errors import BraidError

RECOVERING: Final = "recovering the log"
SHUTTING_DOWN: Final = "the broker is shutting down"


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
