"""The front of the Flight endpoint: connections before gRPC sees them."""

import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq.columnar.endpoint import Endpoint
from braidmq.server.flight.front import PREFACE, Inner
from braidmq.server.flight.listener import FlightListener
from braidmq.testing import running_broker
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import until
from tests.integration.flights import in_thread


def test_the_inner_socket_has_no_name() -> None:
    """Only who holds its descriptor connects; each connection has a name of its own."""
    inner = Inner()
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
