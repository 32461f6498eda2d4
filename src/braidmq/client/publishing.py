"""Messages in chunks, and chunks in flight: how publishing works on every strand.

Nothing here lays out a message or decides about connections: a strand's `Posting` lays out and
sends, `strand` launches and retries.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from itertools import count
from typing import Any, ClassVar, Final, Generic, TypeVar

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client import capabilities
from braidmq.client.answers import Receipt
from braidmq.client.connection import C, Connection, Post
from braidmq.client.errors import (
    InvalidArgument,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
    PublishRefused,
)
from braidmq.client.options import Outgoing, Payload
from braidmq.client.replies import A, Refusal

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of `publish_many` that share one write; a single message may be larger."""

CHUNK_COUNT: Final = 2048
"""Messages of `publish_many` that share one write."""

FLIGHTS_MAX: Final = 4
"""Chunks of one `publish_many` that wait for their confirmation at the same time: more than
one, so that the broker always has the next one to work on."""

SERVER_ERROR: Final = "SERVER_ERROR"
SERVER_ERRORS_FROM: Final = 500
"""The codes that say that the broker failed, and so does not know what it has stored."""

T = TypeVar("T", bound=Sized)
"""A message as a strand hands it over."""

Chunk = list[T | PublishError]
"""Messages to send; one that cannot be sent is represented by its error, in its place."""


class Flight(ABC, Generic[T]):
    """A chunk that was handed over to a connection."""

    chunk: Chunk[T]

    @abstractmethod
    async def land(self, *, repeated: bool = False) -> list[Receipt | PublishError]:
        """Wait for the broker's answer; return the outcome of each message, in order."""


class Posting(ABC, Generic[C, T]):
    """The topic and options of a publish, checked once for any number of messages."""

    __slots__ = ()

    strand: ClassVar[str]

    @abstractmethod
    def lay_out(self, payload: Payload) -> T:
        """Return *payload* ready to be sent, or raise InvalidArgument."""

    def lay_out_own(self, message: Outgoing) -> T:
        """Return *message* ready to be sent; raise InvalidArgument, or NotSupported."""
        # Empty headers ask for nothing, so every strand takes them.
        asked = {"headers": bool(message.headers), "priority": message.priority is not None}
        capabilities.check(self.strand, (name for name, is_asked in asked.items() if is_asked))
        return self.lay_out(message.payload)

    @abstractmethod
    def fly(self, chunk: Chunk[T], connection: C) -> Flight[T]:
        """Hand *chunk* over to *connection*."""


class AnsweredFlight(Flight[Post], Generic[A]):
    """A chunk of messages each of which gets an answer, which *judge* turns into an outcome."""

    __slots__ = ("_connection", "_judge", "_replies", "chunk")

    def __init__(
        self,
        chunk: Chunk[Post],
        connection: Connection[A],
        judge: Callable[[Post, A, bool], Receipt | PublishError],
    ) -> None:
        self.chunk = chunk
        self._connection: Connection[Any] = connection
        self._judge = judge
        self._replies = connection.post([one for one in chunk if isinstance(one, Post)])

    async def land(self, *, repeated: bool = False) -> list[Receipt | PublishError]:
        """Wait for all answers; what was answered before a break is known."""
        await self._replies.done
        answers = iter(self._replies.answers)
        results: list[Receipt | PublishError] = []
        for one in self.chunk:
            if isinstance(one, PublishError):
                results.append(one)
                continue
            answer = next(answers)
            if answer is None:
                results.append(OutcomeUnknown(str(self._connection.lost())))
            else:
                results.append(self._judge(one, answer, repeated))
        return results


def refused(refusal: Refusal, topic: str) -> PublishRefused:
    """Return the error for a publish to *topic* that the broker refused."""
    code = refusal.code
    failed = code >= SERVER_ERRORS_FROM if isinstance(code, int) else code == SERVER_ERROR
    return (PublishFailed if failed else PublishRefused)(code, refusal.text, topic=topic)


def message_ids(publisher_bytes: int) -> Callable[[], str]:
    """Return a source of ids that no other publisher uses: a random part, and a number."""
    publisher = os.urandom(publisher_bytes).hex()
    numbers = count(1)
    return lambda: f"{publisher}-{next(numbers)}"


def utf8(what: str, text: str, bytes_max: int) -> bytes:
    """Return *text* as UTF-8, or raise InvalidArgument with *what* it is, such as `a topic`."""
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} is text without lone surrogates") from None
    if len(raw) > bytes_max:
        raise InvalidArgument(f"{what} has at most {bytes_max} bytes, not {len(raw)}")
    return raw


def check_topic(topic: str) -> None:
    """Raise InvalidArgument unless *topic* is a valid topic; Vibe has names of its own."""
    if not utf8("a topic", topic, TOPIC_BYTES_MAX):
        raise InvalidArgument(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes of UTF-8")


def payload_bytes(payload: Payload) -> bytes:
    """Return *payload* as bytes, or raise InvalidArgument."""
    if isinstance(payload, bytes):
        return payload
    # Through a memoryview, which takes only buffers: bytes(5) would be five zeros.
    try:
        return bytes(memoryview(payload))
    except TypeError:
        kind = type(payload).__name__
        raise InvalidArgument(f"a payload is bytes, not {kind}") from None


def chunks(
    posting: Posting[Any, T], payloads: Iterable[Payload | Outgoing]
) -> Iterator[Chunk[T]]:
    """Lay out *payloads* and cut them into chunks; read no further than the current chunk."""
    lay_out = posting.lay_out
    chunk: Chunk[T] = []
    size = 0
    for payload in payloads:
        try:
            if isinstance(payload, Outgoing):
                laid_out = posting.lay_out_own(payload)
            else:
                laid_out = lay_out(payload)
        except (InvalidArgument, NotSupported) as error:
            # It keeps its place, so that results and payloads correspond. It takes no room in
            # a write, so it does not end the chunk either.
            chunk.append(NotSent(str(error)))
            continue
        chunk.append(laid_out)
        size += len(laid_out)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_COUNT:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
