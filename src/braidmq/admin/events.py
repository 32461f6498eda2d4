"""Live numbers, pushed: one point each second to everybody who listens.

    GET /api/events    text/event-stream: `history`, then `numbers` each second

A listener that does not take what is sent is not buffered for: it misses points, and the
HTTP listener (server.py) closes a connection that takes nothing for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final, Protocol

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from braidmq.admin.http.endpoints import Endpoint
from braidmq.admin.http.requests import KeySource, principal_of

LISTENERS_MAX: Final = 32
"""Streams at once; a dashboard needs one."""

HISTORY_POINTS: Final = 120
"""What a new listener is told of the past, in points of a second each."""

_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]


class Point(msgspec.Struct, frozen=True, kw_only=True, rename={"into": "in"}):
    """The numbers of one second; rates are per second, the others of its end."""

    time: str
    into: dict[str, float]
    out: dict[str, float]
    in_bytes: float
    acks: float
    backlog: int
    in_flight: int
    dead_letters: int
    fsync_p50_ms: float
    fsync_p99_ms: float
    commits: float
    memory_bytes: int
    rss_bytes: int
    connections: dict[str, int]
    loop_lag_ms: float
    log_bytes: int


class NumbersSource(Protocol):
    """Who takes the numbers."""

    def history(self) -> list[Point]:
        """Return the latest points, oldest first."""
        ...

    async def after(self, count: int) -> tuple[int, Point | None]:
        """Return the newest point once more than *count* were taken, and how many there are.

        None in its place: there will be no more.
        """
        ...

    @property
    def count(self) -> int:
        """How many points were taken so far."""
        ...


class EventStream(Response):
    """An answer without an end: one event after the other, until somebody leaves."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what comes until the peer is gone."""
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEAD)})
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_left(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            leaving.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event_endpoints(keys: KeySource, source: NumbersSource) -> list[Endpoint]:
    """Return `/api/events`."""
    listening: set[object] = set()

    async def events() -> AsyncGenerator[bytes]:
        me = object()
        listening.add(me)
        try:
            count = source.count
            yield event("history", source.history())
            while True:
                count, point = await source.after(count)
                if point is None:
                    return
                yield event("numbers", point)
        finally:
            listening.discard(me)

    async def listen(request: Request) -> Response:
        principal_of(request, keys)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        if len(listening) >= LISTENERS_MAX:
            raise HTTPException(503, f"{LISTENERS_MAX} listen already")
        return EventStream(events())

    return [
        Endpoint(
            method="GET",
            path="/api/events",
            handler=listen,
            summary="Live numbers: `history` first, then `numbers` each second.",
            answer=Point,
            media="text/event-stream",
            refusals=(503,),
        )
    ]


def event(kind: str, data: object) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
