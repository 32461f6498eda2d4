"""The HTTP listener, with real sockets."""

import asyncio
import contextlib
import http.client
import io
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from braidmq.admin.http import server
from braidmq.admin.http.app import build_app
from braidmq.admin.http.security import HEADERS
from braidmq.admin.http.server import (
    HEADER_BYTES_MAX,
    AdminServer,
    PatientProtocol,
    Uptake,
)
from braidmq.base.errors import AddressInUseError
from braidmq.base.limits import KIB, MIB
from braidmq.transport.door import Door
from tests.unit.admin.world import ADMIN, World

pytestmark = pytest.mark.asyncio

HAS_IPV6 = Path("/proc/net/if_inet6").exists()
MALFORMED = "malformed HTTP request, or its head is too long"


def app() -> ASGIApp:
    return build_app(World().status, loopback=True)


@asynccontextmanager
async def listening(
    host: str = "127.0.0.1", door: Door | None = None
) -> AsyncIterator[tuple[str, int]]:
    server = AdminServer(app(), host=host, port=0, door=door)
    try:
        yield await server.start()
    finally:
        await server.stop()


def status_of(
    address: tuple[str, int], path: str, headers: dict[str, str] | None = None
) -> int:
    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", path, headers=headers or {})
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


def date_of(host: str, port: int) -> str | None:
    connection = http.client.HTTPConnection(host, port, timeout=10)
    with contextlib.closing(connection):
        connection.request("GET", "/healthz")
        return connection.getresponse().getheader("Date")


def until_the_date_changes(address: tuple[str, int]) -> None:
    first = date_of(*address)
    while first == date_of(*address):
        pass  # each check is a request; if the date stays, the test's timeout ends this


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_port_0_is_any_free_port(host: str) -> None:
    """The address that start returns is the one that answers."""
    if host == "::1" and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    async with listening(host) as address:
        assert 0 != address[1]
        assert 200 == await asyncio.to_thread(status_of, address, "/healthz")


async def test_an_address_in_use_is_reported() -> None:
    """With the listener's name, the address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=rf"^http: .* on 127\.0\.0\.1:{port}: Addr"):
            await AdminServer(app(), host="127.0.0.1", port=port).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", 70 * "a"])
async def test_an_address_of_another_machine_is_reported(host: str) -> None:
    """Whatever the system's reason, it is one typed error."""
    with pytest.raises(AddressInUseError, match=r"^http: cannot listen on "):
        await AdminServer(app(), host=host, port=0).start()


async def test_after_stop_the_address_is_free() -> None:
    """A restart need not wait for anything."""
    async with listening() as address:
        pass
    server = AdminServer(app(), host=address[0], port=address[1])

    assert address == await server.start()
    await server.stop()


async def test_stop_ends_idle_connections() -> None:
    """A client that keeps a connection open does not keep the broker running."""
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"}")

    assert b"" == await reader.read()
    writer.close()


async def test_stop_wakes_an_idle_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for the server's next tick, which is an hour away here."""
    monkeypatch.setattr(server, "DATE_S", 3_600.0)
    async with asyncio.timeout(60), listening():
        pass


async def test_the_date_of_a_response_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server updates it regularly, not only at startup."""
    monkeypatch.setattr(server, "DATE_S", 0.01)
    async with listening() as address:
        await asyncio.to_thread(until_the_date_changes, address)


async def test_stop_without_start_is_harmless() -> None:
    """A start that failed halfway is stopped like any other."""
    server = AdminServer(app(), host="127.0.0.1", port=0)
    await server.stop()
    await server.stop()


async def test_signals_stay_with_the_daemon() -> None:
    """The server installs no handlers of its own."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with listening():
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    assert before == during


async def test_nothing_is_logged_about_requests() -> None:
    """Neither valid ones, whose headers hold keys, nor noise, which would fill the disk."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        async with listening() as address:
            headers = ADMIN
            assert 200 == await asyncio.to_thread(status_of, address, "/api/overview", headers)
            answer = await raw_answer(address, b"noise\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 400 ")
    finally:
        root.removeHandler(handler)
        root.setLevel(level)

    assert "" == stream.getvalue()


async def raw_answer(address: tuple[str, int], sent: bytes) -> bytes:
    """Send these bytes, and return everything that the server sends before it closes."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    answer = await asyncio.wait_for(reader.read(), timeout=10)
    writer.close()
    return answer


async def answer_to(address: tuple[str, int], *lines: str) -> bytes:
    """Send a request with these lines, and return the whole response."""
    request = [*lines, "Host: localhost", "Connection: close", "", ""]
    return await raw_answer(address, "\r\n".join(request).encode())


