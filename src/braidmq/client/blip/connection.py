"""One connection that speaks Blip as a client: its frames in and out, and its requests.

It knows neither publishers nor subscriptions.

Correlation ids that the client chooses have the top bit set. Delivery tags are ids of the
broker's log and do not, so the id of a NACK says whether it is about an acknowledgement.
"""

import logging
from collections.abc import Callable
from typing import Final

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.connection import Connection, Deliveries, Fence
from braidmq.client.options import Options
from braidmq.client.replies import Refusal
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages
from braidmq.wire.errors import MalformedFrameError

OWN_IDS_FROM: Final = 1 << 63
"""Correlation ids that the client chooses are above this, delivery tags below."""

UNCONFIRMED_ID: Final = 0
"""The correlation id of QoS 0 publishes, which are not confirmed."""

Answer = int | messages.Stats | Refusal

log = logging.getLogger("braidmq.client")


class Receiver(Deliveries):
    """What gets a connection's deliveries; this one, for publishing, ignores them."""

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        """Take a message that the broker sent; *now* is the loop's time at its arrival."""

    def take_refusal(self, correlation_id: int, refusal: Refusal) -> bool:
        """Take a NACK that answers no request; return False to leave it to the fences."""
        del correlation_id, refusal
        return False


class BlipConnection(Connection[Answer]):
    """An authenticated connection, after :meth:`handshake`."""

    unauthorized_code = 401
    _receiver: Receiver

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        receiver: Receiver,
        on_lost: Callable[["BlipConnection"], None],
    ) -> None:
        super().__init__(endpoint, options, receiver, on_lost, last_number=OWN_IDS_FROM)
        # A dead letter can exceed the largest message: its topic's name is longer.
        self._decoder = frames.FrameDecoder(frames.LENGTH_MAX + TOPIC_BYTES_MAX)
        self._topic_raw = b""
        self._topic = ""

    def publish(self, prefix: bytes, payload: bytes, *, qos: int) -> int:
        """Hand over a message; *prefix* is its topic as it stands before the payload."""
        correlation_id = self.next_id() if qos else UNCONFIRMED_ID
        size = len(prefix) + len(payload)
        self.send(messages.delivery_header(correlation_id, qos, size), prefix, payload)
        return correlation_id

    async def handshake(self) -> None:
        """Greet and authenticate, in one segment; raises as the base class documents."""
        key = self._endpoint.key
        hello = self.request(messages.encode_hello)
        auth = self.request(lambda number: messages.encode_auth(number, key))
        self.flush()
        for replies in (hello, auth):
            await self.answer(replies, self._turned_away)

    @staticmethod
    def refusal_of(answer: Answer) -> Refusal | None:
        """Return the refusal that *answer* is, or None if it is not one."""
        return answer if isinstance(answer, Refusal) else None

    # --- inside -----------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.receive_data(data)
        while kind := decoder.advance():
            if kind == frames.PUBLISH:
                self._has_deliveries = True
                self._deliver()
            else:
                self._answer(kind)

    def _ping(self, number: int) -> bytes:
        return frames.encode(frames.PING, number)

    def _deliver(self) -> None:
        # Decoded inline, since this runs once per message and bounds a consumer's throughput:
        # u8 qos | u16 length | topic | payload
        decoder = self._decoder
        data, start = decoder.data, decoder.start
        topic_at = start + 3
        if decoder.end < topic_at:
            raise MalformedFrameError("a delivery is too short")
        payload_at = topic_at + int.from_bytes(data[start + 1 : topic_at], "big")
        if decoder.end < payload_at:
            raise MalformedFrameError("a delivery is shorter than its topic")
        raw = data[topic_at:payload_at]
        # A subscription has one topic: decode its name once, not for each message.
        if raw != self._topic_raw:
            self._topic_raw, self._topic = raw, raw.decode(errors="replace")
        payload = data[payload_at : decoder.end]
        self._receiver.deliver(
            decoder.correlation_id, data[start], self._topic, payload, self._heard_at
        )

    def _answer(self, kind: int) -> None:
        correlation_id = self._decoder.correlation_id
        payload = self._decoder.payload()
        if kind == frames.PONG:
            self._reach(correlation_id)
        elif kind == frames.NACK:
            self._refuse(correlation_id, Refusal(*messages.read_nack(payload)))
        elif kind == frames.ACK:
            self._requests.reply(correlation_id, messages.read_subscription_id(payload))
        elif kind == frames.STATS:
            self._requests.reply(correlation_id, messages.read_stats(payload))
        else:
            raise MalformedFrameError(f"a broker does not send frames of type {kind:#04x}")

    def _refuse(self, correlation_id: int, refusal: Refusal) -> None:
        if self._requests.reply(correlation_id, refusal) or self._receiver.take_refusal(
            correlation_id, refusal
        ):
            return
        # Only publishes are left. Ids increase, so a fence in flight covers exactly the ids
        # below its own; the flight reads the refusal there when the PONG arrives.
        if self._fence is not None and correlation_id < self._fence.number:
            fence: Fence | None = self._fence
        else:
            fence = self._next_fence
        if fence is not None and correlation_id >= OWN_IDS_FROM:
            fence.refusals[correlation_id] = refusal
        else:
            log.warning("refused by the broker: %s %s", refusal.code, refusal.text)
