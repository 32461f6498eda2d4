"""One connection that speaks Blip as a client: its frames in and out, and its requests.

It knows no publisher and no subscription.

Correlation ids that we choose have the top bit set. Delivery tags are ids of the broker's log
and do not, so a NACK's id says whether it is about an acknowledgement.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, NamedTuple

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.connection import Connection, Fence, dial
from braidmq.client.errors import AuthenticationFailed, ConnectionFailed
from braidmq.client.options import Options
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages
from braidmq.wire.errors import MalformedFrameError

OWN_IDS_FROM: Final = 1 << 63
"""Correlation ids that the client chooses are above this, delivery tags below."""

UNCONFIRMED_ID: Final = 0
"""The correlation id of publishes that nobody waits for."""

_UNAUTHORIZED: Final = 401

log = logging.getLogger("braidmq.client")


class Refusal(NamedTuple):
    """A NACK."""

    code: int
    text: str


Answer = int | messages.Stats | Refusal | None
"""What a request's future gets; None when the connection broke first."""


class Tenant:
    """Whom a connection is for; this one wants nothing to do with deliveries."""

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        """Take a message that the broker sent; *now* is the loop's time at its arrival."""

    def delivered(self) -> None:
        """Learn that for now no more messages are at hand."""

    def take_refusal(self, correlation_id: int, refusal: Refusal) -> bool:
        """Take a NACK that answers no request; return False to leave it to the fences."""
        del correlation_id, refusal
        return False


class BlipConnection(Connection[Refusal]):
    """An authenticated connection, after :meth:`handshake`."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        tenant: Tenant,
        on_lost: Callable[["BlipConnection"], None],
    ) -> None:
        super().__init__(endpoint, options, on_lost, OWN_IDS_FROM)
        self._tenant = tenant
        # A dead letter of the largest message is longer than it: its topic's name has grown.
        self._decoder = frames.FrameDecoder(frames.LENGTH_MAX + TOPIC_BYTES_MAX)
        self._requests: dict[int, asyncio.Future[Answer]] = {}
        self._topic_raw = b""
        self._topic = ""

    def publish(self, prefix: bytes, payload: bytes, *, qos: int) -> int:
        """Hand over a message; *prefix* is its topic as it stands before the payload."""
        correlation_id = self.next_id() if qos else UNCONFIRMED_ID
        size = len(prefix) + len(payload)
        self.send(messages.delivery_header(correlation_id, qos, size), prefix, payload)
        return correlation_id

    def ask(self, frame: Callable[[int], bytes]) -> asyncio.Future[Answer]:
        """Send the request that *frame* makes of a correlation id; return its answer."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.is_lost:
            future.set_result(None)
            return future
        correlation_id = self.next_id()
        self._asking()
        self._requests[correlation_id] = future
        self.send(frame(correlation_id))
        return future

    async def handshake(self) -> None:
        """Greet and authenticate, in one segment.

        Raises:
            AuthenticationFailed: The broker does not know the key.
            ConnectionFailed: It does not speak our version.
            ConnectionLost: It hung up.
        """
        key = self._endpoint.key
        hello = self.ask(messages.encode_hello)
        auth = self.ask(lambda correlation_id: messages.encode_auth(correlation_id, key))
        self.flush()
        for request in (hello, auth):
            answer = await request
            if answer is None:
                raise self.lost()
            if isinstance(answer, Refusal):
                refused = request is auth and answer.code == _UNAUTHORIZED
                kind = AuthenticationFailed if refused else ConnectionFailed
                raise kind(self._endpoint.address, f"{answer.code} {answer.text}")

    # --- inside -----------------------------------------------------------------------------

    def _read(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.receive_data(data)
        deliveries = False
        try:
            while kind := decoder.advance():
                if kind == frames.PUBLISH:
                    deliveries = True
                    self._deliver()
                else:
                    self._answer(kind)
        finally:
            if deliveries:
                self._tenant.delivered()

    def _ping(self, number: int) -> bytes:
        return frames.encode(frames.PING, number)

    def _has_requests(self) -> bool:
        return bool(self._requests)

    def _drop_requests(self) -> None:
        for request in self._requests.values():
            if not request.done():
                request.set_result(None)

    def _deliver(self) -> None:
        # Inline, as a message a time is what a consumer's speed is made of:
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
        if raw != self._topic_raw:
            self._topic_raw, self._topic = raw, raw.decode(errors="replace")
        payload = data[payload_at : decoder.end]
        self._tenant.deliver(
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
            self._reply(correlation_id, messages.read_subscription_id(payload))
        elif kind == frames.STATS:
            self._reply(correlation_id, messages.read_stats(payload))
        else:
            raise MalformedFrameError(f"frame type {kind:#04x} is not a broker's to send")

    def _reply(self, correlation_id: int, answer: Answer) -> bool:
        request = self._requests.pop(correlation_id, None)
        if request is None:
            return False
        if not request.done():
            request.set_result(answer)
        return True

    def _refuse(self, correlation_id: int, refusal: Refusal) -> None:
        if self._reply(correlation_id, refusal) or self._tenant.take_refusal(
            correlation_id, refusal
        ):
            return
        # Ids grow, so a fence in flight covers exactly the ids below its own.
        if self._fence is not None and correlation_id < self._fence.number:
            fence: Fence[Refusal] | None = self._fence
        else:
            fence = self._next_fence
        if fence is not None and correlation_id >= OWN_IDS_FROM:
            fence.refusals[correlation_id] = refusal
        else:
            log.warning("refused by the broker: %d %s", refusal.code, refusal.text)


async def open_connection(
    endpoint: Endpoint,
    options: Options,
    tenant: Tenant,
    on_lost: Callable[[BlipConnection], None],
) -> BlipConnection:
    """Return a connection that is authenticated.

    Raises:
        AuthenticationFailed: The broker does not know the key.
        ConnectionFailed: There is no broker, or it does not speak Blip.
    """
    return await dial(
        endpoint, options, lambda: BlipConnection(endpoint, options, tenant, on_lost)
    )
