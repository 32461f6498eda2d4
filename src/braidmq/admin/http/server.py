"""The HTTP listener: the application on our own socket, inside the running loop.

It installs no signal handlers and writes no access log. app.py decides every answer except two:
to a malformed request, and to a connection above the limit.

A connection takes a place at the door: among those of HTTP, from which an idle peer without a
key leaves for a newcomer, or else one that is kept for health checks. There only a health page
is answered, within a short time, so that no number of idle connections hides a healthy broker.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

import h11
import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from braidmq.admin.http.requests import key_name
from braidmq.admin.http.security import HEADERS
from braidmq.base.limits import KIB, TOPIC_BYTES_MAX
from braidmq.base.refusals import by_bound
from braidmq.transport.accepting import Acceptor
from braidmq.transport.binding import bind_tcp
from braidmq.transport.door import HEALTH, HTTP, HTTP_PLACES, Door, Place
from braidmq.transport.tls import TlsLayer, server_context

KEEP_ALIVE_S: Final = 15
HEADER_BYTES_MAX: Final = 3 * TOPIC_BYTES_MAX + 16 * KIB
"""A request's head: the longest topic, percent-encoded in the path, and the headers."""

HEAD_S_MAX: Final = 10.0
"""How long a connection may stay without a complete request."""

HEALTH_S_MAX: Final = 2.0
"""How long a connection may keep a place for health checks."""

HEALTH_PATHS: Final = frozenset({"/healthz", "/livez", "/readyz"})

DATE_S: Final = 1.0
"""How often the Date header of the answers is set."""

DRAIN_S_MAX: Final = 1
"""When the broker stops, answers that take longer to send are cut off."""

_CROWDED: Final = JSONResponse(
    {"error": by_bound("try again later: too many connections", HTTP_PLACES, "at a time")},
    status_code=503,
    headers={**HEADERS, "Connection": "close"},
)
_MALFORMED: Final = JSONResponse(
    {"error": "malformed HTTP request, or its head is too long"},
    status_code=400,
    headers={**HEADERS, "Connection": "close"},
)


class Uptake:
    """Whether a peer reads its answers, judged by the bytes sent between two checks.

    Unsent bytes alone prove nothing: a stream may always have some, even for a peer that reads.
    """

    def __init__(self) -> None:
        self._unsent = 0
        self._taken = 0

    def is_stuck(self, *, given: int, unsent: int) -> bool:
        """Return whether bytes have waited since the last check, and none was sent.

        *given* counts all bytes written for the peer so far, *unsent* those still waiting.
        """
        taken = given - unsent
        stuck = unsent > 0 and self._unsent > 0 and taken <= self._taken
        self._unsent, self._taken = unsent, taken
        return stuck


