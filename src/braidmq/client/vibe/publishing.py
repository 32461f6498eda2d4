"""What a Vibe publisher sends: a message checked and laid out, and many of them in flight."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from braidmq.client.deliveries import Payload, Priority, Receipt
from braidmq.client.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PublishError,
)
from braidmq.client.publishing import (
    AnsweredFlight,
    Chunk,
    check_confirmed,
    payload_bytes,
    refused,
)
from braidmq.client.vibe.connection import VibeConnection, refusal_of
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.json_payload import is_json
from braidmq.wire.vibe.messages import Body
from braidmq.wire.vibe.session import PUBLISH_SPARE_BYTES

STRAND: Final = "vibe"

BODY_BYTES_MAX: Final = frames.BODY_MAX - PUBLISH_SPARE_BYTES
"""A broker as it is configured by default hangs up on a longer Publish."""

PRIORITY_HEADER: Final = "priority"

_PRIORITIES: Final = {one.value: one.name.capitalize() for one in Priority}


class Sealed:
    """A message laid out; sent again it has the same id, so that consumers can tell."""

    __slots__ = ("body", "id")

    def __init__(self, message_id: str, body: bytes) -> None:
        self.id = message_id
        self.body = body

    def __len__(self) -> int:
        return len(self.body)


class Envelope:
    """A queue's name and headers, checked once for any number of messages.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
        NotSupported: The qos is one that Vibe lacks.
    """

    __slots__ = ("_headers", "_next_id", "queue")

    def __init__(
        self,
        queue: str,
        next_id: Callable[[], str],
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
    ) -> None:
        check_queue(queue)
        check_confirmed(STRAND, qos)
        self.queue = queue
        self._next_id = next_id
        self._headers = dict(headers or {})
        if priority is not None:
            self._headers[PRIORITY_HEADER] = _priority(priority)
        _check_headers(self._headers)

    def seal(self, payload: Payload) -> Sealed:
        """Lay out a message, or raise InvalidArgument."""
        raw = payload_bytes(payload)
        if raw and not is_json(raw):
            raise InvalidArgument("a payload on Vibe is JSON (UTF-8, RFC 8259) or empty")
        message_id = self._next_id()
        body = messages.write_body(
            messages.PUBLISH, message_id, self.queue, raw, self._headers, with_errors=False
        )
        if len(body) > BODY_BYTES_MAX:
            size = f"{len(body)} bytes with its headers, at most {BODY_BYTES_MAX}"
            raise InvalidArgument(f"the message does not fit into a frame: {size}")
        return Sealed(message_id, body)

    def receipt(self, message_id: str, *, repeated: bool) -> Receipt:
        """Return the receipt of a message that went well."""
        return Receipt(self.queue, 1, durable=True, id=message_id, repeated=repeated)


def check_queue(name: str) -> None:
    """Raise InvalidArgument unless *name* is a queue's."""
    if not messages.is_queue_name(name):
        limit = messages.QUEUE_NAME_CHARS_MAX
        form = f"1 to {limit} letters, digits, hyphens, underscores and dots"
        raise InvalidArgument(f"a queue's name on Vibe has {form}")


class VibeFlight(AnsweredFlight[Sealed, Body]):
    """A chunk that was handed over to a connection, and the answers to it."""

    __slots__ = ("_envelope",)

    def __init__(
        self, envelope: Envelope, chunk: Chunk[Sealed], connection: VibeConnection
    ) -> None:
        sealed = [one for one in chunk if isinstance(one, Sealed)]
        super().__init__(chunk, connection.publish(sealed), connection.lost)
        self._envelope = envelope

    def judged(self, one: Sealed, answer: Body, *, repeated: bool) -> Receipt | PublishError:
        """Return what an answer means for its message."""
        if (refusal := refusal_of(answer)) is not None:
            return refused(refusal, self._envelope.queue)
        if answer.type == messages.PUBLISH_ACK:
            return self._envelope.receipt(one.id, repeated=repeated)
        return OutcomeUnknown(f"answered with message type {answer.type}")


def _priority(priority: int) -> str:
    try:
        return _PRIORITIES[priority]
    except KeyError:
        known = ", ".join(f"{number} {name}" for number, name in _PRIORITIES.items())
        raise InvalidArgument(f"priority is one of {known}, not {priority}") from None


def _check_headers(headers: Mapping[Any, Any]) -> None:
    if len(headers) > messages.HEADERS_MAX:
        count = f"{len(headers)}, at most {messages.HEADERS_MAX}"
        raise InvalidArgument(f"too many headers: {count}")
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument("headers are texts with texts as names")
        if not key:
            raise InvalidArgument("a header has a name")
        for text in (key, value):
            try:
                size = len(text.encode())
            except UnicodeEncodeError:
                raise InvalidArgument("headers are texts without lone surrogates") from None
            if size > messages.TEXT_BYTES_MAX:
                limit = messages.TEXT_BYTES_MAX
                raise InvalidArgument(f"a header has at most {limit} bytes, not {size}")
