"""Why the engine cannot serve a request now: one family of errors, each with its text."""

import pytest

from braidmq.base.errors import BraidError
from braidmq.server.engine.refusals import (
    LogFailedError,
    LogRefusedError,
    RecoveringError,
    ShuttingDownError,
    UnavailableError,
)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (RecoveringError(), "recovering the log"),
        (ShuttingDownError(), "the broker is shutting down"),
        (LogRefusedError("no space left"), "no space left"),
        (LogFailedError("log poisoned"), "log poisoned"),
        (UnavailableError("too many queues"), "too many queues"),
    ],
)
def test_each_reason_is_unavailable_and_says_why(error: UnavailableError, text: str) -> None:
    """An endpoint translates the family; the text is for people."""
    assert isinstance(error, UnavailableError)
    assert isinstance(error, BraidError)
    assert text == str(error)
