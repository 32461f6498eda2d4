"""The JSON of Qumbed frames as typed structs: bytes in, a struct or a BadFrameError out.

Every field may be absent or null, but not of another type; unknown keys are ignored. This
module checks syntax, depth, types and base64. `messages` checks which fields are required and
what they mean.
"""

from typing import Final

import msgspec

from braidmq.base.strict_json import is_deeper
from braidmq.wire.errors import MalformedPayloadError

DEPTH_MAX: Final = 32
"""Arrays and objects around the innermost value, including the frame's own two."""

ID_BYTES_MAX: Final = 256
"""The longest id of a frame; the server holds it until the frame is answered."""


class BadFrameError(MalformedPayloadError):
    """A frame's JSON is not valid; `id` is the frame's, if it could be read."""

    def __init__(self, problem: str, frame_id: str = "") -> None:
        super().__init__(problem)
        self.id = frame_id


class Named(msgspec.Struct, gc=False):
    """The object of any frame type, as far as it may carry the sender's id of the frame."""

    id: str | None = None


class Publish(Named, gc=False):
    """The object of `p`."""

    topic: str | None = None
    payload: bytes | None = None
    schema_id: str | None = None
    recipient_key_id: bytes | None = None
    sender_public_key: bytes | None = None


class Subscribe(Named, gc=False):
    """The object of `s`."""

    topic: str | None = None
    schema_id: str | None = None
    public_key: bytes | None = None


class Unsubscribe(Named, gc=False):
    """The object of `u`."""

    topic: str | None = None


class Message(Named, gc=False):
    """The object of `m`."""

    topic: str | None = None
    encrypted_payload: bytes | None = None
    sender_key_id: bytes | None = None
    sender_public_key: bytes | None = None
    schema_id: str | None = None
    timestamp_ms: int | None = None


class Ack(msgspec.Struct, gc=False):
    """The object of `a`."""

    message_id: str | None = None
    ok: bool | None = None
    delivered: int | None = None
    timestamp_ms: int | None = None


class Error(Named, gc=False):
    """The object of `e`."""

    code: str | None = None
    message: str | None = None


class Discovery(Named):
    """The object of `d`."""

    node_id: str | None = None
    topics: list[str] | None = None
    public_key: bytes | None = None
    addr: str | None = None
    receipts: str | None = None


class Frame(msgspec.Struct):
    """A frame: its type, the object of that type, and `k`."""

    t: int | float  # float is accepted only to refuse 1.0 with a text of its own
    p: Publish | None = None
    s: Subscribe | None = None
    u: Unsubscribe | None = None
    m: Message | None = None
    a: Ack | None = None
    e: Error | None = None
    d: Discovery | None = None
    k: str | None = None


class _NamedFrame(msgspec.Struct):
    p: Named | None = None
    s: Named | None = None
    u: Named | None = None
    d: Named | None = None


_decoder: Final = msgspec.json.Decoder(Frame)
_any: Final = msgspec.json.Decoder(msgspec.Raw)  # checks the syntax, builds no object
_names: Final = msgspec.json.Decoder(_NamedFrame)


def decode(payload: bytes) -> Frame:
    """Return the struct of one frame.

    Raises:
        BadFrameError: It is not JSON, too deep, or a field is of another type than its own.
            The text repeats nothing of the payload.
    """
    try:
        # msgspec skips the values of unknown keys unread; they must be UTF-8 all the same.
        if not payload.isascii():
            payload.decode()
        # Counting brackets settles the depth of nearly every frame. Only for the others is the
        # syntax checked first, which `is_deeper` relies on.
        if payload.count(b"[") + payload.count(b"{") > DEPTH_MAX:
            _any.decode(payload)
            if is_deeper(payload, DEPTH_MAX):
                raise BadFrameError(f"the frame is more than {DEPTH_MAX} levels deep")
        return _decoder.decode(payload)
    except msgspec.ValidationError as error:
        # msgspec's text names the field and the two types, never the value.
        raise BadFrameError(str(error), name_of(payload)) from None
    except RecursionError:
        raise BadFrameError(f"the frame is more than {DEPTH_MAX} levels deep") from None
    except ValueError:
        raise BadFrameError("the frame is not JSON") from None


def name_of(payload: bytes) -> str:
    """Return the id of a frame that is invalid elsewhere, or "" if it has none."""
    try:
        named = _names.decode(payload)
    except (ValueError, RecursionError):
        return ""
    for part in (named.p, named.s, named.u, named.d):
        if part is not None and part.id and len(part.id.encode()) <= ID_BYTES_MAX:
            return part.id
    return ""
