"""A connection that is made again when it breaks.

A link keeps at most one connection. It has its owner prepare each new one before any other
caller may use it, and says when there is none. Requests in flight on a connection that broke
are not its concern: the connection itself tells their waiters.
"""

import asyncio
import inspect
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final, Generic

from braidmq.client.connection import C, OnLost, V
from braidmq.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
)
from braidmq.client.options import Callback, Options
from braidmq.client.url import Endpoint

_JITTER: Final = 0.5

log = logging.getLogger("braidmq.client")


def backoff(
    first: float, ceiling: float, *, dice: Callable[[], float] = random.random
) -> Iterator[float]:
    """Yield the seconds to wait before each attempt; they double up to *ceiling*.

    Each is shortened at random by up to a half, which spreads out the clients that reconnect to
    a broker after a restart.
    """
    delay = first
    while True:
        delay = min(delay, ceiling)
        yield delay * (1.0 - _JITTER * dice())
        delay *= 2


class Owner(Generic[C]):
    """What a link keeps its connection for; it outlives every connection."""

    async def prepare(self, connection: C) -> None:
        """Make *connection* ready for use.

        ConnectionLost makes the link try again; any other error ends it.
        """

    async def abandon(self, connection: C) -> None:
        """Undo what :meth:`prepare` made at the broker; the caller was cancelled."""

    def went_down(self) -> None:
        """Note that there is no connection for now."""

    def ended(self, error: ClientError) -> None:
        """Note that there will be no further connection."""


class Health:
    """Counts broken links; calls back when the first breaks and when the last recovers."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._broken = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def broke(self, error: ConnectionLost) -> None:
        """Count a link that has lost its connection."""
        self._broken += 1
        is_first = self._broken == 1
        # When a broker stops, all of a client's connections break at once: warn only once.
        log.log(logging.WARNING if is_first else logging.INFO, "%s; reconnecting", error)
        if is_first and self._options.on_disconnect is not None:
            self.call_back(self._options.on_disconnect, error)

    def healed(self, *, connected: bool) -> None:
        """Count a broken link that is connected again, or has ended."""
        self._broken -= 1
        if self._broken == 0 and connected and self._options.on_reconnect is not None:
            self.call_back(self._options.on_reconnect)

    def call_back(self, callback: Callback, *arguments: object) -> None:
        """Run *callback* in a task of its own; an exception is logged and goes no further."""
        self.run(self._run(callback, *arguments))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* as a task, and hold it: the loop itself keeps only a weak reference."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    @staticmethod
    async def _run(callback: Callback, *arguments: object) -> None:
        try:
            result = callback(*arguments)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("a callback raised")


class Dialer(Generic[C, V]):
    """Makes a client's connections: one for publishing, and one for each subscription.

    It is the one place that knows which address to connect to. *open_connection* authenticates
    the connection, or raises ConnectionFailed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        open_connection: Callable[[Endpoint, Options, V, OnLost[C]], Awaitable[C]],
    ) -> None:
        self.endpoint = endpoint
        self.options = options
        self.health = Health(options)
        self._open_connection = open_connection

    def dial(self, receiver: V, on_lost: OnLost[C]) -> Awaitable[C]:
        """Return an authenticated connection that hands its deliveries to *receiver*."""
        return self._open_connection(self.endpoint, self.options, receiver, on_lost)


