"""The places of the HTTP listener: who is answered when many hold connections."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from braidmq.admin.http import server
from braidmq.admin.http.server import AdminServer
from braidmq.transport.door import HEALTH, HEALTH_PLACES, HTTP, HTTP_PLACES, Door
from tests.integration.blip.peer import until
from tests.unit.admin.http.test_server import (
    answer_to,
    listening,
    raw_answer,
    refusal_in,
    status_of,
)
from tests.unit.admin.world import ADMIN

pytestmark = pytest.mark.asyncio

IDLE = {
    "silent": b"",
    "half a request": b"GET /healthz HT",
    "an unfinished body": (
        b"POST /api/queues HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    ),
    "kept alive": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("sent", IDLE.values(), ids=IDLE.keys())
async def test_idle_strangers_leave_for_newcomers(sent: bytes) -> None:
    """However many hold connections, every page is answered; their number is bounded."""
    door = Door(connections=1, strangers=1)
    async with listening(door=door) as address:
        idle = [await asyncio.open_connection(*address) for _ in range(HTTP_PLACES + 40)]
        for _, writer in idle:
            writer.write(sent)
        answers = [
            await answer_to(address, f"GET {path} HTTP/1.1")
            for path in ("/healthz", "/livez", "/", "/api/overview")
        ]
        assert [200, 200, 200, 401] == [int(answer.split()[1]) for answer in answers]
        assert door.count(HTTP) <= HTTP_PLACES
        assert 0 == door.count(HEALTH)
        for _, writer in idle:
            writer.close()


@asynccontextmanager
async def crowded(app: ASGIApp) -> AsyncIterator[tuple[str, int]]:
    """Yield the address of a listener all of whose places answer a request."""
    door = Door(connections=1, strangers=1)
    listener = AdminServer(app, host="127.0.0.1", port=0, door=door)
    address = await listener.start()
    busy = [await asyncio.open_connection(*address) for _ in range(HTTP_PLACES)]
    for _, writer in busy:
        writer.write(b"GET /endless HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await until(lambda: door.count(HTTP) == HTTP_PLACES and not door.strangers(HTTP))
    try:
        yield address
    finally:
        for _, writer in busy:
            writer.close()
        await listener.stop()
        door.close()


async def endless_but_health(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer health pages only."""
    if scope["path"] == "/endless":
        while (await receive())["type"] != "http.disconnect":
            pass
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": scope["path"].encode()})


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_has_places_of_its_own(path: str) -> None:
    """They are answered while every other place is in use; the connection then ends."""
    async with crowded(endless_but_health) as address:
        for _ in range(3 * HEALTH_PLACES):
            request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            answer = await raw_answer(address, request.encode())
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert answer.endswith(path.encode() + b"\r\n0\r\n\r\n")
        refused = await answer_to(address, "GET /api/overview HTTP/1.1")

    text = "try again later: too many connections: at most 128 at a time; no setting raises it"
    assert (503, text) == refusal_in(refused)


async def test_strangers_cannot_hold_the_places_for_health(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The oldest leaves for a newcomer, whatever it has sent so far; none stays for long."""
    monkeypatch.setattr(server, "HEALTH_S_MAX", 0.5)
    async with crowded(endless_but_health) as address:
        idle = [await asyncio.open_connection(*address) for _ in range(5 * HEALTH_PLACES)]
        for number, (_, writer) in enumerate(idle):
            writer.write(b"GET /healthz HT"[:number])
        assert 200 == await asyncio.to_thread(status_of, address, "/healthz")
        async with asyncio.timeout(20):
            assert [b""] * len(idle) == [await _end_of(reader) for reader, _ in idle]
        for _, writer in idle:
            writer.close()


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    with contextlib.suppress(ConnectionError):
        return await reader.read()
    return b""


async def test_a_peer_with_a_key_does_not_leave_for_strangers() -> None:
    """Its connection is kept alive, as a dashboard's is."""
    async with listening() as address:
        key = ADMIN["Authorization"]
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(2):
            writer.write(
                f"GET /api/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
                "\r\n".encode()
            )
            assert b"HTTP/1.1 200 OK\r\n" == await reader.readline()
            head = await reader.readuntil(b"\r\n\r\n")
            (size,) = (
                line for line in head.lower().split(b"\r\n") if b"content-length" in line
            )
            await reader.readexactly(int(size.split()[1]))
            idle = [await asyncio.open_connection(*address) for _ in range(2 * HTTP_PLACES)]
            for _, stranger in idle:
                stranger.close()
        writer.close()
