"""The front of the Flight endpoint: connections before gRPC sees them."""

import socket
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq.base.errors import NoSocketError
from braidmq.columnar.endpoint import Endpoint
from braidmq.server.flight import front
from braidmq.server.flight.front import PREFACE, Inner
from braidmq.server.flight.listener import FlightListener
from braidmq.testing import running_broker
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import until
from tests.integration.flights import in_thread


def test_the_inner_socket_has_no_name(tmp_path: Path) -> None:
    """Only who holds its descriptor connects; each connection has a name of its own."""
    inner = Inner(tmp_path)
    assert stat.S_IMODE(Path(inner.path).parent.stat().st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(inner.path)
        listening.listen()
        inner.hide()
        assert not Path(inner.path).parent.exists()
        names = []
        for _ in range(2):
            connection, name = inner.connect()
            accepted, peer = listening.accept()
            assert name == f"unix-abstract:{peer[1:].decode()}"
            names.append(name)
            connection.close()
            accepted.close()
    assert 2 == len(set(names))
    with pytest.raises(ConnectionRefusedError):
        inner.connect()
    inner.close()
    inner.close()


UNUSABLE = Path("/proc")  # in which nothing can be made, as on a disk without room


def test_the_inner_socket_needs_no_room_in_the_temporary_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to memory, then to the data directory; so it does if a path is too long."""
    monkeypatch.setattr(tempfile, "tempdir", str(UNUSABLE))
    inner = Inner(tmp_path)
    assert front.MEMORY_DIR == Path(inner.path).parents[1]
    inner.remove()
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(front, "MEMORY_DIR", long)
    inner = Inner(tmp_path)
    assert tmp_path == Path(inner.path).parents[1]
    inner.remove()
    with pytest.raises(NoSocketError, match=r"^no directory has room for a socket: the "):
        Inner(long)

    assert [] == list(long.iterdir())
    assert [long] == list(tmp_path.iterdir())


def test_names_of_connections_cannot_be_guessed(tmp_path: Path) -> None:
    """Any process of the machine could bind a name first; two brokers may have equal pids."""
    names = []
    for _ in range(2):
        inner = Inner(tmp_path)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(inner.path)
            listening.listen()
            inner.hide()
            connection, name = inner.connect()
            connection.close()
            names.append(name.rpartition("-")[0])
        inner.close()

    assert 2 == len(set(names))
    assert [len("unix-abstract:braidmq-") + 32] * 2 == [len(name) for name in names]


@asynccontextmanager
async def listening(**limits: float) -> AsyncIterator[tuple[RunningBroker, FlightListener]]:
    async with running_broker(config={"flight": {}, "limits": limits}) as broker:
        (found,) = (one for one in broker.daemon.status.listeners if one.strand == "flight")
        assert isinstance(found, FlightListener)
        yield broker, found


def connected(broker: RunningBroker) -> socket.socket:
    host, _, port = broker.endpoint.rpartition("//")[2].rpartition(":")
    return socket.create_connection((host, int(port)), timeout=20)


async def is_closed(peer: socket.socket) -> bool:
    while data := await in_thread(peer.recv, 65536):
        assert data
    return True


@pytest.mark.asyncio
async def test_connections_are_listed_and_can_be_closed() -> None:
    """With peer, principal and bytes; a client connects again for its next call."""
    async with listening() as (broker, listener):
        with connected(broker) as stranger:
            await until(lambda: 1 == len(listener.open_connections()))
            endpoint = Endpoint(broker.endpoint, "dev-key")
            await in_thread(endpoint.offsets)
            first, second = listener.open_connections()
            assert [None, "dev"] == [first.principal, second.principal]
            host, port = stranger.getsockname()
            assert f"{host}:{port}" == first.peer
            assert first.number < second.number
            assert second.in_bytes
            assert second.out_bytes
            assert 0 == len(listener)
            for one in (first, second):
                one.close()
            assert await is_closed(stranger)
            await until(lambda: [] == listener.open_connections())

        assert (1, 1) == await in_thread(endpoint.offsets)


@pytest.mark.asyncio
async def test_a_newcomer_finds_room_when_all_connections_are_taken() -> None:
    """First a stranger leaves, then a connection without calls; clients connect again."""
    async with listening() as (broker, listener):
        listener._front._connections_max = 2  # noqa: SLF001 - it depends on the machine
        endpoints = [Endpoint(broker.endpoint, "dev-key") for _ in range(3)]
        with connected(broker) as stranger:
            stranger.sendall(PREFACE)
            for endpoint in endpoints:
                await in_thread(endpoint.offsets)
            assert await is_closed(stranger)
        for endpoint in endpoints:
            assert (1, 1) == await in_thread(endpoint.offsets)

        assert 2 >= len(listener.open_connections())
        assert listener.refused["connections"] >= 2


@pytest.mark.asyncio
async def test_idle_connections_are_closed() -> None:
    """If the limit is set; the client does not notice."""
    async with listening(idle_timeout_s=0.5) as (broker, listener):
        endpoint = Endpoint(broker.endpoint, "dev-key")
        await in_thread(endpoint.offsets)
        await until(lambda: listener.refused["idle"] >= 1)

        assert (1, 1) == await in_thread(endpoint.offsets)
