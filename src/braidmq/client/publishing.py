"""Messages in chunks, and chunks in flight: what publishing is on every strand.

It lays out no message and decides nothing about connections: a strand seals and sends, `strand`
launches and repeats.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Final, Generic, TypeVar

from braidmq.client.errors import InvalidArgument, NotSent, PublishError
from braidmq.client.messages import Payload, Receipt

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of `publish_many` that share one write; one message may be more."""

CHUNK_COUNT: Final = 2048
"""Messages of `publish_many` that share one write."""

FLIGHTS_MAX: Final = 4
"""Chunks of one `publish_many` that wait for their confirmation at the same time."""

T = TypeVar("T", bound=Sized)
"""A message as a strand hands it over."""

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
