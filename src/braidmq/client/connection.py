"""One connection, independent of the strand: frames out, requests, fences, keepalive, the end.

A connection is never reused: when it breaks, every waiter is told, and it stays broken. `link`
makes the next one.

Frames are handed over whole and without waiting. A task that is cancelled has therefore sent a
frame or has not; half a frame never reaches the wire.

A fence is a PING: its PONG says that everything sent before it was committed or refused. At
most one is in flight. Callers that ask meanwhile share the next one, so that any number of
concurrent publishers costs one PING per round trip.
"""

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from braidmq.client.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ConnectionLost,
    reason_of,
)
from braidmq.client.options import Options
from braidmq.client.replies import A, Refusal, Replies, Requests
from braidmq.client.url import Endpoint
from braidmq.wire.errors import WireError

FLUSH_BYTES: Final = 64 * 1024
"""Output beyond this is written at once instead of at the end of the loop's turn."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024
"""The transport's buffer above which senders wait."""

_CHECKS_PER_TIMEOUT: Final = 4

log = logging.getLogger("braidmq.client")


RaiseFor = Callable[[Refusal], Exception]
"""Returns the error to raise for a refusal."""


class Deliveries:
    """What gets a connection's deliveries; each strand adds how it is handed one."""

    def delivered(self) -> None:
        """Note that all deliveries of one read have been handed over."""


@dataclass(slots=True, eq=False)
class Post:
    """A message laid out for a strand that answers each publish by its id.

    Sent again it has the same id, so that the broker or the consumers can recognise it. One
    that the broker refused was not stored: *renew*, if given, lays it out afresh.
    """

    id: str
    data: bytes
    renew: "Callable[[], Post] | None" = None

    def renewed(self) -> "Post":
        """Return the message as it is sent again after a refusal."""
        return self if self.renew is None else self.renew()

    def __len__(self) -> int:
        return len(self.data)


