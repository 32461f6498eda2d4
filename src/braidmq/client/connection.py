"""One connection that speaks Blip as a client: frames in and out, fences, requests.

It knows no publisher and no subscription, and it is never made again: when it breaks, everyone
who waits for an answer learns of it, and it stays broken. See `link` for what comes after.

A fence is a PING: its PONG says that everything sent before it is committed or was refused. At
most one is in flight; whoever asks meanwhile shares the next one, so that any number of
publishers costs one PING a round trip.

Correlation ids that we choose have the top bit set. Delivery tags are ids of the broker's log
and do not, so a NACK's id says whether it is about an acknowledgement.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
)
from braidmq.client.options import Options
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages
from braidmq.wire.errors import MalformedFrameError, WireError

OWN_IDS_FROM: Final = 1 << 63
"""Correlation ids that the client chooses are above this, delivery tags below."""

UNCONFIRMED_ID: Final = 0
"""The correlation id of publishes that nobody waits for."""

FLUSH_BYTES: Final = 64 * 1024
"""Output beyond this is written at once instead of at the end of the loop's turn."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024
"""The transport's buffer above which senders wait."""

_CHECKS_PER_TIMEOUT: Final = 4

_UNAUTHORIZED: Final = 401

log = logging.getLogger("braidmq.client")


class Refusal(NamedTuple):
    """A NACK."""

    code: int
    text: str


Answer = int | messages.Stats | Refusal | None
"""What a request's future gets; None when the connection broke first."""


class Fence:
    """A PING that is to be sent or was, and who waits for its PONG."""

    __slots__ = ("correlation_id", "refusals", "waiters")

    def __init__(self) -> None:
        self.correlation_id = 0
        self.refusals: dict[int, Refusal] = {}
        self.waiters: list[asyncio.Future[bool]] = []

    def release(self, *, reached: bool) -> None:
        """Wake all who wait: the PONG came, or never will."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(reached)


class Tenant:
    """Whom a connection is for; this one wants nothing to do with deliveries."""

    def deliver(
        self, correlation_id: int, qos: int, topic: str, payload: bytes, now: float
    ) -> None:
        """Take a message that the broker sent; *now* is the loop's time at its arrival."""

    def delivered(self) -> None:
        """Learn that for now no more messages are at hand."""

    def refused(self, correlation_id: int, refusal: Refusal) -> bool:
        """Take a NACK that answers no request; return False to leave it to the fences."""
        del correlation_id, refusal
        return False


