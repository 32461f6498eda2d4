"""What a Blip publisher sends: messages checked and laid out, and chunks of them in flight."""

import asyncio
from typing import Final

from braidmq.client.answers import Receipt
from braidmq.client.blip.connection import BlipConnection
from braidmq.client.connection import Fence
from braidmq.client.errors import InvalidArgument, OutcomeUnknown, PublishError
from braidmq.client.options import Payload
from braidmq.client.publishing import (
    Chunk,
    Flight,
    Posting,
    check_topic,
    payload_bytes,
    refused,
)
from braidmq.wire.blip import frames, messages

_LENGTH_WITHOUT_BODY: Final = frames.LENGTH_MIN + 1  # and the qos


class BlipPosting(Posting[BlipConnection, bytes]):
    """A topic and a QoS, checked and laid out once for any number of messages.

    Raises:
        InvalidArgument: The broker would refuse every message to it.
    """

    __slots__ = ("payload_max", "prefix", "qos", "topic")

    strand = "blip"

    def __init__(self, topic: str, qos: int) -> None:
        check_topic(topic)
        self.topic = topic
        self.qos = qos
        self.prefix = messages.topic_and_message(topic, b"")
        self.payload_max = frames.LENGTH_MAX - _LENGTH_WITHOUT_BODY - len(self.prefix)

    def lay_out(self, payload: Payload) -> bytes:
        """Return *payload* as bytes that fit into a frame, or raise InvalidArgument."""
        raw = payload_bytes(payload)
        if len(raw) > self.payload_max:
            size = f"{len(raw)} bytes, at most {self.payload_max}"
            raise InvalidArgument(f"the payload does not fit into a frame: {size}")
        return raw

    def fly(self, chunk: Chunk[bytes], connection: BlipConnection) -> "BlipFlight":
        """Hand *chunk* over to *connection*."""
        return BlipFlight(self, chunk, connection)

    def receipt(self, *, repeated: bool = False) -> Receipt:
        """Return the receipt of a message that was published."""
        return Receipt(self.topic, self.qos, durable=self.qos > 0, repeated=repeated)


class BlipFlight(Flight[bytes]):
    """A chunk that was handed over to a connection, and the fence behind it."""

    __slots__ = ("_fence", "_ids", "_posting", "_waiter", "chunk", "connection")

    def __init__(
        self, posting: BlipPosting, chunk: Chunk[bytes], connection: BlipConnection
    ) -> None:
        self._posting = posting
        self.chunk = chunk
        self.connection = connection
        self._ids = [
            connection.publish(posting.prefix, payload, qos=posting.qos)
            for payload in chunk
            if isinstance(payload, bytes)
        ]
        self._fence: Fence | None = None
        self._waiter: asyncio.Future[bool] | None = None
        if posting.qos:
            self._fence, self._waiter = connection.fence()

    async def land(self, *, repeated: bool = False) -> list[Receipt | PublishError]:
        """Wait for the fence; a message that was not refused by then is stored."""
        # Blip confirms no single publish: silence up to the PONG is the confirmation. If the
        # connection breaks first, a refusal that has arrived still counts.
        reached = self._waiter is None or await self._waiter
        receipt = self._posting.receipt(repeated=repeated)
        refusals = self._fence.refusals if self._fence is not None else {}
        ids = iter(self._ids)
        results: list[Receipt | PublishError] = []
        for payload in self.chunk:
            if not isinstance(payload, bytes):
                results.append(payload)
                continue
            refusal = refusals.get(next(ids))
            if refusal is not None:
                results.append(refused(refusal, self._posting.topic))
            elif reached:
                results.append(receipt)
            else:
                results.append(OutcomeUnknown(str(self.connection.lost())))
        return results
