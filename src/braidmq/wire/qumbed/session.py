"""A Qumbed stream as the server sees it: bytes in, valid commands out.

The session itself answers what needs no broker (refusals) with a :class:`Reply`, and returns
the frames that a client may send. It keeps no queue: the caller takes one command at a time, so
a command that must wait holds up everything after it.

A stream has no states: every client frame may come at any time, until the first bad one, after
which the stream is closed. The session knows no permissions, topics or schemas.
"""

from typing import Final

from braidmq.base import refusals
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
"""Nonce and tag: how much longer a payload gets when it is sealed."""

# A Message is longer than its Publish by at most what a Message can add, so shorter Publishes
# need no closer look: on the hot path one comparison decides.
_SURELY_FITS_BYTES: Final = frames.FRAME_MAX - messages.message_bytes(b"", SEAL_BYTES + 2)

assert _SURELY_FITS_BYTES > 0


class Reply:
    """The session's own answer; with `closes`, send it and then close the stream."""

    def __init__(self, data: bytes, *, closes: bool) -> None:
        self.kind: int = REPLY
        self.data: bytes = data
        self.closes: bool = closes


Command = Publish | Subscribe | Unsubscribe | Discovery | Reply
"""What :meth:`Session.next_command` returns; each has a `kind`."""


class Session:
    """One stream: its frames in order, until one of them is malformed."""

    def __init__(self) -> None:
        self._decoder = frames.FrameDecoder(frames.FRAME_MAX)
        self._is_lost: bool = False

    @property
    def held_bytes(self) -> int:
        """Bytes received that were not yet returned as a command."""
        return self._decoder.held_bytes

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_command` asks for it; ignore it after a bad frame."""
        if not self._is_lost:
            self._decoder.receive_data(data)

    def next_command(self) -> Command | None:
        """Return the next command, or None if more bytes are needed; never raise.

        For a frame that is too large or malformed, the last command is a Reply that closes;
        after it, only None.
        """
        if self._is_lost:
            return None
        try:
            data = self._decoder.next_payload()
            if data is None:
                return None
            frame = messages.read_frame(data)
        except FrameTooLargeError as error:
            return self._lose(FRAME_TOO_LARGE, f"{error}; {refusals.FOR_GOOD}", "")
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
        self._decoder = frames.FrameDecoder(frames.FRAME_MAX)  # frees what is held
        return Reply(messages.error(code, text, frame_id), closes=True)


def _fits(publish: Publish) -> bool:
    """Tell whether the Message will fit a frame, if need be sealed by the gateway."""
    topic = messages.quote(publish.topic)
    schema_id = messages.quote(publish.schema_id)
    size = len(publish.payload)
    if messages.message_bytes(topic, size + SEAL_BYTES, schema_id) <= frames.FRAME_MAX:
        return True
    if messages.message_bytes(topic, size, schema_id) > frames.FRAME_MAX:
        return False
    # It fits only if the gateway does not seal it, that is, if the client has. A sealed payload
    # of this size is random bytes and never UTF-8; anything that may be JSON always is.
    return bool(publish.sender_public_key) and size >= SEAL_BYTES and not _is_utf_8(publish)


def _is_utf_8(publish: Publish) -> bool:
    try:
        publish.payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def _refuse_size(publish: Publish) -> Reply:
    text = refusals.by_bound("the message would not fit a frame", frames.FRAME_MAX, "bytes")
    return Reply(messages.error(FRAME_TOO_LARGE, text, publish.id), closes=False)