@dataclass(slots=True, eq=False)
class Fence:
    """A PING that is due or was sent, the callers that wait for its PONG, and the refusals."""

    number: int = 0
    refusals: dict[int, Refusal] = field(default_factory=dict)
    waiters: list[asyncio.Future[bool]] = field(default_factory=list)

    def release(self, *, reached: bool) -> None:
        """Wake all waiters: the PONG came, or never will."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(reached)


class Connection(asyncio.Protocol, Generic[A]):
    """The base of every strand's connection; made by :func:`dial`."""

    unauthorized_code: ClassVar[int | str]
    """The refusal that says that the broker does not accept the credentials."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        receiver: Deliveries,
        on_lost: Callable[[Any], None],
        *,
        last_number: int = 0,
        requests: Requests[A] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._options = options
        self._receiver = receiver
        self._has_deliveries = False  # in the read that is being handled
        self._on_lost = on_lost
        self._transport: asyncio.WriteTransport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._unfenced = False  # something was sent that no PING follows yet
        # A list while the transport's buffer is full.
        self._writable: list[asyncio.Future[None]] | None = None
        self._last_number = last_number
        self._requests = Requests() if requests is None else requests
        self._fence: Fence | None = None
        self._next_fence: Fence | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._check: asyncio.TimerHandle | None = None
        self._reason = ""
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.is_lost = False
        self.ended_by_peer = False

    # --- implemented by each strand ---------------------------------------------------------

    @abstractmethod
    async def handshake(self) -> None:
        """Greet and authenticate.

        Raises:
            AuthenticationFailed: The broker does not accept the credentials.
            ConnectionFailed: It refused for another reason, such as the version.
            ConnectionLost: It hung up.
        """

    @staticmethod
    @abstractmethod
    def refusal_of(answer: A) -> Refusal | None:
        """Return the refusal that *answer* is, or None if it is not one."""

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Handle every complete frame; raise WireError if the framing is lost."""

    @abstractmethod
    def _ping(self, number: int) -> bytes:
        """Return the PING with that number."""

    def _frame(self, body: bytes) -> bytes:
        """Return the frame around *body*; on most strands it has one already."""
        return body

    def _probe_after_s(self) -> float | None:
        """Return after how much silence to send a PING, or None not to."""
        return None if self._requests else self._options.keepalive

    # --- called by the event loop -----------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, over TCP."""
        tcp = cast("asyncio.Transport", transport)  # uvloop's has no such base
        tcp.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self.begin(tcp)

    def begin(self, transport: asyncio.WriteTransport) -> None:
        """Write to *transport* from now on, and watch for silence."""
        self._transport = transport
        self._heard_at = self._loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Handle every complete frame."""
        self._heard_at = self._loop.time()
        fault: WireError | None = None
        try:
            self._read(data)
        except WireError as error:
            fault = error
        self._announce()  # also what came before the fault
        if fault is not None:
            self.abort(f"the broker broke the protocol: {fault}")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell every waiter; the connection stays lost."""
        self.is_lost = True
        if not self._reason:
            self.ended_by_peer = True
            self._reason = "the broker closed it"
            if error is not None:
                self._reason = reason_of(error) if isinstance(error, OSError) else str(error)
        assert self._check is not None
        self._check.cancel()
        self._out.clear()
        for fence in (self._fence, self._next_fence):
            if fence is not None:
                fence.release(reached=False)
        self._fence = self._next_fence = None
        self._requests.drop()
        self.resume_writing()
        self._gone.set_result(None)
        self._on_lost(self)

    def pause_writing(self) -> None:
        """Make senders wait."""
        self._writable = []

    def resume_writing(self) -> None:
        """Let senders continue."""
        waiters, self._writable = self._writable or [], None
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    @property
    def is_full(self) -> bool:
        """Whether senders have to wait."""
        return self._writable is not None

    @property
    def is_ready(self) -> bool:
        """Whether :meth:`writable` has nothing to do."""
        return self._writable is None and self._out_bytes < FLUSH_BYTES

    # --- sending ----------------------------------------------------------------------------

    def next_id(self) -> int:
        """Return a number that this connection has not used."""
        self._last_number += 1
        return self._last_number

    def send(self, *parts: bytes) -> None:
        """Hand over the bytes of frames, to be written when the loop's turn ends."""
        if self.is_lost:
            return
        self._unfenced = True
        for part in parts:
            self._out.append(part)
            self._out_bytes += len(part)
        self._flush_soon()

    def flush(self) -> None:
        """Write everything that was handed over, and the PING that is due, in one write."""
        self._flush_scheduled = False
        if self.is_lost:
            return
        # The PING goes behind everything handed over, so that its PONG covers all of it.
        if self._fence is None and self._next_fence is not None:
            self._asking()  # before the fence is set, which by itself is an answer owed
            self._fence, self._next_fence = self._next_fence, None
            self._fence.number = self.next_id()
            self._out.append(self._ping(self._fence.number))
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

    def post(self, posts: Sequence[Post]) -> Replies[A]:
        """Hand over messages that are answered one by one; return the answers to come."""
        replies: Replies[A] = Replies(len(posts))
        if self.is_lost:
            replies.lose()
        elif posts:
            self._asking()
            for at, one in enumerate(posts):
                self._requests.expect(one.id, replies, at)
                self.send(self._frame(one.data))
        return replies

    def request(self, write: Callable[[int], bytes]) -> Replies[A]:
        """Send the request that *write* makes of a number; return the answer to come."""
        replies: Replies[A] = Replies(1)
        if self.is_lost:
            replies.lose()
            return replies
        number = self.next_id()
        self._asking()
        self._requests.expect(number, replies, 0)
        self.send(self._frame(write(number)))
        return replies

    async def ask(self, write: Callable[[int], bytes], refused: RaiseFor | None = None) -> A:
        """Send the request that *write* makes of a number; return the answer.

        A refusal is an answer, too, unless *refused* makes an error of it.

        Raises:
            ConnectionLost: The connection broke first, or the broker is alive and has not
                answered within `answer_timeout`, so the connection was dropped.
        """
        return await self.answer(self.request(write), refused)

    async def answer(self, replies: Replies[A], refused: RaiseFor | None = None) -> A:
        """Return the one answer that *replies* waits for; raises as :meth:`ask`."""
        try:
            async with asyncio.timeout(self._options.answer_timeout):
                await replies.done
        except TimeoutError:
            self.abort(f"no answer within {self._options.answer_timeout:g} s")
        (answer,) = replies.answers
        if answer is None:
            raise self.lost()
        if refused is not None and (refusal := self.refusal_of(answer)) is not None:
            raise refused(refusal)
        return answer

    def fence(self) -> tuple[Fence, asyncio.Future[bool]]:
        """Return a fence behind everything handed over so far, and a future for its PONG.

        The future's result is False when the connection breaks first. It belongs to the caller:
        cancelling it affects no other waiter.
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

    # --- ending -----------------------------------------------------------------------------

    def lost(self) -> ConnectionLost:
        """Return a new error that says how the connection was lost."""
        return ConnectionLost(self._endpoint.address, self._reason or "it was closed")

    def abort(self, reason: str) -> None:
        """Drop the connection at once; *reason* is what every waiter will read."""
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
                # Shielded: a timeout must not cancel the future that `connection_lost` sets.
                await asyncio.shield(self._gone)
        except TimeoutError:
            self._transport.abort()

    # --- inside -----------------------------------------------------------------------------

    def _turned_away(self, refusal: Refusal) -> ConnectionFailed:
        """Return the error for a handshake that the broker refused."""
        is_unauthorized = refusal.code == self.unauthorized_code
        kind = AuthenticationFailed if is_unauthorized else ConnectionFailed
        return kind(self._endpoint.address, f"{refusal.code} {refusal.text}")

    def _announce(self) -> None:
        """Say that messages were delivered: once per read, since that wakes the handlers."""
        if self._has_deliveries:
            self._has_deliveries = False
            self._receiver.delivered()

    def _flush_soon(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            self._loop.call_soon(self.flush)

    def _is_owed(self) -> bool:
        return self._fence is not None or len(self._requests) > 0

    def _asking(self) -> None:
        """Note the time, unless an answer is owed already: the oldest question counts."""
        if not self._is_owed():
            self._asked_at = self._loop.time()

    def _reach(self, number: int) -> None:
        """Handle a PONG."""
        fence = self._fence
        if fence is None or fence.number != number:
            return
        self._fence = None
        fence.release(reached=True)
        # The tasks that were just released run before the flush, so what they send next is
        # covered by the same PING.
        if self._next_fence is not None:
            self._flush_soon()

    def _silent_s(self, now: float) -> float:
        """Return for how long the broker has been silent since it was asked.

        Anything it sends counts as a sign of life, not only the answer that is owed.
        """
        return now - max(self._heard_at, self._asked_at)

    def _watch(self) -> None:
        options = self._options
        now = self._loop.time()
        probe_after_s = self._probe_after_s() if self._fence is None else None
        if self._is_owed() and self._silent_s(now) >= options.answer_timeout:
            self.abort(f"no answer within {options.answer_timeout:g} s")
        elif probe_after_s is not None and now - self._heard_at >= probe_after_s:
            self.fence()
        interval = min(options.answer_timeout, options.keepalive) / _CHECKS_PER_TIMEOUT
        self._check = self._loop.call_later(interval, self._watch)


C = TypeVar("C", bound=Connection[Any])

V = TypeVar("V", bound=Deliveries)
"""What gets a connection's deliveries, as its strand defines it."""

