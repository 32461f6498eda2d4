"""One connection that speaks Vibe as a client: its frames in and out, and its requests.

It knows no publisher and no subscription. It speaks dialect 1.1.

Ids that we choose are numbers, but for those of messages, which `publishing` makes unique for
all publishers: consumers see them.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from braidmq.client.connection import Connection, dial
from braidmq.client.errors import AuthenticationFailed, ConnectionFailed
from braidmq.client.options import Options
from braidmq.client.replies import Refusal, Replies
from braidmq.client.url import Endpoint
from braidmq.wire.errors import MalformedPayloadError
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.messages import Body
from braidmq.wire.vibe.session import AUTH_FAILED

BODY_BYTES_MAX: Final = 16 * frames.BODY_MAX
"""What we take of a broker in one body: it may have been allowed more than the default."""

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


def refusal_of(answer: Body) -> Refusal | None:
    """Return the refusal that *answer* is, if it is one."""
    if answer.type != messages.ERROR:
        return None
    return Refusal(answer.error_code, answer.error_message)


class Tenant:
    """Whom a connection is for; this one wants nothing to do with deliveries."""

    def deliver(self, connection: "VibeConnection", body: Body, now: float) -> None:
        """Take a message that the broker sent; *now* is the loop's time at its arrival."""

    def delivered(self) -> None:
        """Learn that for now no more messages are at hand."""


class Sealed(Protocol):
    """A message laid out: the body of its Publish, and the id in it."""

    id: str
    body: bytes