class Link(Generic[C]):
    """Keeps one connection of *dialer* for *owner*; its deliveries go to *receiver*."""

    def __init__(self, dialer: Dialer[C, V], owner: Owner[C], receiver: V) -> None:
        self._address = dialer.endpoint.address
        self._options = dialer.options
        self._health = dialer.health
        self._owner = owner
        self._dial: Callable[[], Awaitable[C]] = lambda: dialer.dial(receiver, self._lost)
        self._settled = asyncio.Event()  # there is a connection, or there will be none
        self._connecting: asyncio.Task[None] | None = None  # the first time, or again
        self.current: C | None = None
        self.end: ClientError | None = None

    async def open(self) -> None:
        """Make the first connection.

        Raises:
            ConnectionFailed: It could not be made; the link does not try again.
            ClientError: The owner could not prepare it.
            Closed: The link was closed before it was open.
        """
        if self.end is not None:
            raise self.end.with_traceback(None)
        # In a task of its own, which `close` can cancel, as it cancels a reconnection.
        opening = self._connecting = self._health.run(self._establish())
        try:
            await opening
        except asyncio.CancelledError:
            if self.current is not None:  # it was made in the moment of the cancellation
                connection, self.current = self.current, None
                self._settled.clear()
                await self._abandon(opening, connection)
            self._raise_closed()
            raise

    async def ready(self) -> C:
        """Return the connection; wait for one, for at most `offline_timeout`.

        Raises:
            ConnectionFailed: There was none for that long.
            ClientError: There will be none; the error says how the link ended.
        """
        while self.current is None:  # again after waiting: it may have broken already
            if self.end is not None:
                raise self.end.with_traceback(None)  # one error, raised to many callers
            try:
                async with asyncio.timeout(self._options.offline_timeout):
                    await self._settled.wait()
            except TimeoutError:
                reason = f"no connection for {self._options.offline_timeout:g} s"
                raise ConnectionFailed(self._address, reason) from None
        return self.current

    async def close(self) -> None:
        """End the link, and its connection once everything handed over is written."""
        # Finish first: a connection that is no longer current is not made again when it ends.
        connection = self.current
        self._finish(Closed("it was closed"))
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if connection is not None:
            await connection.close()

    async def _establish(self) -> None:
        connection = await self._dial()
        # In a task of its own: cancelling the caller cannot call a request back. The broker may
        # have made a subscription, which outlives the connection, before its answer is read.
        preparing = asyncio.ensure_future(self._owner.prepare(connection))
        try:
            await asyncio.shield(preparing)
        except asyncio.CancelledError:
            await self._abandon(preparing, connection)
            raise
        except BaseException:
            connection.abort("it could not be prepared")
            raise
        if connection.is_lost:
            # It broke after its last answer: `_lost` ignored it, since it was not current.
            self._owner.went_down()
            raise connection.lost()
        self.current = connection
        self._settled.set()

    def _raise_closed(self) -> None:
        """Raise how the link ended if it was `close` that cancelled the opening."""
        caller = asyncio.current_task()
        if self.end is not None and (caller is None or not caller.cancelling()):
            raise self.end.with_traceback(None) from None

    async def _abandon(self, preparing: "asyncio.Future[None]", connection: C) -> None:
        """Wait for a preparation and undo it, within `close_timeout`."""
        try:
            async with asyncio.timeout(self._options.close_timeout):
                await preparing
                await self._owner.abandon(connection)
        except (TimeoutError, ClientError) as error:
            log.info("abandoned before it was prepared: %s", error)
        finally:
            connection.abort("it was cancelled")

    def _lost(self, connection: C) -> None:
        if connection is not self.current:
            return  # it was never prepared, or has been replaced
        self.current = None
        self._settled.clear()
        error = connection.lost()
        self._owner.went_down()
        if not self._options.reconnect:
            self._finish(error)
            return
        self._health.broke(error)
        self._connecting = self._health.run(self._reopen())

    async def _reopen(self) -> None:
        delays = backoff(self._options.reconnect_delay, self._options.reconnect_delay_max)
        connected = False
        try:
            while not connected:
                # Also before the first attempt: a broker that closes each new connection at
                # once would otherwise be dialled in a busy loop.
                await asyncio.sleep(next(delays))
                connected = await self._try_again()
        except ClientError as error:
            log.error("not reconnecting: %s", error)  # noqa: TRY400 - the trace adds nothing
            self._finish(error)
        finally:
            self._health.healed(connected=connected)

    async def _try_again(self) -> bool:
        try:
            await self._establish()
        except AuthenticationFailed:
            raise  # another attempt with the same key would fail as well
        except (ConnectionFailed, ConnectionLost) as error:
            log.info("%s", error)
            return False
        log.info("reconnected to %s", self._address)
        return True

    def _finish(self, error: ClientError) -> None:
        self.current = None
        if self.end is None:  # the first reason counts: closing a link that failed keeps it
            self.end = error
            self._settled.set()
            self._owner.ended(error)
