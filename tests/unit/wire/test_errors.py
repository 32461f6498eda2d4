"""Wire errors: one tree, with data."""

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
def test_every_wire_error_derives_from_wire_error(error: type[WireError]) -> None:
    """The driver of a session needs only one except clause."""
    assert (error, WireError, BraidError) == error.__mro__[:3]


def test_the_error_for_a_large_frame_has_size_and_limit() -> None:
    """In its text and as attributes."""
    error = FrameTooLargeError(17, 16)

    assert "frame of 17 bytes, limit is 16" == str(error)
    assert (17, 16) == (error.length, error.length_max)
