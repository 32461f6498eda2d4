"""One connection that speaks Vibe as a client: its frames in and out, and its requests.

It knows neither publishers nor subscriptions. It speaks dialect 1.1.

The ids of requests are numbers. Those of messages are unique across all publishers, since
consumers see them; `publishing` makes them.
"""

import logging
from collections.abc import Callable
from typing import Final

from braidmq.client.connection import Connection, Deliveries
from braidmq.client.options import Options
from braidmq.client.replies import Refusal
from braidmq.client.url import Endpoint
from braidmq.wire.errors import MalformedPayloadError
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.messages import Body
from braidmq.wire.vibe.session import AUTH_FAILED, RECEIPTS_HEADER, RECEIPTS_WITH_TIME

BODY_BYTES_MAX: Final = 16 * frames.BODY_MAX
"""The largest body that the client accepts: a broker may be configured to send more than the
default."""

ID_DIGITS_MAX: Final = 20
"""Of the largest number that a request can have."""

OFFERED_COMPRESSION: Final = "brotli,gzip"

_COMPRESSIONS: Final = {"gzip": frames.GZIP, "brotli": frames.BROTLI}

_PROBES_PER_TIMEOUT: Final = 2

_REPLIES: Final = frozenset(
    {
        messages.CONNECT_ACK,
        messages.PUBLISH_ACK,
        messages.SUBSCRIBE_ACK,
        messages.UNSUBSCRIBE_ACK,
        messages.CREATE_QUEUE,
        messages.DELETE_QUEUE,
        messages.QUEUE_INFO,
        messages.LIST_QUEUES,
        messages.ERROR,
    }
)

log = logging.getLogger("braidmq.client")


class Receiver(Deliveries):
    """What gets a connection's deliveries; this one, for publishing, ignores them."""

    def deliver(self, connection: "VibeConnection", body: Body, now: float) -> None:
        """Take a message that the broker sent; *now* is the loop's time at its arrival."""


class VibeConnection(Connection[Body]):
    """An authenticated connection, after :meth:`handshake`."""

    unauthorized_code = AUTH_FAILED
    _receiver: Receiver

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        receiver: Receiver,
        on_lost: Callable[["VibeConnection"], None],
    ) -> None:
        super().__init__(endpoint, options, receiver, on_lost)
        self._decoder = frames.FrameDecoder(BODY_BYTES_MAX)
        self._decoder.dialect = frames.DIALECT_1_1
        self._compression = frames.RAW
        self._greeted = False

    def tell(
        self, kind: int, message_id: str, queue: str, headers: dict[str, str] | None
    ) -> None:
        """Send a message that is not answered."""
        self.send(self._frame(_body(kind, message_id, queue, headers)))

    async def handshake(self) -> None:
        """Connect, and agree on compression; raises as the base class documents."""
        headers = {**credentials(self._endpoint), RECEIPTS_HEADER: RECEIPTS_WITH_TIME}
        if self._options.compression:
            headers["supported-compression"] = OFFERED_COMPRESSION
        replies = self.request(asking(messages.CONNECT, headers=headers))
        self.flush()
        answer = await self.answer(replies, self._turned_away)
        if self._options.compression:
            agreed = answer.headers.get("negotiated-compression", "").lower()
            self._compression = _COMPRESSIONS.get(agreed, frames.RAW)
        self._greeted = True

    @staticmethod
    def refusal_of(answer: Body) -> Refusal | None:
        """Return the refusal that *answer* is, or None if it is not one."""
        if answer.type != messages.ERROR:
            return None
        return Refusal(answer.error_code, answer.error_message)

    async def close(self) -> None:
        """Send Disconnect, then end the connection.

        The broker then requeues what this connection holds without counting an attempt.
        """
        if not self.is_lost:
            self.tell(messages.DISCONNECT, str(self.next_id()), "", None)
        await super().close()

    # --- inside -----------------------------------------------------------------------------

    def _frame(self, body: bytes) -> bytes:
        return frames.encode(frames.DIALECT_1_1, body, self._compression)

    def _read(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.receive_data(data)
        while (raw := decoder.next_body()) is not None:
            body = messages.read_body(raw)
            if body.version != messages.VERSION:
                raise MalformedPayloadError(body.fault)
            if body.type == messages.DELIVER:
                self._has_deliveries = True
                self._receiver.deliver(self, body, self._heard_at)
            else:
                self._answer(body)

    def _answer(self, body: Body) -> None:
        # Requests and fences have numbers as ids, messages have not. The length is checked
        # because Python refuses to convert thousands of digits.
        is_number = body.id.isdecimal() and body.id.isascii() and len(body.id) <= ID_DIGITS_MAX
        request_id = int(body.id) if is_number else body.id
        if body.type in _REPLIES:
            if not self._requests.reply(request_id, body) and body.type == messages.ERROR:
                log.warning("refused by the broker: %s %s", body.error_code, body.error_message)
        elif body.type == messages.PONG:
            if isinstance(request_id, int):
                self._reach(request_id)
        elif body.type == messages.DISCONNECT:
            # Set by hand: `connection_lost` takes an end with a reason for our own.
            self.ended_by_peer = True
            self.abort("the broker disconnected")
        else:
            raise MalformedPayloadError(f"a broker does not send messages of type {body.type}")

    def _ping(self, number: int) -> bytes:
        return self._frame(_body(messages.PING, str(number)))

    def _probe_after_s(self) -> float | None:
        # A broker may let a publisher wait for room in a full queue for any length of time. A
        # PING tells whether it is still alive.
        if not self._greeted:
            return None  # the handshake has a timeout of its own
        if not self._requests:
            return self._options.keepalive
        return min(self._options.keepalive, self._options.answer_timeout / _PROBES_PER_TIMEOUT)


def asking(
    kind: int, queue: str = "", headers: dict[str, str] | None = None
) -> Callable[[int], bytes]:
    """Return what writes a request of this *kind* with a number as its id."""
    return lambda number: _body(kind, str(number), queue, headers)


def _body(
    kind: int, message_id: str, queue: str = "", headers: dict[str, str] | None = None
) -> bytes:
    return messages.write_body(kind, message_id, queue, headers=headers, with_errors=False)


def credentials(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers of a Connect that carry the credentials."""
    if endpoint.user:
        return {"authUsername": endpoint.user, "authPassword": endpoint.key}
    return {"authToken": endpoint.key}
