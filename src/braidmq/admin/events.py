"""Live numbers over HTTP: one event each second to every listener.

    GET /api/events    text/event-stream: `history`, then `numbers` each second

One timer fires ten times a second, with or without listeners, so that a new listener gets a
history. A point is made of differences between counters that the broker keeps anyway. The timer
also measures the delay of the event loop.

Events are not buffered for a slow listener: it misses points, and the HTTP server closes a
connection whose client has read nothing for a while.
"""

import asyncio
import contextlib
import mmap
from collections import deque
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Final

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.parameters import iso
from braidmq.admin.metrics import MetricValues
from braidmq.base import refusals
from braidmq.broker.authorize import Principal

STRANDS: Final = ("blip", "vibe", "qumbed", "http", "spark")

HISTORY_POINTS: Final = 120
"""Points of the past, one per second, that a new listener gets."""

BEAT_S: Final = 0.1
"""How often the delay of the event loop is measured."""

BEATS: Final = 10
"""Beats per point."""

_STATM: Final = Path("/proc/self/statm")
_MS: Final = 1_000
_PAGE_BYTES: Final = mmap.PAGESIZE

LISTENERS_MAX: Final = 32
"""Most open streams; a dashboard needs one."""

EVENT_STREAM: Final = "text/event-stream"
_HEAD: Final = [
    (b"content-type", f"{EVENT_STREAM}; charset=utf-8".encode()),
    (b"x-accel-buffering", b"no"),
]


class Point(msgspec.Struct, frozen=True, kw_only=True, rename={"into": "in"}):
    """The numbers of one second: rates per second, and levels at its end."""

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
            # The client may disconnect while no event is due: sending alone would not notice.
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


class Numbers:
    """The latest points.

    *measure* reads the counters, *take_fsyncs* removes and returns the fsync times since the
    last call.
    """

    def __init__(
        self,
        measure: Callable[[], MetricValues],
        *,
        now_us: Callable[[], int],
        take_fsyncs: Callable[[], list[float]],
    ) -> None:
        self._measure = measure
        self._now_us = now_us
        self._take_fsyncs = take_fsyncs
        self._loop: asyncio.AbstractEventLoop | None = None  # set by start()
        self._points: deque[Point] = deque(maxlen=HISTORY_POINTS)
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._beat = 0
        self._is_over = False
        self._lag_s = 0.0  # worst of this second
        self._listening = 0  # open streams
        self._before: tuple[float, MetricValues] | None = None
        self.count = 0
        self.lag_seconds = 0.0  # worst of the previous second

    def start(self) -> None:
        """Start the timer on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.time(), self._measure()
        self._arm(self._loop)

    def stop(self) -> None:
        """Stop the timer, and wake every listener that waits for a point."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_over = True
        self._arrived.set()

    def history(self) -> list[Point]:
        """Return the latest points, oldest first."""
        return list(self._points)

    def permissions_changed(self) -> None:
        """Have every stream look whether its principal is gone."""
        self._arrived.set()
        self._arrived = asyncio.Event()

    async def after(
        self, count: int, principal: Principal | None = None
    ) -> tuple[int, Point | None]:
        """Wait for more than *count* points; return their number and the newest.

        The point is None once the numbers have stopped, or *principal* is gone.
        """

        def is_over() -> bool:
            return self._is_over or (principal is not None and principal.gone)

        while self.count <= count and not is_over():
            await self._arrived.wait()
        return self.count, None if is_over() else self._points[-1]

    @keyed("GET /api/events", answer=Point, media=EVENT_STREAM)
    async def get_events(self, request: Request, principal: Principal) -> Response:
        """Stream live numbers: `history` first, then `numbers` each second."""
        if request.method == "HEAD":
            return Response(media_type=EVENT_STREAM)
        if self._listening >= LISTENERS_MAX:
            what = "too many event streams are open, close one and retry"
            raise HTTPException(503, refusals.by_bound(what, LISTENERS_MAX, "at a time"))
        return EventStream(self._events(principal))

    def take(self) -> Point:
        """Make a point from the changes since the previous one."""
        assert self._loop is not None
        assert self._before is not None
        now_s, values = self._loop.time(), self._measure()
        then_s, before = self._before
        self._before = now_s, values
        self.lag_seconds, self._lag_s = self._lag_s, 0.0
        seconds = max(now_s - then_s, BEAT_S)  # measured: a busy loop fires the timer late
        fsyncs = sorted(self._take_fsyncs())

        def rate(name: str) -> float:
            difference: int = getattr(values, name) - getattr(before, name)
            return round(difference / seconds, 1)

        def rates(name: str) -> dict[str, float]:
            now, then = getattr(values, name), getattr(before, name)
            return {
                strand: round((now.get(strand, 0) - then.get(strand, 0)) / seconds, 1)
                for strand in STRANDS
            }

        point = Point(
            time=iso(self._now_us()),
            into=rates("strand_messages_published"),
            out=rates("strand_messages_delivered"),
            in_bytes=rate("messages_published_bytes"),
            acks=rate("messages_acknowledged"),
            backlog=values.messages_waiting,
            in_flight=values.messages_inflight,
            dead_letters=values.dead_letters,
            fsync_p50_ms=_percentile_ms(fsyncs, 50),
            fsync_p99_ms=_percentile_ms(fsyncs, 99),
            commits=rate("wal_commits"),
            memory_bytes=values.memory_used_bytes,
            rss_bytes=rss_bytes(),
            connections=dict(values.connections),
            loop_lag_ms=round(self.lag_seconds * _MS, 3),
            log_bytes=values.wal_size_bytes,
        )
        self._points.append(point)
        self.count += 1
        self._arrived.set()
        self._arrived = asyncio.Event()
        return point

    async def _events(self, principal: Principal) -> AsyncGenerator[bytes]:
        self._listening += 1
        try:
            count = self.count
            yield event("history", self.history())
            while True:
                count, point = await self.after(count, principal)
                if point is None:
                    return
                yield event("numbers", point)
        finally:
            self._listening -= 1

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        # From now on, not from when it was due: after a stall the beats must not catch up.
        self._due = loop.time() + BEAT_S
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lag_s = max(self._lag_s, loop.time() - self._due)
        self._beat += 1
        if self._beat % BEATS == 0:
            self.take()
        self._arm(loop)


def rss_bytes() -> int:
    """Return the resident memory of the process; 0 where the system does not tell."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _percentile_ms(ordered: list[float], percent: int) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * _MS, 3)


def event(kind: str, data: object) -> bytes:
    """Return one server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode(data))


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