class _Counted:
    """A transport that counts the bytes written to it."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.given = 0

    def write(self, data: bytes) -> None:
        self.given += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)


class _Framing(h11.Connection):
    """HTTP/1.1 in which a body's length is said in one way only.

    Of a request with two lengths, a proxy in front of us may believe the other one, and a peer
    could hide a second request in the difference.
    """

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if b"transfer-encoding" in names and (
                b"content-length" in names or event.http_version < b"1.1"
            ):
                raise h11.RemoteProtocolError("two lengths of one body")
        return event


class PatientProtocol(H11Protocol):
    """HTTP with timeouts for a request to arrive and for an answer to be read.

    Requests that uvicorn refuses by itself get our JSON instead of its plain text. While a
    request is answered the peer does not leave for a newcomer.
    """

    def __init__(self, server: "_Server", place: Place) -> None:
        super().__init__(server.config, server.server_state, {})
        self.conn = _Framing(h11.SERVER, HEADER_BYTES_MAX)
        self._place = place
        self._is_for_health = place.is_for_health
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
        """Start the timer."""
        self._counted = _Counted(transport)
        self._uptake = Uptake()
        self._last_seen: RequestResponseCycle | None = None
        super().connection_made(cast("asyncio.Transport", self._counted))
        if self._is_for_health:
            self._timer = self.loop.call_later(HEALTH_S_MAX, transport.abort)
        else:
            self._timer = self.loop.call_later(HEAD_S_MAX, self._look_on)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and give the place back."""
        self._place.leave()
        if self._timer is not None:  # else it was lost in its TLS handshake
            self._timer.cancel()
            super().connection_lost(exc)

    def handle_events(self) -> None:
        """Pass the request to the application; above the limits, only one for a health page."""
        # An answer may outlast its connection, so answers are counted as well.
        is_crowded = self._is_for_health or len(self.tasks) >= HTTP_PLACES
        self.app = (
            _only_health(self.config.loaded_app) if is_crowded else self.config.loaded_app
        )
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self._is_for_health:
            self._place.known()

    def on_response_complete(self) -> None:
        """Wait for the next request, except in a place that is kept for health checks."""
        if self._is_for_health:
            self.transport.close()
        elif name := key_name(self.cycle.scope["state"]):
            self._place.rest(name)
        else:
            self._place.strange()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, in JSON as everything else; then close."""
        del msg
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and not cycle.response_complete:
            # Its body is malformed: what the application still answers is dropped.
            cycle.disconnected = True
            cycle.message_event.set()
        # In any other state an answer has begun, and all that is left is to close.
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            head = h11.Response(
                status_code=400, headers=_MALFORMED.raw_headers, reason=b"Bad Request"
            )
            for event in (head, h11.Data(data=bytes(_MALFORMED.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _look_on(self) -> None:
        # Also after a close: a peer that does not read must not keep its bytes in memory.
        self._timer = self.loop.call_later(HEAD_S_MAX, self._look_on)
        self.look()

    def look(self) -> None:
        """Close the connection if its peer neither reads an answer nor sends a request."""
        unsent = self.transport.get_write_buffer_size()
        if self._uptake.is_stuck(given=self._counted.given, unsent=unsent):
            self.transport.abort()
            return
        # uvicorn makes a new cycle for each request, so the same one at two checks in a row
        # means that no complete request has arrived in between.
        cycle: RequestResponseCycle | None = self.cycle
        answering = cycle is not None and not cycle.response_complete
        if not unsent and not answering and cycle is self._last_seen:
            self.transport.close()
        self._last_seen = cycle


class _Server(uvicorn.Server):
    """uvicorn without signal handlers, and with events for its start and its end.

    By itself it looks ten times a second whether it should end, which keeps an idle broker
    awake and delays every stop.
    """

    def __init__(self, config: uvicorn.Config, door: Door, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self._door = door
        self.tls = tls
        self.accepting = asyncio.Event()
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Let `serve` accept no more requests, finish its answers and return."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):  # sets the Date header of the answers
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), DATE_S)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002 - the acceptor has closed it
        self._acceptor.close()
        # uvicorn's own shutdown polls, which would delay a stop that has nothing to wait for.
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self.lifespan.startup()
        assert sockets is not None
        (bound,) = sockets
        self.servers = []
        self._acceptor = Acceptor(bound, admit=self._admit, make=self._protocol)
        self._acceptor.start()
        self.started = True
        self.accepting.set()

    def _admit(self, address: str) -> Place:
        place = self._door.enter(address, HTTP)
        return self._door.enter(address, HEALTH) if place.refusal else place

    def _protocol(self, place: Place) -> asyncio.Protocol:
        protocol = PatientProtocol(self, place)
        if self.tls is None:
            return protocol
        timeout_s = HEALTH_S_MAX if place.is_for_health else HEAD_S_MAX
        return TlsLayer(self.tls, protocol, handshake_timeout_s=timeout_s)


class AdminServer:
    """One HTTP listener, started once and stopped once."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        door: Door | None = None,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
    ) -> None:
        self._app = app
        self._host = host
        self._port = port
        self._door = door if door is not None else Door(connections=1, strangers=1)
        self._tls_cert = tls_cert
        self._tls_key = tls_key
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> tuple[str, int]:
        """Listen, and return the address once connections are accepted.

        Raises:
            AddressInUseError: The address cannot be bound.
            ConfigError: The certificate or its key cannot be used.
        """
        assert self._task is None
        tls = None
        if self._tls_cert is not None and self._tls_key is not None:
            tls = server_context("http", self._tls_cert, self._tls_key)
        server = _Server(self._config(), self._door, tls)
        listener = bind_tcp("http", self._host, self._port)
        address = listener.getsockname()
        self._server = server
        self._task = asyncio.create_task(server.serve(sockets=[listener]), name="http")
        accepting = asyncio.create_task(server.accepting.wait())
        await asyncio.wait({self._task, accepting}, return_when=asyncio.FIRST_COMPLETED)
        assert accepting.done(), "the HTTP server ended before it began"
        return str(address[0]), int(address[1])

    def renew(self, tls: ssl.SSLContext) -> None:
        """Use another certificate for the connections from now on."""
        if self._server is not None and self._server.tls is not None:
            self._server.tls = tls

    async def stop(self) -> None:
        """Accept no more requests, finish answers, and close. Does nothing if not started."""
        if self._server is None or self._task is None:
            return
        self._server.end()
        await self._task
        self._server = self._task = None

    def _config(self) -> uvicorn.Config:
        return uvicorn.Config(
            self._app,
            loop="none",
            http=PatientProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",  # the daemon logs start and stop; errors of peers are not ours
            access_log=False,
            proxy_headers=False,  # a header must not decide who the peer is
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=DRAIN_S_MAX,
            h11_max_incomplete_event_size=HEADER_BYTES_MAX,
        )


def _only_health(app: ASGIApp) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        served = app if scope["path"] in HEALTH_PATHS else _CROWDED
        await served(scope, receive, send)

    return answer
