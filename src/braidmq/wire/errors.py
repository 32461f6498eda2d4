"""Errors in a peer's bytes after which the connection cannot go on.

    WireError
    |-- FrameTooLargeError      the peer announced more than we will hold
    |-- MalformedFrameError     the header holds a value that the format forbids
    `-- MalformedPayloadError   a payload does not have the layout of its frame type

Once a frame error was raised the framing is lost: nothing says where the next frame starts.
Answer the frames that came before, then close.
"""

from braidmq.base.errors import BraidError


class WireError(BraidError):
    """A peer's bytes break the protocol."""


class MalformedFrameError(WireError):
    """A frame header holds a value that the format forbids."""


class MalformedPayloadError(WireError):
    """A payload does not have the layout of its frame type."""


class FrameTooLargeError(WireError):
    """The peer announced a longer frame than we will hold."""

    def __init__(self, length: int, length_max: int) -> None:
        super().__init__(f"frame of {length} bytes, limit is {length_max}")
        self.length = length
        self.length_max = length_max
