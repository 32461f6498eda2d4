"""What a Vibe publisher sends: messages checked and laid out as Publish bodies."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from braidmq.client.answers import Receipt
from braidmq.client.connection import Post
from braidmq.client.deliveries import instant_of_iso
from braidmq.client.errors import InvalidArgument, OutcomeUnknown, PublishError
from braidmq.client.options import Outgoing, Payload, Priority
from braidmq.client.publishing import (
    AnsweredFlight,
    Chunk,
    Posting,
    payload_bytes,
    refused,
    utf8,
)
from braidmq.client.vibe.connection import VibeConnection
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.messages import Body, is_json
from braidmq.wire.vibe.session import PUBLISH_SPARE_BYTES

BODY_BYTES_MAX: Final = frames.BODY_MAX - PUBLISH_SPARE_BYTES
"""A broker with the default configuration hangs up on a longer Publish."""

PRIORITY_HEADER: Final = "priority"

_PRIORITIES: Final = {one.value: one.name.capitalize() for one in Priority}


class VibePosting(Posting[VibeConnection, Post]):
    """A queue's name and headers, checked once for any number of messages.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
    """

    __slots__ = ("_headers", "_next_id", "queue")

    strand = "vibe"

    def __init__(
        self,
        queue: str,
        next_id: Callable[[], str],
        *,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
    ) -> None:
        check_queue(queue)
        self.queue = queue
        self._next_id = next_id
        self._headers = _checked_headers({}, headers, priority)

    def lay_out(self, payload: Payload) -> Post:
        """Return *payload* as a Publish, or raise InvalidArgument."""
        return self._publish(payload, self._headers)

    def lay_out_own(self, message: Outgoing) -> Post:
        """Return *message* as a Publish with its own headers, or raise InvalidArgument."""
        headers = _checked_headers(self._headers, message.headers, message.priority)
        return self._publish(message.payload, headers)

    def _publish(self, payload: Payload, headers: dict[str, str]) -> Post:
        raw = payload_bytes(payload)
        if raw and not is_json(raw):
            raise InvalidArgument("a payload on Vibe is JSON (UTF-8, RFC 8259) or empty")
        message_id = self._next_id()
        body = messages.write_body(
            messages.PUBLISH, message_id, self.queue, raw, headers, with_errors=False
        )
        if len(body) > BODY_BYTES_MAX:
            size = f"{len(body)} bytes with its headers, at most {BODY_BYTES_MAX}"
            raise InvalidArgument(f"the message does not fit into a frame: {size}")
        return Post(message_id, body)

    def fly(self, chunk: Chunk[Post], connection: VibeConnection) -> AnsweredFlight[Body]:
        """Hand *chunk* over to *connection*."""
        return AnsweredFlight(chunk, connection, self.outcome)

    def outcome(self, one: Post, answer: Body, repeated: bool) -> Receipt | PublishError:  # noqa: FBT001 - as a flight calls it
        """Return what an answer means for its message."""
        if (refusal := VibeConnection.refusal_of(answer)) is not None:
            return refused(refusal, self.queue)
        if answer.type == messages.PUBLISH_ACK:
            return Receipt(
                self.queue,
                1,
                durable=True,
                id=one.id,
                repeated=repeated,
                timestamp=instant_of_iso(answer.headers.get("timestamp", "")),
            )
        return OutcomeUnknown(f"the broker answered with message type {answer.type}")


def check_queue(name: str) -> None:
    """Raise InvalidArgument unless *name* is a valid queue name."""
    if not messages.is_queue_name(name):
        limit = messages.QUEUE_NAME_CHARS_MAX
        form = f"1 to {limit} letters, digits, hyphens, underscores and dots"
        raise InvalidArgument(f"a queue name on Vibe has {form}")


def _priority(priority: int) -> str:
    try:
        return _PRIORITIES[priority]
    except KeyError:
        known = ", ".join(f"{number} {name}" for number, name in _PRIORITIES.items())
        raise InvalidArgument(f"priority is one of {known}, not {priority}") from None


def _checked_headers(
    common: Mapping[str, str], own: Mapping[str, str] | None, priority: int | None
) -> dict[str, str]:
    """Return both, and the priority as the header that it is, or raise InvalidArgument."""
    headers = {**common, **(own or {})}
    if priority is not None:
        headers[PRIORITY_HEADER] = _priority(priority)
    _check_headers(headers)
    return headers


def _check_headers(headers: Mapping[Any, Any]) -> None:
    if len(headers) > messages.HEADERS_MAX:
        count = f"{len(headers)}, at most {messages.HEADERS_MAX}"
        raise InvalidArgument(f"too many headers: {count}")
    for key, value in headers.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument("header names and values are strings")
        if not key:
            raise InvalidArgument("a header name must not be empty")
        for text in (key, value):
            utf8("a header", text, messages.TEXT_BYTES_MAX)
