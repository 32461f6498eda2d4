"""Messages in chunks, and chunks in flight: what publishing is on every strand.

It lays out no message and decides nothing about connections: a strand seals and sends, `strand`
launches and repeats.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Final, Generic, TypeVar

from braidmq.client.deliveries import Payload, Receipt
from braidmq.client.errors import (
    ClientError,
    InvalidArgument,
    NotSent,
    NotSupported,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
    PublishRefused,
)
from braidmq.client.replies import Refusal, Replies

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of `publish_many` that share one write; one message may be more."""

CHUNK_COUNT: Final = 2048
"""Messages of `publish_many` that share one write."""

FLIGHTS_MAX: Final = 4
"""Chunks of one `publish_many` that wait for their confirmation at the same time."""

SERVER_ERROR: Final = "SERVER_ERROR"
"""The code of an Error that is the broker's own fault, on every strand that has such texts."""

T = TypeVar("T", bound=Sized)
"""A message as a strand hands it over."""

A = TypeVar("A")
"""An answer, as the strand reads it."""

Chunk = list[T | PublishError]
"""Messages to send, and in their places the errors of those that cannot be."""


class Flight(ABC, Generic[T]):
    """A chunk that was handed over to a connection."""

    chunk: Chunk[T]

    @abstractmethod
    async def landed(self) -> bool:
        """Wait for the broker's word on it; return False when the connection broke first."""

    @abstractmethod
    def results(self, *, reached: bool, repeated: bool = False) -> list[Receipt | PublishError]:
        """Return what came of each message."""


class AnsweredFlight(Flight[T], Generic[T, A]):
    """A chunk of messages each of which gets an answer of its own.

    *lost* says why there will be none when the connection broke.
    """

    __slots__ = ("_lost", "_replies", "chunk")

    def __init__(
        self, chunk: Chunk[T], replies: Replies[A], lost: Callable[[], ClientError]
    ) -> None:
        self.chunk = chunk
        self._replies = replies
        self._lost = lost

    async def landed(self) -> bool:
        """Wait for all answers; return False when the connection broke first."""
        return await self._replies.done

    def results(self, *, reached: bool, repeated: bool = False) -> list[Receipt | PublishError]:
        """Return what came of each message: what was answered before a break is known."""
        del reached
        answers = iter(self._replies.answers)
        results: list[Receipt | PublishError] = []
        for one in self.chunk:
            if isinstance(one, PublishError):
                results.append(one)
                continue
            answer = next(answers)
            if answer is None:
                results.append(OutcomeUnknown(str(self._lost())))
            else:
                results.append(self.judged(one, answer, repeated=repeated))
        return results

    @abstractmethod
    def judged(self, one: T, answer: A, *, repeated: bool) -> Receipt | PublishError:
        """Return what an answer means for its message."""


def check_confirmed(strand: str, qos: int) -> None:
    """Raise NotSupported unless *qos* is 1, where every publish is confirmed."""
    if qos != 1:
        raise NotSupported(strand, f"qos {qos}")


def refused(refusal: Refusal, topic: str) -> PublishRefused:
    """Return the error that a refused publish to *topic* means."""
    kind = PublishFailed if refusal.code == SERVER_ERROR else PublishRefused
    return kind(refusal.code, refusal.text, topic=topic)


def payload_bytes(payload: Payload) -> bytes:
    """Return *payload* as bytes, or raise InvalidArgument."""
    if isinstance(payload, bytes):
        return payload
    try:
        return bytes(memoryview(payload))
    except TypeError:
        kind = type(payload).__name__
        raise InvalidArgument(f"a payload is bytes, not {kind}") from None


def chunks(seal: Callable[[Payload], T], payloads: Iterable[Payload]) -> Iterator[Chunk[T]]:
    """Seal and cut *payloads* into chunks, read no further than the chunk at hand."""
    chunk: Chunk[T] = []
    size = 0
    for payload in payloads:
        try:
            sealed = seal(payload)
        except InvalidArgument as error:
            chunk.append(NotSent(str(error)))
            continue
        chunk.append(sealed)
        size += len(sealed)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_COUNT:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