OnLost = Callable[[C], None]
"""Called with a connection that was lost."""


async def dial(
    make: Callable[[Endpoint, Options, V, OnLost[C]], C],
    endpoint: Endpoint,
    options: Options,
    receiver: V,
    on_lost: OnLost[C],
) -> C:
    """Return the connection that *make* makes, over TCP and authenticated.

    Raises:
        AuthenticationFailed: The broker does not accept the credentials.
        ConnectionFailed: There is no broker, or it does not speak the strand.
    """
    tls = options.tls or (ssl.create_default_context() if endpoint.tls else None)

    async def connect() -> C:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: make(endpoint, options, receiver, on_lost),
            endpoint.host,
            endpoint.port,
            ssl=tls,
        )
        return connection

    return await greeted(endpoint, options, connect)


async def greeted(
    endpoint: Endpoint, options: Options, connect: Callable[[], Awaitable[C]]
) -> C:
    """Return the connection that *connect* makes, authenticated; raises as :func:`dial`."""
    connection: C | None = None
    try:
        async with asyncio.timeout(options.connect_timeout):
            connection = await connect()
            await connection.handshake()
    except BaseException as error:  # also when cancelled: the socket must not stay open
        if connection is not None:
            connection.abort("the handshake failed")
        if isinstance(error, TimeoutError):
            reason = f"no answer within {options.connect_timeout:g} s"
            raise ConnectionFailed(endpoint.address, reason) from None
        if isinstance(error, OSError):
            raise ConnectionFailed(endpoint.address, reason_of(error)) from error
        if isinstance(error, ConnectionLost):
            raise ConnectionFailed(endpoint.address, error.reason) from None
        raise
    return connection
