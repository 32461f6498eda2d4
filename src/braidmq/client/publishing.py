"""What a Blip publisher sends: a message checked and laid out, and many of them in flight.

It decides nothing about connections: `blip` launches flights and repeats them.
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.connection import BlipConnection, Fence, Refusal
from braidmq.client.errors import (
    InvalidArgument,
    NotSent,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
    PublishRefused,
)
from braidmq.client.messages import Payload, Receipt
from braidmq.wire.blip import frames, messages

CHUNK_BYTES: Final = 256 * 1024
"""Bytes of `publish_many` that share one write and one fence; one message may be more."""

CHUNK_COUNT: Final = 2048
"""Messages of `publish_many` that share one write and one fence."""

FLIGHTS_MAX: Final = 4
"""Chunks of one `publish_many` that wait for their confirmation at the same time."""

SERVER_ERROR: Final = 500
"""The code that says: the outcome is unknown, repeat it."""

_LENGTH_WITHOUT_BODY: Final = frames.LENGTH_MIN + 1  # and the qos


class Envelope:
    """A topic and a qos, checked and laid out once for any number of messages.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
    """

    __slots__ = ("payload_max", "prefix", "qos", "topic")

    def __init__(self, topic: str, qos: int) -> None:
        check_qos(qos)
        check_topic(topic)
        self.topic = topic
        self.qos = qos
        self.prefix = messages.topic_and_message(topic, b"")
        self.payload_max = frames.LENGTH_MAX - _LENGTH_WITHOUT_BODY - len(self.prefix)

    def payload(self, payload: Payload) -> bytes:
        """Return *payload* as bytes that fit into a frame, or raise InvalidArgument."""
        if not isinstance(payload, bytes):
            try:
                payload = bytes(memoryview(payload))
            except TypeError:
                kind = type(payload).__name__
                raise InvalidArgument(f"a payload is bytes, not {kind}") from None
        if len(payload) > self.payload_max:
            size = f"{len(payload)} bytes, at most {self.payload_max}"
            raise InvalidArgument(f"the payload does not fit into a frame: {size}")
        return payload

    def receipt(self, *, repeated: bool = False) -> Receipt:
        """Return the receipt of a message that went well."""
        return Receipt(self.topic, self.qos, durable=self.qos > 0, repeated=repeated)


Chunk = list[bytes | PublishError]
"""Messages to send, and in their places the errors of those that cannot be."""


def check_topic(topic: str) -> None:
    """Raise InvalidArgument unless *topic* is one."""
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("a topic is text without lone surrogates") from None
    if not 1 <= size <= TOPIC_BYTES_MAX:
        raise InvalidArgument(f"a topic has 1 to {TOPIC_BYTES_MAX} bytes of UTF-8, not {size}")


def check_qos(qos: int) -> None:
    """Raise InvalidArgument unless *qos* is one that Blip has."""
    if qos not in {0, 1}:
        raise InvalidArgument(f"qos is 0 or 1, not {qos}")


def refused(refusal: Refusal) -> PublishRefused:
    """Return the error that a NACK to a PUBLISH means."""
    kind = PublishFailed if refusal.code >= SERVER_ERROR else PublishRefused
    return kind(refusal.code, refusal.text)


def chunks(envelope: Envelope, payloads: Iterable[Payload]) -> Iterator[Chunk]:
    """Cut *payloads* into chunks, read no further than the chunk at hand."""
    chunk: Chunk = []
    size = 0
    for payload in payloads:
        try:
            raw = envelope.payload(payload)
        except InvalidArgument as error:
            chunk.append(NotSent(str(error)))
            continue
        chunk.append(raw)
        size += len(raw)
        if size >= CHUNK_BYTES or len(chunk) >= CHUNK_COUNT:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class Flight:
    """A chunk that was handed over to a connection, and the fence behind it."""

    __slots__ = ("_envelope", "_fence", "_ids", "_waiter", "chunk", "connection")

    def __init__(self, envelope: Envelope, chunk: Chunk, connection: BlipConnection) -> None:
        self._envelope = envelope
        self.chunk = chunk
        self.connection = connection
        self._ids = [
            connection.publish(envelope.prefix, payload, qos=envelope.qos)
            for payload in chunk
            if isinstance(payload, bytes)
        ]
        self._fence: Fence | None = None
        self._waiter: asyncio.Future[bool] | None = None
        if envelope.qos:
            self._fence, self._waiter = connection.fence()

    async def landed(self) -> bool:
        """Wait for the fence; return False when the connection broke first."""
        return self._waiter is None or await self._waiter

    def results(self, *, reached: bool, repeated: bool = False) -> list[Receipt | PublishError]:
        """Return what came of each message."""
        receipt = self._envelope.receipt(repeated=repeated)
        refusals = self._fence.refusals if self._fence is not None else {}
        ids = iter(self._ids)
        results: list[Receipt | PublishError] = []
        for payload in self.chunk:
            if not isinstance(payload, bytes):
                results.append(payload)
                continue
            refusal = refusals.get(next(ids))
            if refusal is not None:
                results.append(refused(refusal))
            elif reached:
                results.append(receipt)
            else:
                results.append(OutcomeUnknown(str(self.connection.lost())))
        return results
