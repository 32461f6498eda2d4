"""Errors of the wire: one tree, with data."""

import pytest

from braidmq.base.errors import BraidError
from braidmq.wire.errors import (
    FrameTooLargeError,
    MalformedFrameError,
    MalformedPayloadError,
    WireError,
)


@pytest.mark.parametrize(
    "error", [FrameTooLargeError, MalformedFrameError, MalformedPayloadError]
)
def test_every_wire_error_is_caught_as_one(error: type[WireError]) -> None:
    """Whoever drives a session needs one except clause."""
    assert (error, WireError, BraidError) == error.__mro__[:3]


def test_a_frame_that_is_too_large_says_both_numbers() -> None:
    """The error carries what was announced and what is allowed, in words and as data."""
    error = FrameTooLargeError(17, 16)

    assert "frame of 17 bytes, limit is 16" == str(error)
    assert (17, 16) == (error.length, error.length_max)