class BlipConnection(asyncio.Protocol):
    """An authenticated connection, after :meth:`handshake`."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        tenant: Tenant,
        on_lost: Callable[["BlipConnection"], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._options = options
        self._tenant = tenant
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        # A dead letter of the largest message is longer than it: its topic's name has grown.
        self._decoder = frames.FrameDecoder(frames.LENGTH_MAX + TOPIC_BYTES_MAX)
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._unfenced = False  # something was sent that no PING follows yet
        self._writable: list[asyncio.Future[None]] | None = (
            None  # a list while we must not write
        )
        self._last_id = OWN_IDS_FROM
        self._requests: dict[int, asyncio.Future[Answer]] = {}
        self._fence: Fence | None = None
        self._next_fence: Fence | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._check: asyncio.TimerHandle | None = None
        self._topic_raw = b""
        self._topic = ""
        self._reason = ""
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.is_lost = False
        self.ended_by_peer = False

    # --- what the loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to watch over the connection."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no such base
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self._heard_at = self._loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Handle every frame that is whole."""
        self._heard_at = self._loop.time()
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
        except WireError as error:
            self.abort(f"the broker broke the protocol: {error}")
        if deliveries:
            self._tenant.delivered()

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits; the connection stays lost."""
        self.is_lost = True
        if not self._reason:
            self.ended_by_peer = True
            self._reason = str(error) if error is not None else "the broker closed it"
        assert self._check is not None
        self._check.cancel()
        self._out.clear()
        for fence in (self._fence, self._next_fence):
            if fence is not None:
                fence.release(reached=False)
        self._fence = self._next_fence = None
        for request in self._requests.values():
            if not request.done():
                request.set_result(None)
        self.resume_writing()
        self._gone.set_result(None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Make senders wait."""
        self._writable = []

    def resume_writing(self) -> None:
        """Let senders go on."""
        waiters, self._writable = self._writable or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def is_full(self) -> bool:
        """Whether senders have to wait."""
        return self._writable is not None

    # --- sending ----------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return a correlation id that this connection has not used."""
        self._last_id += 1
        return self._last_id

    def send(self, *parts: bytes) -> None:
        """Hand over the bytes of frames, to be written when the loop's turn ends."""
        if self.is_lost:
            return
        self._unfenced = True
        for part in parts:
            self._out.append(part)
            self._out_bytes += len(part)
        self._flush_soon()

    def publish(self, prefix: bytes, payload: bytes, *, qos: int) -> int:
        """Hand over a message; *prefix* is its topic as it stands before the payload."""
        correlation_id = self.next_id() if qos else UNCONFIRMED_ID
        size = len(prefix) + len(payload)
        self.send(messages.delivery_header(correlation_id, qos, size), prefix, payload)
        return correlation_id

    def flush(self) -> None:
        """Write everything that was handed over, and the PING that is due, in one write."""
        self._flush_scheduled = False
        if self.is_lost:
            return
        if self._fence is None and self._next_fence is not None:
            self._fence, self._next_fence = self._next_fence, None
            self._fence.correlation_id = self.next_id()
            self._out.append(frames.encode(frames.PING, self._fence.correlation_id))
            self._asked_at = self._loop.time()
            self._unfenced = False
        if self._out:
            assert self._transport is not None
            data = b"".join(self._out)
            self._out.clear()
            self._out_bytes = 0
            self._transport.write(data)

    async def writable(self) -> None:
        """Wait until the broker has taken enough of what was handed over before."""
        if self._out_bytes >= FLUSH_BYTES:
            self.flush()
            await asyncio.sleep(0)  # a sender that never waits must not starve the reader
        while self._writable is not None:
            waiter = self._loop.create_future()
            self._writable.append(waiter)
            await waiter

    def fence(self) -> tuple[Fence, asyncio.Future[bool]]:
        """Return a fence behind everything handed over so far, and a future for its PONG.

        The future's result is False when the connection breaks first. It is the caller's own:
        cancelling it disturbs nobody else.
        """
        waiter: asyncio.Future[bool] = self._loop.create_future()
        if self.is_lost:
            waiter.set_result(False)
            return Fence(), waiter
        fence = self._next_fence
        if fence is None:
            fence = self._next_fence = Fence()
            if self._fence is None:
                self._flush_soon()
        fence.waiters.append(waiter)
        return fence, waiter

    async def settle(self) -> bool:
        """Wait until everything handed over is committed; False when the connection breaks."""
        if not self._unfenced and self._fence is None and self._next_fence is None:
            return not self.is_lost
        return await self.fence()[1]

    def ask(self, frame: Callable[[int], bytes]) -> asyncio.Future[Answer]:
        """Send the request that *frame* makes of a correlation id; return its answer."""
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self.is_lost:
            future.set_result(None)
            return future
        correlation_id = self.next_id()
        self._requests[correlation_id] = future
        self.send(frame(correlation_id))
        self._asked_at = self._loop.time()
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

    # --- ending -----------------------------------------------------------------------------

    def lost(self) -> ConnectionLost:
        """Return a new error that says how the connection was lost."""
        return ConnectionLost(self._endpoint.address, self._reason or "it was closed")

    def abort(self, reason: str) -> None:
        """Drop the connection at once; *reason* is what everyone who waits will read."""
        self._reason = self._reason or reason
        assert self._transport is not None
        self._transport.abort()

    async def close(self) -> None:
        """Write what was handed over, then end the connection."""
        self.flush()
        self._reason = self._reason or "it was closed"
        assert self._transport is not None
        self._transport.close()
        try:
            async with asyncio.timeout(self._options.close_timeout):
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._transport.abort()

    # --- inside -----------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

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

    def _reach(self, correlation_id: int) -> None:
        fence = self._fence
        if fence is None or fence.correlation_id != correlation_id:
            return
        self._fence = None
        fence.release(reached=True)
        # Whoever was just released runs before the flush, so what they send shares the PING.
        if self._next_fence is not None:
            self._flush_soon()

    def _reply(self, correlation_id: int, answer: Answer) -> bool:
        request = self._requests.pop(correlation_id, None)
        if request is None:
            return False
        if not request.done():
            request.set_result(answer)
        return True

    def _refuse(self, correlation_id: int, refusal: Refusal) -> None:
        if self._reply(correlation_id, refusal) or self._tenant.refused(
            correlation_id, refusal
        ):
            return
        # Ids grow, so a fence in flight covers exactly the ids below its own.
        if self._fence is not None and correlation_id < self._fence.correlation_id:
            fence: Fence | None = self._fence
        else:
            fence = self._next_fence
        if fence is not None and correlation_id >= OWN_IDS_FROM:
            fence.refusals[correlation_id] = refusal
        else:
            log.warning("refused by the broker: %d %s", refusal.code, refusal.text)

    def _watch(self) -> None:
        options = self._options
        now = self._loop.time()
        waits = self._fence is not None or self._requests
        if waits and now - max(self._heard_at, self._asked_at) >= options.answer_timeout:
            self.abort(f"no answer within {options.answer_timeout:g} s")
        elif not waits and now - self._heard_at >= options.keepalive:
            self.fence()
        interval = min(options.answer_timeout, options.keepalive) / _CHECKS_PER_TIMEOUT
        self._check = self._loop.call_later(interval, self._watch)


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
    loop = asyncio.get_running_loop()
    tls = options.tls or (ssl.create_default_context() if endpoint.tls else None)
    connection: BlipConnection | None = None
    try:
        async with asyncio.timeout(options.connect_timeout):
            _, connection = await loop.create_connection(
                lambda: BlipConnection(endpoint, options, tenant, on_lost),
                endpoint.host,
                endpoint.port,
                ssl=tls,
            )
            await connection.handshake()
    except BaseException as error:
        if connection is not None:
            connection.abort("the handshake failed")
        if isinstance(error, TimeoutError):
            reason = f"no answer within {options.connect_timeout:g} s"
            raise ConnectionFailed(endpoint.address, reason) from None
        if isinstance(error, OSError):
            raise ConnectionFailed(endpoint.address, str(error)) from error
        if isinstance(error, ConnectionLost):
            raise ConnectionFailed(endpoint.address, error.reason) from None
        raise
    return connection
