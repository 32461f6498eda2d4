"""Live numbers over HTTP: one event each second to every listener.

    GET /api/events    text/event-stream: `history`, then `numbers` each second

Events are not buffered for a slow listener: it misses points, and the HTTP server closes a
connection whose client has read nothing for a while.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.numbers import Numbers, Point
from braidmq.broker.authorize import Principal

LISTENERS_MAX: Final = 32
"""Open streams; a dashboard needs one."""

EVENT_STREAM: Final = "text/event-stream"
_HEAD: Final = [
    (b"content-type", f"{EVENT_STREAM}; charset=utf-8".encode()),
    (b"x-accel-buffering", b"no"),
]


class EventStream(Response):
    """An answer that goes on until the client disconnects or the events end."""

    def __init__(self, events: AsyncGenerator[bytes]) -> None:
        super().__init__()
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client disconnects."""
        del scope
        await send({"type": "http.response.start", "status": 200, "headers": list(_HEAD)})
        sending = asyncio.ensure_future(self._send_all(send))
        disconnected = asyncio.ensure_future(_disconnected(receive))
        try:
            await asyncio.wait({sending, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sending.cancel()
            disconnected.cancel()
            await asyncio.gather(sending, disconnected, return_exceptions=True)

    async def _send_all(self, send: Send) -> None:
        async with contextlib.aclosing(self._events) as events:
            async for piece in events:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class Events:
    """The streams of live numbers; at most LISTENERS_MAX are open."""

    def __init__(self, numbers: Numbers) -> None:
        self._numbers = numbers
        self._listening = 0

    @keyed("GET /api/events", answer=Point, media=EVENT_STREAM)
    async def get_events(self, request: Request, _principal: Principal) -> Response:
        """Stream live numbers: `history` first, then `numbers` each second."""
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        if self._listening >= LISTENERS_MAX:
            raise HTTPException(
                503, f"too many event streams: {LISTENERS_MAX} are open; close one and retry"
            )
        return EventStream(self._events())

    async def _events(self) -> AsyncGenerator[bytes]:
        self._listening += 1
        try:
            count = self._numbers.count
            yield event("history", self._numbers.history())
            while True:
                count, point = await self._numbers.after(count)
                if point is None:
                    return
                yield event("numbers", point)
        finally:
            self._listening -= 1


def event(kind: str, data: object) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
