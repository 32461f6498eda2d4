"""Requests from outside a connection: which engine may be read, and which may be changed."""

import pytest

from braidmq.base.errors import BraidError, LogPoisonedError
from braidmq.server.engine.requests import (
    LogFailedError,
    LogRefusedError,
    RecoveringError,
    ShuttingDownError,
    UnavailableError,
    changing,
    running,
)
from tests.unit.server.by_hand import Hand


def test_before_recovery_is_done_every_request_is_refused() -> None:
    """There is no engine yet, neither to read nor to change."""
    for ask in (running, changing):
        with pytest.raises(RecoveringError, match="recovering the log"):
            ask(None)


def test_a_running_engine_may_be_read_and_changed() -> None:
    """It is returned, so that the caller need not check for None again."""
    engine = Hand().engine

    assert engine is running(engine) is changing(engine)


def test_a_draining_engine_may_be_read_but_not_changed() -> None:
    """The dashboard works until the end."""
    engine = Hand().engine
    engine.drain()

    assert engine is running(engine)
    with pytest.raises(ShuttingDownError, match="the broker is shutting down"):
        changing(engine)


def test_an_engine_whose_log_failed_may_be_read_but_not_changed() -> None:
    """The failure is the reason, even while the broker drains because of it."""
    hand = Hand()
    hand.fail(LogPoisonedError("write", "Input/output error"))
    hand.engine.drain()

    assert hand.engine is running(hand.engine)
    with pytest.raises(LogFailedError, match="log poisoned: write failed"):
        changing(hand.engine)


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
    """An endpoint translates the base class into a status; the text is for people."""
    assert isinstance(error, UnavailableError)
    assert isinstance(error, BraidError)
    assert text == str(error)