def refusal_in(answer: bytes) -> tuple[int, str]:
    """Return status and text of a refusal, which must have the headers of every response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    wanted = {**HEADERS, "Content-Type": "application/json", "Connection": "close"}
    assert {(name.lower(), value.lower()) for name, value in wanted.items()} <= headers.items()
    assert "server" not in headers
    content = json.loads(body)
    assert ["error"] == list(content)
    return int(status.split()[1]), content["error"]


async def test_a_response_does_not_name_the_server() -> None:
    """Its name and version would only help an attacker."""
    async with listening() as address:
        answer = await answer_to(address, "GET /healthz HTTP/1.1")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nserver:" not in answer.lower()


async def test_forwarding_headers_are_ignored() -> None:
    """The broker trusts no proxy, so such a header is only a claim of the peer."""
    seen: list[Scope] = []

    async def note(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body"})

    listener = AdminServer(note, host="127.0.0.1", port=0)
    address = await listener.start()
    claims = ("X-Forwarded-For: 192.0.2.1", "X-Forwarded-Proto: https")
    await answer_to(address, "GET / HTTP/1.1", *claims)
    await listener.stop()

    assert [("127.0.0.1", "http")] == [(scope["client"][0], scope["scheme"]) for scope in seen]


async def test_a_websocket_is_not_opened() -> None:
    """A request for one is answered as plain HTTP."""
    upgrade = (
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    )
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        lines = ["GET /healthz HTTP/1.1", "Host: localhost", "Connection: Upgrade", *upgrade]
        writer.write("\r\n".join([*lines, "", ""]).encode())

        assert b"HTTP/1.1 200 OK\r\n" == await reader.readline()
        writer.close()


async def test_stop_does_not_wait_for_an_endless_response() -> None:
    """An open dashboard does not keep the broker running."""
    started = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        started.set()
        await asyncio.Event().wait()

    listener = AdminServer(endless, host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection(*await listener.start())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(20):
        await started.wait()
        await listener.stop()

        assert b"200 OK" not in await reader.read()
    writer.close()


async def test_the_longest_name_of_a_topic_fits_into_a_request() -> None:
    """65,535 bytes, each percent-encoded."""
    headers = ADMIN
    path = "/api/topics?after=" + 65_535 * "%00"
    async with listening() as address:
        assert 200 == await asyncio.to_thread(status_of, address, path, headers)


async def test_a_head_without_an_end_is_refused_at_the_limit() -> None:
    """It is not buffered in the hope that it ends."""
    async with listening() as address:
        answer = await raw_answer(address, b"GET /" + HEADER_BYTES_MAX * b"a")

    assert (400, MALFORMED) == refusal_in(answer)


async def test_a_malformed_request_is_refused_like_any_other() -> None:
    """In JSON, with the headers of every response, and the connection closes."""
    async with listening() as address:
        answer = await raw_answer(address, b"noise\r\n\r\n")

    assert (400, MALFORMED) == refusal_in(answer)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
async def test_a_request_that_does_not_arrive_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Neither the first nor a later one: the slot is for clients that send requests."""
    monkeypatch.setattr("braidmq.admin.http.server.HEAD_S_MAX", 0.05)
    async with listening() as address:
        answer = await raw_answer(address, sent)

    assert (b"200 OK" in answer) == sent.startswith(b"GET /healthz")


