"""Numbers of each second: what the dashboard draws, and how late the event loop is.

One timer, ten times a second, whether anybody looks or not, so that there is a past to show.
A point is made of differences of counters that are counted anyway.
"""

import asyncio
import mmap
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from braidmq.admin.events import HISTORY_POINTS, Point
from braidmq.admin.http.parameters import iso
from braidmq.admin.metrics import MetricValues

STRANDS: Final = ("blip", "vibe", "qumbed", "http", "spark")

BEAT_S: Final = 0.1
"""How often the loop's lateness is looked at."""

BEATS: Final = 10
"""Beats of one point."""

_STATM: Final = Path("/proc/self/statm")
_MS: Final = 1_000
_PAGE_BYTES: Final = mmap.PAGESIZE


class Numbers:
    """The points of the last while; *measure* has the counters, *take_fsyncs* single times."""

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
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has begun
        self._points: deque[Point] = deque(maxlen=HISTORY_POINTS)
        self._arrived = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._beat = 0
        self._is_over = False
        self._lag_s = 0.0  # the worst of this second
        self._before: tuple[float, MetricValues] | None = None
        self.count = 0
        self.lag_seconds = 0.0  # the worst of the second before

    def start(self) -> None:
        """Begin, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._before = self._loop.time(), self._measure()
        self._arm(self._loop)

    def stop(self) -> None:
        """End, and let everybody who waits for a point go."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_over = True
        self._arrived.set()

    def history(self) -> list[Point]:
        """Return the latest points, oldest first."""
        return list(self._points)

    async def after(self, count: int) -> tuple[int, Point | None]:
        """Return the newest point once there are more than *count*, and how many there are."""
        while self.count <= count and not self._is_over:
            await self._arrived.wait()
        return self.count, None if self._is_over else self._points[-1]

    def take(self) -> Point:
        """Make a point of what happened since the one before."""
        assert self._loop is not None
        assert self._before is not None
        now_s, values = self._loop.time(), self._measure()
        then_s, before = self._before
        self._before = now_s, values
        self.lag_seconds, self._lag_s = self._lag_s, 0.0
        seconds = max(now_s - then_s, BEAT_S)
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
            into=rates("messages_published_by_strand"),
            out=rates("messages_delivered_by_strand"),
            in_bytes=rate("messages_published_bytes"),
            acks=rate("messages_acknowledged"),
            backlog=values.messages_waiting,
            in_flight=values.messages_inflight,
            dead_letters=values.dead_letters,
            fsync_p50_ms=_percentile_ms(fsyncs, 50),
            fsync_p99_ms=_percentile_ms(fsyncs, 99),
            commits=rate("wal_commits"),
            memory_bytes=values.memory_bytes,
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

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due = loop.time() + BEAT_S
        self._timer = loop.call_at(self._due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lag_s = max(self._lag_s, loop.time() - self._due)
        self._beat += 1
        if self._beat % BEATS == 0:
            self.take()
        self._arm(loop)


def rss_bytes() -> int:
    """Return how much memory the process has, as the system counts it; 0 if nobody knows."""
    try:
        return int(_STATM.read_text().split()[1]) * _PAGE_BYTES
    except OSError:
        return 0


def _percentile_ms(ordered: list[float], percent: int) -> float:
    if not ordered:
        return 0.0
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * _MS, 3)
