"""A Qumbed stream as the server sees it: bytes in, commands out, nothing wrong among them.

The session answers by itself what needs no broker (refusals) with a :class:`Reply`, and hands
on the frames that a client may send. It keeps no queue: whoever drives it takes one command at
a time, so that a command that must wait holds up what is behind it. A stream has no states;
who may do what, and what topics and schemas there are, is not known here.
"""

from typing import Final

from braidmq.wire.errors import FrameTooLargeError, WireError
from braidmq.wire.qumbed import frames, messages
from braidmq.wire.qumbed.layout import BadFrameError
from braidmq.wire.qumbed.messages import Discovery, Publish, Subscribe, Unsubscribe

SCHEMA_UNKNOWN: Final = "SCHEMA_UNKNOWN"
SCHEMA_INVALID: Final = "SCHEMA_INVALID"
UNAUTHORIZED: Final = "UNAUTHORIZED"
RATE_LIMIT: Final = "RATE_LIMIT"
BAD_FRAME: Final = "BAD_FRAME"
FRAME_TOO_LARGE: Final = "FRAME_TOO_LARGE"
SERVER_ERROR: Final = "SERVER_ERROR"

REPLY: Final = -1
"""The kind of a :class:`Reply`; no frame has it."""

SEAL_BYTES: Final = 40
"""Nonce and tag: what a payload gains when it is sealed."""

# A Message is longer than its Publish by no more than all that a Message can add.
_SURELY_FITS_BYTES: Final = frames.FRAME_MAX - messages.message_bytes(b"", SEAL_BYTES + 2)

assert _SURELY_FITS_BYTES > 0


class Reply:
    """A frame that the session itself answers with; `closes`: send it, then close."""

    def __init__(self, data: bytes, *, closes: bool) -> None:
        self.kind: int = REPLY
        self.data: bytes = data
        self.closes: bool = closes


Command = Publish | Subscribe | Unsubscribe | Discovery | Reply
"""What :meth:`Session.next_command` gives out; each has a `kind`."""


class Session:
    """One stream: its frames in their order, until one of them cannot be understood."""

    def __init__(self) -> None:
        self._decoder = frames.FrameDecoder(frames.FRAME_MAX)
        self._is_lost: bool = False

    @property
    def held_bytes(self) -> int:
        """Bytes received and not yet given out as a command."""
        return self._decoder.held_bytes

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_command` asks for it; ignore it after a bad frame."""
        if not self._is_lost:
            self._decoder.receive_data(data)

    def next_command(self) -> Command | None:
        """Return the next command, or None when more bytes are needed; never raise.

        After a frame that is too large or bad the answer is a last Reply that closes, and None
        ever after.
        """
        if self._is_lost:
            return None
        try:
            data = self._decoder.next_payload()
            if data is None:
                return None
            frame = messages.read_frame(data)
        except FrameTooLargeError as error:
            return self._lose(FRAME_TOO_LARGE, str(error), "")
        except BadFrameError as error:
            return self._lose(BAD_FRAME, str(error), error.id)
        except WireError as error:
            return self._lose(BAD_FRAME, str(error), "")
        if isinstance(frame, Publish):
            if len(data) > _SURELY_FITS_BYTES and not _fits(frame):
                return _refuse_size(frame)
            return frame
        if isinstance(frame, Subscribe | Unsubscribe | Discovery):
            return frame
        return self._lose(BAD_FRAME, "a client does not send frames of this type", frame.id)

    def _lose(self, code: str, text: str, frame_id: str) -> Reply:
        self._is_lost = True
        self._decoder = frames.FrameDecoder(frames.FRAME_MAX)  # what follows is ignored
        return Reply(messages.error(code, text, frame_id), closes=True)


def _fits(publish: Publish) -> bool:
    """Tell whether the Message fits a frame, sealed by us where the client has not."""
    topic = messages.quote(publish.topic)
    schema_id = messages.quote(publish.schema_id)
    size = len(publish.payload)
    if messages.message_bytes(topic, size + SEAL_BYTES, schema_id) <= frames.FRAME_MAX:
        return True
    if messages.message_bytes(topic, size, schema_id) > frames.FRAME_MAX:
        return False
    # Of so many bytes a sealed payload is never UTF-8, and one that may be JSON always is.
    return bool(publish.sender_public_key) and size >= SEAL_BYTES and not _is_utf_8(publish)


def _is_utf_8(publish: Publish) -> bool:
    try:
        publish.payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_size(publish: Publish) -> Reply:
    text = f"the message would not fit a frame of {frames.FRAME_MAX} bytes"
    return Reply(messages.error(FRAME_TOO_LARGE, text, publish.id), closes=False)
