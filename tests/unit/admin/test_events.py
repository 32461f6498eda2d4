"""Live numbers: what is sent, to how many listeners, and how a stream ends."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Message, Scope

from braidmq.admin.events import LISTENERS_MAX, Point, event
from braidmq.admin.http.app import build_app
from tests.unit.admin.world import ADMIN_KEY, World

pytestmark = pytest.mark.asyncio

SCOPE: Scope = {
    "type": "http",
    "method": "GET",
    "path": "/api/events",
    "raw_path": b"/api/events",
    "query_string": b"",
    "headers": [(b"authorization", f"Bearer {ADMIN_KEY}".encode()), (b"host", b"localhost")],
}


class Listener:
    """A client of the application, which records what it receives until it leaves."""

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
    """As server-sent events; once the broker stops, the response ends."""
    world = World()
    numbers = world.status.numbers
    numbers.start()
    backlogs: list[int] = []
    world.declare("q")

    def take() -> Point:
        world.publish("q", b"x")
        backlogs.append(len(backlogs) + 1)
        return numbers.take()

    take()
    take()
    async with listening(build_app(world.status, loopback=True), 1) as (listener,):
        for _ in range(2):
            listener.heard.clear()
            take()
            await listener.heard.wait()
        numbers.stop()
        await listener.task
    events = [block.split("\n") for block in listener.body.decode().strip().split("\n\n")]

    assert ["event: history", "event: numbers", "event: numbers"] == [e[0] for e in events]
    history, third, fourth = (json.loads(e[1].removeprefix("data: ")) for e in events)
    assert backlogs == [p["backlog"] for p in (*history, third, fourth)]
    assert third["in"]["vibe"] > 0


async def test_the_number_of_streams_is_bounded() -> None:
    """One that ends makes room."""
    world = World()
    app = build_app(world.status, loopback=True)
    async with listening(app, LISTENERS_MAX) as listeners:
        refused = Listener(app)
        assert 503 == await refused.started
        await refused.task
        listeners[0].leave()
        await listeners[0].task
        accepted = Listener(app)
        assert 200 == await accepted.started
        accepted.leave()
        await accepted.task


async def test_head_does_not_wait() -> None:
    """It gets a response without a body, at once."""
    listener = Listener(build_app(World().status, loopback=True), method="HEAD")
    async with asyncio.timeout(20):
        await listener.task

    assert 200 == listener.started.result()


async def test_an_event_is_two_lines_and_an_empty_one() -> None:
    """JSON has no line breaks, whatever it contains."""
    assert b'event: numbers\ndata: {"a":"x\\ny"}\n\n' == event("numbers", {"a": "x\ny"})
