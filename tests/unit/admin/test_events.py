"""Live numbers, pushed: what is sent, to how many, and how it ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from starlette.types import ASGIApp, Message, Scope

from braidmq.admin.events import LISTENERS_MAX, Point, event
from braidmq.admin.http.app import build_app
from tests.unit.admin.sources import ADMIN_KEY, FakeSource

pytestmark = pytest.mark.asyncio

SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": "/api/events",
    "raw_path": b"/api/events",
    "query_string": b"",
    "headers": [(b"authorization", f"Bearer {ADMIN_KEY}".encode()), (b"host", b"localhost")],
}


def point(number: int) -> Point:
    return Point(
        time="1970-01-01T00:00:00Z",
        into={"blip": float(number)},
        out={},
        in_bytes=0.0,
        acks=0.0,
        backlog=number,
        in_flight=0,
        dead_letters=0,
        fsync_p50_ms=0.0,
        fsync_p99_ms=0.0,
        commits=0.0,
        memory_bytes=0,
        rss_bytes=0,
        connections={},
        loop_lag_ms=0.0,
        log_bytes=0,
    )


class Listener:
    """A peer of the application: what it was sent, until it leaves."""

    def __init__(self, app: ASGIApp, method: str = "GET") -> None:
        self._left = asyncio.Event()
        self.started: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.body = b""
        self.heard = asyncio.Event()
        scope = {**SCOPE, "method": method}
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    def leave(self) -> None:
        self._left.set()

    async def _receive(self) -> Message:
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started.set_result(message["status"])
        else:
            self.body += message.get("body", b"")
            self.heard.set()


@asynccontextmanager
async def listening(app: ASGIApp, count: int) -> AsyncIterator[list[Listener]]:
    listeners = [Listener(app) for _ in range(count)]
    async with asyncio.timeout(20):
        for listener in listeners:
            await listener.started
            await listener.heard.wait()
        yield listeners
        for listener in listeners:
            listener.leave()
            await listener.task


async def test_history_comes_first_then_each_point() -> None:
    """As server-sent events; when there are no more points, the answer ends."""
    source = FakeSource()
    source.numbers.past = [point(1), point(2)]
    source.numbers.coming = [point(3), point(4)]
    listener = Listener(build_app(source, loopback=True))
    async with asyncio.timeout(20):
        await listener.task
    events = [block.split("\n") for block in listener.body.decode().strip().split("\n\n")]

    assert ["event: history", "event: numbers", "event: numbers"] == [e[0] for e in events]
    history, third, fourth = (json.loads(e[1].removeprefix("data: ")) for e in events)
    assert [1, 2, 3, 4] == [p["backlog"] for p in (*history, third, fourth)]
    assert {"blip": 3.0} == third["in"]


async def test_so_many_listen_and_no_more() -> None:
    """One that leaves makes room."""
    source = FakeSource()
    source.numbers.waits = True
    app = build_app(source, loopback=True)
    async with listening(app, LISTENERS_MAX) as listeners:
        refused = Listener(app)
        assert 503 == await refused.started
        await refused.task
        listeners[0].leave()
        await listeners[0].task
        welcome = Listener(app)
        assert 200 == await welcome.started
        welcome.leave()
        await welcome.task


async def test_head_does_not_wait() -> None:
    """It has an answer without a body, at once."""
    source = FakeSource()
    source.numbers.waits = True
    listener = Listener(build_app(source, loopback=True), method="HEAD")
    async with asyncio.timeout(20):
        await listener.task

    assert 200 == listener.started.result()


async def test_an_event_is_two_lines_and_an_empty_one() -> None:
    """JSON has no line breaks of its own, whatever is in it."""
    assert b'event: numbers\ndata: {"a":"x\\ny"}\n\n' == event("numbers", {"a": "x\ny"})
    assert "in" in msgspec.json.decode(msgspec.json.encode(point(1)))
