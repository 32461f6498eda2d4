"""What a Blip publisher sends: a message checked and laid out, and many of them in flight."""

import asyncio
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.blip.connection import BlipConnection, Refusal
from braidmq.client.connection import Fence
from braidmq.client.deliveries import Payload, Receipt
from braidmq.client.errors import (
    InvalidArgument,
    OutcomeUnknown,
    PublishError,
    PublishFailed,
    PublishRefused,
)
from braidmq.client.publishing import Chunk, Flight, payload_bytes
from braidmq.wire.blip import frames, messages

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
        raw = payload_bytes(payload)
        if len(raw) > self.payload_max:
            size = f"{len(raw)} bytes, at most {self.payload_max}"
            raise InvalidArgument(f"the payload does not fit into a frame: {size}")
        return raw

    def receipt(self, *, repeated: bool = False) -> Receipt:
        """Return the receipt of a message that went well."""
        return Receipt(self.topic, self.qos, durable=self.qos > 0, repeated=repeated)


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


def refused(refusal: Refusal, topic: str) -> PublishRefused:
    """Return the error that a NACK to a PUBLISH to *topic* means."""
    kind = PublishFailed if refusal.code >= SERVER_ERROR else PublishRefused
    return kind(refusal.code, refusal.text, topic=topic)


class BlipFlight(Flight[bytes]):
    """A chunk that was handed over to a connection, and the fence behind it."""

    __slots__ = ("_envelope", "_fence", "_ids", "_waiter", "chunk", "connection")

    def __init__(
        self, envelope: Envelope, chunk: Chunk[bytes], connection: BlipConnection
    ) -> None:
        self._envelope = envelope
        self.chunk = chunk
        self.connection = connection
        self._ids = [
            connection.publish(envelope.prefix, payload, qos=envelope.qos)
            for payload in chunk
            if isinstance(payload, bytes)
        ]
        self._fence: Fence[Refusal] | None = None
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
                results.append(refused(refusal, self._envelope.topic))
            elif reached:
                results.append(receipt)
            else:
                results.append(OutcomeUnknown(str(self.connection.lost())))
        return results
