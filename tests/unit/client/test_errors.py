"""Errors of the client library."""

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


def test_the_tree_in_the_module_docstring_is_complete_and_correct() -> None:
    """The docstring lists every error, below the class that it derives from."""
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
    """Callers can catch an error without knowing its module."""
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


def test_a_failed_publish_is_a_refusal_with_unknown_outcome() -> None:
    """Code 500 is an answer, but does not tell whether the message was stored."""
    error = errors.PublishFailed(500, "durable publish failed: disk")

    assert isinstance(error, errors.PublishRefused)
    assert isinstance(error, errors.OutcomeUnknown)
    assert (500, "durable publish failed: disk") == (error.code, error.text)


def test_an_invalid_argument_is_a_value_error() -> None:
    """Callers that know only the built-in exceptions can catch it too."""
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
        "no host has that name",
    ),
    "a name, for now": (
        socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"),
        "Temporary failure in name resolution",
    ),
    "another": (OSError(-9, "odd"), "[Errno -9] odd"),
    "no errno": (ConnectionResetError("it went away"), "it went away"),
}


@pytest.mark.parametrize("case", FAILURES)
def test_a_connection_failure_is_described_as_the_system_does(case: str) -> None:
    """Without the event loop's wording, and once for all addresses of a name."""
    error, expected = FAILURES[case]

    assert expected.replace("refused", os.strerror(errno.ECONNREFUSED)) == errors.reason_of(
        error
    )
