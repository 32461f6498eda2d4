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
    CONNECTIONS_MAX,
    HEADER_BYTES_MAX,
    AdminServer,
    PatientProtocol,
    Uptake,
)
from braidmq.base.errors import AddressInUseError
from braidmq.base.limits import KIB, MIB
from tests.unit.admin.world import ADMIN, World

pytestmark = pytest.mark.asyncio

HAS_IPV6 = Path("/proc/net/if_inet6").exists()


def app() -> ASGIApp:
    return build_app(World().status, loopback=True)


@asynccontextmanager
async def listening(host: str = "127.0.0.1") -> AsyncIterator[tuple[str, int]]:
    server = AdminServer(app(), host=host, port=0)
    try:
        yield await server.start()
    finally:
        await server.stop()


def asked(address: tuple[str, int], path: str, headers: dict[str, str] | None = None) -> int:
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
        pass  # each look is a request; the timeout of the test ends a date that stays


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
async def test_port_0_is_any_free_port(host: str) -> None:
    """The address that start returns is the one that answers."""
    if host == "::1" and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    async with listening(host) as address:
        assert 0 != address[1]
        assert 200 == await asyncio.to_thread(asked, address, "/healthz")


async def test_a_taken_address_is_told() -> None:
    """With the listener's name, the address and the reason; exit 69."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUseError, match=rf"^http: .* on 127\.0\.0\.1:{port}: Addr"):
            await AdminServer(app(), host="127.0.0.1", port=port).start()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", 70 * "a"])
async def test_an_address_of_another_machine_is_told(host: str) -> None:
    """Whatever the system says about it, it is one typed error."""
    with pytest.raises(AddressInUseError, match=r"^http: cannot listen on "):
        await AdminServer(app(), host=host, port=0).start()


async def test_after_stop_the_address_is_free() -> None:
    """A restart does not wait for anything."""
    async with listening() as address:
        pass
    server = AdminServer(app(), host=address[0], port=address[1])

    assert address == await server.start()
    await server.stop()


async def test_stop_ends_idle_connections() -> None:
    """Who keeps a connection open does not keep the broker alive."""
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"}")

    assert b"" == await reader.read()
    writer.close()


async def test_stop_wakes_an_idle_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait until the server looks again, here in an hour."""
    monkeypatch.setattr(server, "DATE_S", 3_600.0)
    async with asyncio.timeout(60), listening():
        pass


async def test_the_date_of_an_answer_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sets it again and again, not only when it starts."""
    monkeypatch.setattr(server, "DATE_S", 0.01)
    async with listening() as address:
        await asyncio.to_thread(until_the_date_changes, address)


async def test_stop_without_start_is_harmless() -> None:
    """Shutting down half of a start is ordinary."""
    server = AdminServer(app(), host="127.0.0.1", port=0)
    await server.stop()
    await server.stop()


async def test_signals_stay_with_the_daemon() -> None:
    """Neither while it serves nor after."""
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with listening():
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    assert before == during


async def test_nothing_is_logged_about_requests() -> None:
    """Neither good ones, whose headers hold keys, nor noise, which would fill the disk."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        async with listening() as address:
            headers = ADMIN
            assert 200 == await asyncio.to_thread(asked, address, "/api/overview", headers)
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"noise\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
            writer.close()
    finally:
        root.removeHandler(handler)
        root.setLevel(level)

    assert "" == stream.getvalue()


async def answer_to(address: tuple[str, int], *lines: str) -> bytes:
    """Return all that comes back for a request of these lines, without its last."""
    reader, writer = await asyncio.open_connection(*address)
    request = [*lines, "Host: localhost", "Connection: close", "", ""]
    writer.write("\r\n".join(request).encode())
    answer = await asyncio.wait_for(reader.read(), timeout=10)
    writer.close()
    return answer


def refusal_in(answer: bytes) -> tuple[int, str]:
    """Return the status and the line of a refusal, which has the headers of every answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    wanted = {**HEADERS, "Content-Type": "application/json", "Connection": "close"}
    assert {(name.lower(), value.lower()) for name, value in wanted.items()} <= headers.items()
    assert "server" not in headers
    said = json.loads(body)
    assert ["error"] == list(said)
    return int(status.split()[1]), said["error"]


async def test_an_answer_does_not_say_what_serves_it() -> None:
    """Its name and version would only help those who look for a hole in it."""
    async with listening() as address:
        answer = await answer_to(address, "GET /healthz HTTP/1.1")

    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nserver:" not in answer.lower()


async def test_nobody_says_for_somebody_else_who_asks() -> None:
    """What a peer claims to forward is its own word: there is no proxy that we know of."""
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
    """Who asks for one is answered as if it had not: there is one way in, and it is HTTP."""
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


async def test_stop_does_not_wait_for_an_answer_without_an_end() -> None:
    """A dashboard that is open does not keep the broker alive."""
    asked_for = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        asked_for.set()
        await asyncio.Event().wait()

    listener = AdminServer(endless, host="127.0.0.1", port=0)
    reader, writer = await asyncio.open_connection(*await listener.start())
    writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    async with asyncio.timeout(20):
        await asked_for.wait()
        await listener.stop()

        assert b"200 OK" not in await reader.read()
    writer.close()


async def test_a_name_of_the_longest_topic_fits_into_a_request() -> None:
    """65,535 bytes, each percent-encoded."""
    headers = ADMIN
    path = "/api/topics?after=" + 65_535 * "%00"
    async with listening() as address:
        assert 200 == await asyncio.to_thread(asked, address, path, headers)


async def test_a_head_without_an_end_is_refused_at_the_limit() -> None:
    """It is not held in memory in the hope that it ends."""
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /" + HEADER_BYTES_MAX * b"a")
        answer = await reader.read()
        writer.close()

    told = "malformed HTTP request, or its head is too long"
    assert (400, told) == refusal_in(answer)


async def test_what_is_no_request_is_refused_as_everything_else_is() -> None:
    """In JSON, with the headers that every answer has, and the connection ends."""
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"noise\r\n\r\n")
        answer = await reader.read()
        writer.close()

    told = "malformed HTTP request, or its head is too long"
    assert (400, told) == refusal_in(answer)


@pytest.mark.parametrize(
    "sent", [b"", b"GET / HT", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET"]
)
async def test_a_request_that_does_not_arrive_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """Not the first and not a later one; the place is for those who ask."""
    monkeypatch.setattr("braidmq.admin.http.server.HEAD_S_MAX", 0.05)
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)

        answer = await asyncio.wait_for(reader.read(), timeout=10)
        assert (b"200 OK" in answer) == sent.startswith(b"GET /healthz")
        writer.close()


async def test_more_connections_than_the_bound_get_503() -> None:
    """A flood of them costs a bounded amount of memory."""
    async with listening() as address:
        idle = [await asyncio.open_connection(*address) for _ in range(CONNECTIONS_MAX)]
        try:
            answer = await answer_to(address, "GET /healthz HTTP/1.1")
        finally:
            for _, writer in idle:
                writer.close()

        assert (503, "too many connections; try again later") == refusal_in(answer)
        async with asyncio.timeout(20):
            while 503 == await asyncio.to_thread(asked, address, "/healthz"):
                pass  # until the server has noticed that they are gone


async def test_a_peer_that_takes_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has asked for is not kept for it; one that reads gets all of it."""
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


