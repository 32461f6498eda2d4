"""What the client library raises."""

import errno
import os
import re
import socket

import pytest

import braidmq.client
from braidmq.base.errors import BraidError
from braidmq.client import errors

OURS = {
    name: value
    for name, value in vars(errors).items()
    if isinstance(value, type) and issubclass(value, errors.ClientError)
}


def test_the_tree_at_the_top_of_the_module_is_the_tree() -> None:
    """Every error is printed there, below the one it derives from."""
    assert errors.__doc__ is not None
    path: list[str] = []
    drawn: set[str] = set()
    for line in errors.__doc__.splitlines():
        row = re.match(r"    [|` -]*(?=[A-Z])(\w+)", line)
        if row is None:
            continue
        depth = row.start(1) // 4 - 1
        path = [*path[:depth], row.group(1)]
        drawn.add(path[-1])

        assert issubclass(OURS[path[-1]], OURS[path[-2]] if depth else BraidError)

    assert set(OURS) == drawn


def test_every_error_is_exported() -> None:
    """Whoever catches one need not know the module it lives in."""
    assert set(OURS) <= set(braidmq.client.__all__) <= set(braidmq.__all__)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            errors.NotSupported("blip", "headers", supported_by="vibe"),
            "blip does not support headers; vibe does",
        ),
        (
            errors.NotSupported("vibe", "ttl", reason="declare the queue with a ttl"),
            "vibe does not support ttl: declare the queue with a ttl",
        ),
        (errors.ConnectionFailed("h:1", "refused"), "cannot connect to h:1: refused"),
        (errors.ConnectionLost("h:1", "reset"), "lost the connection to h:1: reset"),
        (errors.StaleDelivery(7, "why"), "delivery 7 cannot be acknowledged: why"),
        (
            errors.SubscriptionRefused("t", 403, "forbidden"),
            "subscription to 't' refused: 403 forbidden",
        ),
        (errors.PublishRefused(403, "forbidden"), "publish refused: 403 forbidden"),
        (
            errors.PublishRefused(403, "forbidden", topic="t"),
            "publish to 't' refused: 403 forbidden",
        ),
        (
            errors.QueueRefused("q", "AUTH_FAILED", "not allowed"),
            "refused for queue 'q': AUTH_FAILED not allowed",
        ),
    ],
)
def test_errors_read_as_sentences(error: errors.ClientError, text: str) -> None:
    """One line says what happened, where and why."""
    assert text == str(error)


def test_a_failed_publish_is_both_refused_and_in_doubt() -> None:
    """Code 500 is an answer, and leaves open what is stored."""
    error = errors.PublishFailed(500, "durable publish failed: disk")

    assert isinstance(error, errors.PublishRefused)
    assert isinstance(error, errors.OutcomeUnknown)
    assert (500, "durable publish failed: disk") == (error.code, error.text)


def test_an_invalid_argument_is_a_value_error() -> None:
    """Callers who know only Python catch it too."""
    assert issubclass(errors.InvalidArgument, ValueError)


REFUSED = "[Errno 111] Connect call failed"
FAILURES = {
    "one address": (ConnectionRefusedError(111, "Connect call failed ('::1', 1)"), "refused"),
    "two": (
        OSError(f"Multiple exceptions: {REFUSED} ('::1', 1), {REFUSED} ('h', 1)"),
        "refused",
    ),
    "a name": (
        socket.gaierror(socket.EAI_NONAME, "Name or service not known"),
        "unknown host",
    ),
    "names for now": (
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        "Temporary failure in name resolution",
    ),
    "another": (OSError(-9, "odd"), "[Errno -9] odd"),
    "no number": (ConnectionResetError("it went away"), "it went away"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_failure_is_told_in_the_words_of_the_system(case: str) -> None:
    """Not in those of the event loop, and once for all addresses of a name."""
    error, said = FAILURES[case]

    assert said.replace("refused", os.strerror(errno.ECONNREFUSED)) == errors.reason_of(error)
