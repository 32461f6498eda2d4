"""A connection that is made again when it breaks.

A link belongs to one resident. It keeps at most one connection, prepares each new one with its
resident before anyone else may use it, and says when there is none. What was under way on a
connection that broke is not its business: whoever waits is told by the connection itself.
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Generic

from braidmq.client.backoff import Backoff
from braidmq.client.connection import C
from braidmq.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
)
from braidmq.client.options import Callback, Options
from braidmq.client.url import Endpoint

log = logging.getLogger("braidmq.client")


class Resident(Generic[C]):
    """Whom a link is for: it stays when the connection is replaced."""

    async def prepare(self, connection: C) -> None:
        """Make *connection* ready; ConnectionLost tries again, other errors end the link."""

    async def abandon(self, connection: C) -> None:
        """Undo what :meth:`prepare` made at the broker; the caller was cancelled."""

    def went_down(self) -> None:
        """Learn that there is no connection for now."""

    def ended(self, error: ClientError) -> None:
        """Learn that there will be no connection any more."""


class Health:
    """Counts broken links; calls back when the first breaks and when the last heals."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._broken = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    def broke(self, error: ConnectionLost) -> None:
        """Count a link that has lost its connection."""
        self._broken += 1
        is_first = self._broken == 1
        # All connections of a client break together when a broker goes: that is told once.
        log.log(logging.WARNING if is_first else logging.INFO, "%s; connecting again", error)
        if is_first and self._options.on_disconnect is not None:
            self.call_back(self._options.on_disconnect, error)

    def healed(self, *, connected: bool) -> None:
        """Count a broken link that is connected again, or has ended."""
        self._broken -= 1
        if self._broken == 0 and connected and self._options.on_reconnect is not None:
            self.call_back(self._options.on_reconnect)

    def call_back(self, callback: Callback, *arguments: object) -> None:
        """Run *callback* in a turn of its own; what it raises is logged and goes no further."""
        self.run(self._run(callback, *arguments))

    def run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run *work* as a task that is not forgotten before it ends."""
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


Dial = Callable[[Callable[[C], None]], Awaitable[C]]
"""Makes a connection that is authenticated, and calls back when it is lost."""


class Link(Generic[C]):
    """Keeps one connection, made by *dial*, for *resident*."""

    def __init__(
        self,
        endpoint: Endpoint,
        options: Options,
        health: Health,
        resident: Resident[C],
        dial: Dial[C],
    ) -> None:
        self._endpoint = endpoint
        self._options = options
        self._health = health
        self._resident = resident
        self._dial = dial
        self._settled = asyncio.Event()  # there is a connection, or there will be none
        self._reopening: asyncio.Task[None] | None = None
        self.current: C | None = None
        self.end: ClientError | None = None

    async def open(self) -> None:
        """Make the first connection.

        Raises:
            ConnectionFailed: It could not be made; it is not tried again.
            ClientError: What the resident's preparation raised.
        """
        await self._establish()

    async def ready(self) -> C:
        """Return the connection; wait for one, for at most `offline_timeout`.

        Raises:
            ConnectionFailed: There was none for so long.
            ClientError: There will be none: how the link ended.
        """
        if self.current is not None:
            return self.current
        if self.end is None:
            try:
                async with asyncio.timeout(self._options.offline_timeout):
                    await self._settled.wait()
            except TimeoutError:
                reason = f"no connection for {self._options.offline_timeout:g} s"
                raise ConnectionFailed(self._endpoint.address, reason) from None
            return await self.ready()  # it may have broken again already
        raise self.end.with_traceback(None)  # it is raised to many, one after the other

    async def close(self) -> None:
        """End the link, and its connection when what was handed over is written."""
        connection = self.current
        self._finish(Closed("it was closed"))
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.gather(self._reopening, return_exceptions=True)
        if connection is not None:
            await connection.close()

    async def _establish(self) -> None:
        connection = await self._dial(self._lost)
        # In a task of its own: cancelling the caller cannot call a request back. The broker may
        # have made a subscription, which outlives the connection, before its answer is read.
        preparing = asyncio.ensure_future(self._resident.prepare(connection))
        try:
            await asyncio.shield(preparing)
        except asyncio.CancelledError:
            await self._abandon(preparing, connection)
            raise
        except BaseException:
            connection.abort("it could not be prepared")
            raise
        if connection.is_lost:
            self._resident.went_down()
            raise connection.lost()
        self.current = connection
        self._settled.set()

    async def _abandon(self, preparing: "asyncio.Future[None]", connection: C) -> None:
        """Undo a preparation that is under way, within `close_timeout`."""
        try:
            async with asyncio.timeout(self._options.close_timeout):
                await preparing
                await self._resident.abandon(connection)
        except (TimeoutError, ClientError) as error:
            log.info("abandoned before it was prepared: %s", error)
        finally:
            connection.abort("it was cancelled")

    def _lost(self, connection: C) -> None:
        if connection is not self.current:
            return  # it never was ours, or is ours no longer
        self.current = None
        self._settled.clear()
        error = connection.lost()
        self._resident.went_down()
        if not self._options.reconnect:
            self._finish(error)
            return
        self._health.broke(error)
        self._reopening = self._health.run(self._reopen())

    async def _reopen(self) -> None:
        backoff = Backoff(self._options.reconnect_delay, self._options.reconnect_delay_max)
        connected = False
        try:
            while not connected:
                await asyncio.sleep(backoff.next_delay())
                connected = await self._try_again()
        except ClientError as error:
            log.error("not connecting again: %s", error)  # noqa: TRY400 - the trace says nothing more
            self._finish(error)
        finally:
            self._health.healed(connected=connected)

    async def _try_again(self) -> bool:
        try:
            await self._establish()
        except AuthenticationFailed:
            raise
        except (ConnectionFailed, ConnectionLost) as error:
            log.info("%s", error)
            return False
        log.info("connected to %s again", self._endpoint.address)
        return True

    def _finish(self, error: ClientError) -> None:
        self.current = None
        if self.end is None:
            self.end = error
            self._settled.set()
            self._resident.ended(error)