# What was given in all and what waits, look by look; and whether the peer is stuck then.
LOOKS = {
    "nothing was ever asked": [(0, 0, False), (0, 0, False)],
    "it takes nothing": [(9, 9, False), (9, 9, True)],
    "it takes nothing while more comes": [(9, 9, False), (20, 20, True)],
    "it takes a byte, and no more": [(9, 9, False), (9, 8, False), (9, 8, True)],
    "it reads, and as much waits at every look": [
        (9, 9, False),
        (15, 9, False),
        (20, 9, False),
    ],
    "it reads, and ever more waits": [(9, 9, False), (20, 19, False), (40, 38, False)],
    "it has taken all, and the next waits": [(9, 0, False), (18, 9, False), (18, 9, True)],
    "it was slow, and has taken all": [(9, 9, False), (9, 0, False), (9, 0, False)],
}


@pytest.mark.parametrize("looks", LOOKS.values(), ids=LOOKS.keys())
async def test_a_peer_is_stuck_when_nothing_leaves(looks: list[tuple[int, int, bool]]) -> None:
    """What waits says nothing: a stream always has something that waits."""
    uptake = Uptake()

    assert [stuck for *_, stuck in looks] == [
        uptake.is_stuck(given=given, unsent=unsent) for given, unsent, _ in looks
    ]


class Pieces:
    """An application whose answer comes as it is told to, and its one connection."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, head_s: float = 3600.0) -> None:
        self.seen: list[PatientProtocol] = []
        self.looked = asyncio.Semaphore(0)
        self.lost = asyncio.Event()
        self._told: asyncio.Queue[Message] = asyncio.Queue()
        self._given = asyncio.Semaphore(0)
        pieces = self

        class Seen(PatientProtocol):
            """As it is, and it says what happens to it."""

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
            piece = await self._told.get()
            more = piece["more_body"]
            asyncio.get_running_loop().call_soon(self._given.release)
            await send(piece)

    async def tell(self, size: int, *, more: bool = True) -> None:
        """Have so much sent, and wait until it was given to the connection."""
        piece = {"type": "http.response.body", "body": bytes(size), "more_body": more}
        self._told.put_nowait(piece)
        await self._given.acquire()

    @asynccontextmanager
    async def asked(self, then: str = "keep-alive") -> AsyncIterator[socket.socket]:
        """Ask, and return the peer's end, which takes nothing much by itself."""
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
    """Take so many bytes, or what there is until the end; return how many that were."""
    loop = asyncio.get_running_loop()
    left = size
    with contextlib.suppress(ConnectionResetError):
        while left and (data := await loop.sock_recv(peer, left)):
            left -= len(data)
    return size - left


async def test_a_peer_that_reads_steadily_is_not_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However much of a stream waits for it, at every look more than at the last."""
    pieces = Pieces(monkeypatch)
    async with pieces.asked() as peer:
        for size in (8 * MIB, 10 * MIB, 12 * MIB):
            await pieces.tell(size)
            (connection,) = pieces.seen
            assert connection.transport.get_write_buffer_size() > 0
            connection.look()
            assert size == await taken(peer, size)
        await pieces.tell(0, more=False)


async def test_a_slow_answer_is_not_an_idle_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """While a part of it waits, all of it said or not, its connection stays open."""
    pieces = Pieces(monkeypatch)
    async with pieces.asked() as peer:
        await pieces.tell(32 * MIB, more=False)
        (connection,) = pieces.seen
        for _ in range(3):
            await taken(peer, 8 * MIB)
            connection.look()
            assert not connection.transport.is_closing()
        await taken(peer, 8 * MIB)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["keep-alive", "close"])
async def test_a_peer_that_stops_in_the_middle_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """Also when all was said long ago: what waits for it would be kept for ever."""
    pieces = Pieces(monkeypatch, head_s=0.2)
    async with pieces.asked(then) as peer:
        await pieces.tell(64 * MIB, more=False)
        for _ in range(2):
            await pieces.looked.acquire()
            await taken(peer, 16 * MIB)
        await pieces.lost.wait()

        assert 32 * MIB > await taken(peer, 32 * MIB)
