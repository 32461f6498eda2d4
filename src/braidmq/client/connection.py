"""One connection, as far as no strand is concerned: whole frames out, fences, silence, the end.

It is never made again: when it breaks, everyone who waits learns of it, and it stays broken.
See `link` for what comes after.

Frames are handed over whole and without waiting, so whoever is cancelled has sent a frame or
has not, never half of one.

A fence is a PING: its PONG says that everything sent before it is committed or was refused. At
most one is in flight; whoever asks meanwhile shares the next one, so that any number of
publishers costs one PING a round trip.
"""

import asyncio
import logging
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, Protocol, TypeVar, cast

from braidmq.client.errors import ConnectionFailed, ConnectionLost, reason_of
from braidmq.client.options import Options
from braidmq.client.url import Endpoint
from braidmq.wire.errors import WireError

FLUSH_BYTES: Final = 64 * 1024
"""Output beyond this is written at once instead of at the end of the loop's turn."""

WRITE_BUFFER_BYTES_MAX: Final = 256 * 1024
"""The transport's buffer above which senders wait."""

_CHECKS_PER_TIMEOUT: Final = 4

log = logging.getLogger("braidmq.client")

R = TypeVar("R")
"""How a strand says no."""


class Transport(Protocol):
    """What a connection writes to; its end is told by :meth:`Connection.connection_lost`."""

    def write(self, data: bytes) -> None:
        """Send *data*, now or when there is room."""

    def close(self) -> None:
        """Send what is written, then end it."""

    def abort(self) -> None:
        """End it at once."""


class Fence(Generic[R]):
    """A PING that is to be sent or was, and who waits for its PONG."""

    __slots__ = ("number", "refusals", "waiters")

    def __init__(self) -> None:
        self.number = 0
        self.refusals: dict[int, R] = {}
        self.waiters: list[asyncio.Future[bool]] = []

    def release(self, *, reached: bool) -> None:
        """Wake all who wait: the PONG came, or never will."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(reached)


class Connection(asyncio.Protocol, Generic[R]):
    """What a strand's connection is built on; made by :func:`dial`."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        on_lost: Callable[[Any], None],
        last_number: int,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._options = options
        self._on_lost = on_lost
        self._transport: Transport | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._flush_scheduled = False
        self._unfenced = False  # something was sent that no PING follows yet
        self._writable: list[asyncio.Future[None]] | None = (
            None  # a list while we must not write
        )
        self._last_number = last_number
        self._fence: Fence[R] | None = None
        self._next_fence: Fence[R] | None = None
        self._heard_at = 0.0
        self._asked_at = 0.0
        self._check: asyncio.TimerHandle | None = None
        self._reason = ""
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self.is_lost = False
        self.ended_by_peer = False

    # --- what a strand says -----------------------------------------------------------------

    @abstractmethod
    async def handshake(self) -> None:
        """Greet and authenticate.

        Raises:
            AuthenticationFailed: The broker does not know us.
            ConnectionFailed: It does not speak our version.
            ConnectionLost: It hung up.
        """

    @abstractmethod
    def _read(self, data: bytes) -> None:
        """Handle every frame that is whole now; raise WireError when the framing is lost."""

    @abstractmethod
    def _ping(self, number: int) -> bytes:
        """Return the PING with that number."""

    @abstractmethod
    def _has_requests(self) -> bool:
        """Tell whether the broker owes an answer other than a PONG."""

    @abstractmethod
    def _drop_requests(self) -> None:
        """Tell all who wait for an answer that it will not come."""

    def _probe_after_s(self) -> float | None:
        """Return after how much silence a PING is due, or None when none is."""
        return None if self._has_requests() else self._options.keepalive

    # --- what the loop calls ----------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, over TCP."""
        tcp = cast("asyncio.Transport", transport)  # uvloop's has no such base
        tcp.set_write_buffer_limits(WRITE_BUFFER_BYTES_MAX)
        self.begin(tcp)

    def begin(self, transport: Transport) -> None:
        """Begin to watch over the connection."""
        self._transport = transport
        self._heard_at = self._loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Handle every frame that is whole."""
        self._heard_at = self._loop.time()
        try:
            self._read(data)
        except WireError as error:
            self.abort(f"the broker broke the protocol: {error}")

    def connection_lost(self, error: Exception | None) -> None:
        """Tell everyone who waits; the connection stays lost."""
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
        self._drop_requests()
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
        if self._fence is None and self._next_fence is not None:
            self._asking()
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

    def fence(self) -> tuple[Fence[R], asyncio.Future[bool]]:
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

    def _is_owed(self) -> bool:
        return self._fence is not None or self._has_requests()

    def _asking(self) -> None:
        """Note the time, unless an answer is owed already: the oldest question counts."""
        if not self._is_owed():
            self._asked_at = self._loop.time()

    def _reach(self, number: int) -> None:
        """Take a PONG."""
        fence = self._fence
        if fence is None or fence.number != number:
            return
        self._fence = None
        fence.release(reached=True)
        # Whoever was just released runs before the flush, so what they send shares the PING.
        if self._next_fence is not None:
            self._flush_soon()

    def _silent_s(self, now: float) -> float:
        """Return for how long the broker has been silent since it was asked."""
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


async def dial(endpoint: Endpoint, options: Options, make: Callable[[], C]) -> C:
    """Return the connection that *make* makes, over TCP and authenticated.

    Raises:
        AuthenticationFailed: The broker does not know us.
        ConnectionFailed: There is no broker, or it does not speak the strand.
    """
    tls = options.tls or (ssl.create_default_context() if endpoint.tls else None)

    async def connect() -> C:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            make, endpoint.host, endpoint.port, ssl=tls
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
    except BaseException as error:
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