async def test_a_peer_that_never_reads_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its response is not kept for ever."""
    monkeypatch.setattr(server, "HEAD_S_MAX", 0.2)
    gone = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        piece = {"type": "http.response.body", "body": bytes(2**20), "more_body": True}
        sending = asyncio.ensure_future(_for_ever(send, piece))
        await receive()  # the request's end
        while (await receive())["type"] != "http.disconnect":
            pass
        sending.cancel()
        gone.set()

    listener = AdminServer(endless, host="127.0.0.1", port=0)
    address = await listener.start()
    _, writer = await asyncio.open_connection(*address, limit=1)
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(20):
        await gone.wait()
    writer.close()
    await listener.stop()

    assert gone.is_set()


async def _for_ever(send: Send, piece: Message) -> None:
    while True:
        await send(piece)


# At each check: the bytes given in total, the bytes unsent, and whether the peer is stuck.
CHECKS = {
    "nothing was ever requested": [(0, 0, False), (0, 0, False)],
    "it takes nothing": [(9, 9, False), (9, 9, True)],
    "it takes nothing while more is given": [(9, 9, False), (20, 20, True)],
    "it takes a byte, and no more": [(9, 9, False), (9, 8, False), (9, 8, True)],
    "it reads, and as much waits at every check": [
        (9, 9, False),
        (15, 9, False),
        (20, 9, False),
    ],
    "it reads, and ever more waits": [(9, 9, False), (20, 19, False), (40, 38, False)],
    "it has taken everything, and the next piece waits": [
        (9, 0, False),
        (18, 9, False),
        (18, 9, True),
    ],
    "it was slow, and has taken everything": [(9, 9, False), (9, 0, False), (9, 0, False)],
}


@pytest.mark.parametrize("checks", CHECKS.values(), ids=CHECKS.keys())
async def test_a_peer_is_stuck_when_nothing_leaves(checks: list[tuple[int, int, bool]]) -> None:
    """Unsent bytes alone mean nothing: a stream always has some."""
    uptake = Uptake()

    assert [stuck for *_, stuck in checks] == [
        uptake.is_stuck(given=given, unsent=unsent) for given, unsent, _ in checks
    ]


class Pieces:
    """An application that sends its response in pieces on demand, and its one connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, head_s: float = 3600.0) -> None:
        self.seen: list[PatientProtocol] = []
        self.looked = asyncio.Semaphore(0)
        self.lost = asyncio.Event()
        self._queued: asyncio.Queue[Message] = asyncio.Queue()
        self._given = asyncio.Semaphore(0)
        pieces = self

        class Seen(PatientProtocol):
            """The protocol itself, reporting what happens to it."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base class has it
                super().connection_made(transport)
                pieces.seen.append(self)

            def connection_lost(self, exc: Exception | None) -> None:
                super().connection_lost(exc)
                pieces.lost.set()
                pieces.looked.release()

            def look(self) -> None:
                super().look()
                pieces.looked.release()

        monkeypatch.setattr(server, "HEAD_S_MAX", head_s)
        monkeypatch.setattr(server, "PatientProtocol", Seen)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        more = True
        while more:
            piece = await self._queued.get()
            more = piece["more_body"]
            asyncio.get_running_loop().call_soon(self._given.release)
            await send(piece)

    async def send(self, size: int, *, more: bool = True) -> None:
        """Send a piece of this size, and wait until the connection has it."""
        piece = {"type": "http.response.body", "body": bytes(size), "more_body": more}
        self._queued.put_nowait(piece)
        await self._given.acquire()

    @asynccontextmanager
    async def requested(self, then: str = "keep-alive") -> AsyncIterator[socket.socket]:
        """Send a request, and yield the peer's end, which reads only what a test takes."""
        listener = AdminServer(self, host="127.0.0.1", port=0)
        address = await listener.start()
        loop = asyncio.get_running_loop()
        try:
            with socket.socket() as peer:
                peer.setblocking(False)
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)
                async with asyncio.timeout(20):
                    await loop.sock_connect(peer, address)
                    lines = ["GET / HTTP/1.1", "Host: localhost", f"Connection: {then}", "", ""]
                    await loop.sock_sendall(peer, "\r\n".join(lines).encode())
                    yield peer
        finally:
            await listener.stop()


async def taken(peer: socket.socket, size: int) -> int:
    """Read up to *size* bytes, fewer at the end of the stream; return how many."""
    loop = asyncio.get_running_loop()
    left = size
    with contextlib.suppress(ConnectionResetError):
        while left and (data := await loop.sock_recv(peer, left)):
            left -= len(data)
    return size - left


async def test_a_peer_that_reads_steadily_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much of the stream waits, even if it is more at every check."""
    pieces = Pieces(monkeypatch)
    async with pieces.requested() as peer:
        for size in (8 * MIB, 10 * MIB, 12 * MIB):
            await pieces.send(size)
            (connection,) = pieces.seen
            assert connection.transport.get_write_buffer_size() > 0
            connection.look()
            assert size == await taken(peer, size)
        await pieces.send(0, more=False)


async def test_a_slow_response_does_not_make_a_connection_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While part of it is unsent, the connection stays open."""
    pieces = Pieces(monkeypatch)
    async with pieces.requested() as peer:
        await pieces.send(32 * MIB, more=False)
        (connection,) = pieces.seen
        for _ in range(3):
            await taken(peer, 8 * MIB)
            connection.look()
            assert not connection.transport.is_closing()
        await taken(peer, 8 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["keep-alive", "close"])
async def test_a_peer_that_stops_reading_midway_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Even when the response is complete: the unsent rest would be kept for ever."""
    pieces = Pieces(monkeypatch, head_s=0.2)
    async with pieces.requested(then) as peer:
        await pieces.send(64 * MIB, more=False)
        for _ in range(2):
            await pieces.looked.acquire()
            await taken(peer, 16 * MIB)
        await pieces.lost.wait()

        assert 32 * MIB > await taken(peer, 32 * MIB)