class VibeConnection(Connection[Refusal]):
    """An authenticated connection, after :meth:`handshake`."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        tenant: Tenant,
        on_lost: Callable[["VibeConnection"], None],
    ) -> None:
        super().__init__(endpoint, options, on_lost, 0)
        self._tenant = tenant
        self._decoder = frames.FrameDecoder(BODY_BYTES_MAX)
        self._decoder.dialect = frames.DIALECT_1_1
        self._compression = frames.RAW
        self._greeted = False
        self._requests: dict[str, tuple[Replies[Body], int]] = {}

    # --- sending ----------------------------------------------------------------------------

    def tell(
        self, kind: int, message_id: str, queue: str, headers: dict[str, str] | None
    ) -> None:
        """Send a message that is not answered."""
        self.send(self._frame(_body(kind, message_id, queue, headers=headers)))

    def publish(self, sealed: Sequence[Sealed]) -> Replies[Body]:
        """Hand messages over; return what will come of each."""
        replies: Replies[Body] = Replies(len(sealed))
        if self.is_lost:
            replies.lose()
        elif sealed:
            self._asking()
            for at, one in enumerate(sealed):
                self._requests[one.id] = (replies, at)
                self.send(self._frame(one.body))
        return replies

    def request(
        self, kind: int, queue: str = "", headers: dict[str, str] | None = None
    ) -> Replies[Body]:
        """Send a request; return what will come of it."""
        replies: Replies[Body] = Replies(1)
        if self.is_lost:
            replies.lose()
            return replies
        message_id = str(self.next_id())
        self._asking()
        self._requests[message_id] = (replies, 0)
        self.send(self._frame(_body(kind, message_id, queue, headers=headers)))
        return replies

    async def ask(
        self, kind: int, queue: str = "", headers: dict[str, str] | None = None
    ) -> Body:
        """Send a request; return the answer, which may be an Error.

        Raises:
            ConnectionLost: The connection broke first, or was dropped since the broker is
                there and yet has not answered within `answer_timeout`.
        """
        replies = self.request(kind, queue, headers)
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                await replies.done
        except TimeoutError:
            self.abort(f"no answer within {self._options.answer_timeout:g} s")
        (answer,) = replies.answers
        if answer is None:
            raise self.lost()
        return answer

    async def handshake(self) -> None:
        """Connect, and agree on compression.

        Raises:
            AuthenticationFailed: The broker does not know the token, or user and password.
            ConnectionFailed: It refused for another reason.
            ConnectionLost: It hung up.
        """
        headers = credentials(self._endpoint)
        if self._options.compression:
            headers["supported-compression"] = OFFERED_COMPRESSION
        replies = self.request(messages.CONNECT, headers=headers)
        self.flush()
        await replies.done
        (answer,) = replies.answers
        if answer is None:
            raise self.lost()
        if (refusal := refusal_of(answer)) is not None:
            kind = AuthenticationFailed if refusal.code == AUTH_FAILED else ConnectionFailed
            raise kind(self._endpoint.address, f"{refusal.code} {refusal.text}")
        if self._options.compression:
            agreed = answer.headers.get("negotiated-compression", "").lower()
            self._compression = _COMPRESSIONS.get(agreed, frames.RAW)
        self._greeted = True

    async def close(self) -> None:
        """Take leave, so that held messages go back uncounted, then end the connection."""
        if not self.is_lost:
            self.tell(messages.DISCONNECT, str(self.next_id()), "", None)
        await super().close()

    # --- inside -----------------------------------------------------------------------------

    def _frame(self, body: bytes) -> bytes:
        return frames.encode(frames.DIALECT_1_1, body, self._compression)

    def _read(self, data: bytes) -> None:
        decoder = self._decoder
        decoder.receive_data(data)
        deliveries = False
        try:
            while (raw := decoder.next_body()) is not None:
                body = messages.read_body(raw)
                if body.version != messages.VERSION:
                    raise MalformedPayloadError(body.fault)
                if body.type == messages.DELIVER:
                    deliveries = True
                    self._tenant.deliver(self, body, self._heard_at)
                else:
                    self._answer(body)
        finally:
            if deliveries:
                self._tenant.delivered()

    def _answer(self, body: Body) -> None:
        if body.type in _REPLIES:
            replies, at = self._requests.pop(body.id, (None, 0))
            if replies is not None:
                replies.take(at, body)
            elif body.type == messages.ERROR:
                log.warning("refused by the broker: %s %s", body.error_code, body.error_message)
        elif body.type == messages.PONG:
            if body.id.isdecimal() and body.id.isascii():
                self._reach(int(body.id))
        elif body.type == messages.DISCONNECT:
            self.ended_by_peer = True
            self.abort("the broker took leave")
        else:
            raise MalformedPayloadError(f"message type {body.type} is not a broker's to send")

    def _ping(self, number: int) -> bytes:
        return self._frame(_body(messages.PING, str(number)))

    def _has_requests(self) -> bool:
        return bool(self._requests)

    def _drop_requests(self) -> None:
        requests, self._requests = self._requests, {}
        for replies, _ in requests.values():
            replies.lose()

    def _probe_after_s(self) -> float | None:
        # A publisher may be made to wait for room in its queue for any time, and the broker is
        # not dead meanwhile: it answers a PING.
        if not self._greeted:
            return None
        if not self._requests:
            return self._options.keepalive
        return min(self._options.keepalive, self._options.answer_timeout / _PROBES_PER_TIMEOUT)


def _body(
    kind: int, message_id: str, queue: str = "", *, headers: dict[str, str] | None = None
) -> bytes:
    return messages.write_body(kind, message_id, queue, headers=headers, with_errors=False)


def credentials(endpoint: Endpoint) -> dict[str, str]:
    """Return the headers of a Connect that say who we are."""
    if endpoint.user:
        return {"authUsername": endpoint.user, "authPassword": endpoint.key}
    return {"authToken": endpoint.key}


async def open_connection(
    endpoint: Endpoint,
    options: Options,
    tenant: Tenant,
    on_lost: Callable[[VibeConnection], None],
) -> VibeConnection:
    """Return a connection that is authenticated.

    Raises:
        AuthenticationFailed: The broker does not know us.
        ConnectionFailed: There is no broker, or it does not speak Vibe.
    """
    return await dial(
        endpoint, options, lambda: VibeConnection(endpoint, options, tenant, on_lost)
    )
