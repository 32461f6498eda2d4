"""Refusals of the API: each reason has a status and one line."""

import pytest

from braidmq.admin.http.refusals import (
    FanOutError,
    QueueExistsError,
    RefusedError,
    UnknownLettersError,
    UnknownQueueError,
)
from braidmq.base.errors import BraidError

REFUSALS = [
    (UnknownQueueError(), 404, "no such queue"),
    (UnknownLettersError(), 404, "no such queue of dead letters"),
    (QueueExistsError(), 409, "the queue exists with other options"),
    (
        FanOutError(),
        409,
        "letters of a fan-out cannot be replayed: its subscribers get them",
    ),
]


@pytest.mark.parametrize(("refusal", "status", "text"), REFUSALS)
def test_each_reason_has_a_status(refusal: RefusedError, status: int, text: str) -> None:
    """The status is for programs, the line for people."""
    assert (status, text) == (refusal.status, str(refusal))
    assert isinstance(refusal, BraidError)
