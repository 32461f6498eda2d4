"""The real HTTP API on a real socket, on a thread, for tests of commands that call it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from braidmq.admin.http.app import build_app
from braidmq.admin.http.server import AdminServer
from tests.unit.admin.world import ADMIN_KEY, World

START_S_MAX = 30


@contextmanager
def serving(world: World, certificate: Path | None = None) -> Iterator[int]:
    """Serve the API of *world* and yield its port; with TLS if there is a certificate."""
    port: Future[int] = Future()
    stop: Future[asyncio.Event] = Future()
    loop = asyncio.new_event_loop()
    thread = threading.Thread(
        target=loop.run_until_complete, args=(_serve(world, certificate, port, stop),)
    )
    thread.start()
    try:
        yield port.result(timeout=START_S_MAX)
    finally:
        loop.call_soon_threadsafe(stop.result(timeout=START_S_MAX).set)
        thread.join()
        loop.close()


def url(port: int, key: str = ADMIN_KEY) -> str:
    """Return the address to pass as --url."""
    return f"http://{key}@127.0.0.1:{port}"


@contextmanager
def other_server(answer: bytes = b"") -> Iterator[int]:
    """Answer the first bytes of one client with *answer* and hang up; yield the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer_once() -> None:
            peer, _ = listener.accept()
            with peer:
                peer.recv(65_536)
                peer.sendall(answer)

        thread = threading.Thread(target=answer_once, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        thread.join()


async def _serve(
    world: World,
    certificate: Path | None,
    port: "Future[int]",
    stop: "Future[asyncio.Event]",
) -> None:
    server = AdminServer(
        build_app(world.status, loopback=True),
        host="127.0.0.1",
        port=0,
        tls_cert=certificate,
        tls_key=certificate,
    )
    stopping = asyncio.Event()
    stop.set_result(stopping)
    port.set_result((await server.start())[1])
    await stopping.wait()
    await server.stop()
