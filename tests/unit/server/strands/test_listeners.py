"""Listeners: the addresses that they bind, and the connections that they accept or refuse."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from braidmq.base.errors import AddressInUseError
from braidmq.server.config.config import BlipConfig, LimitsConfig, VibeConfig
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.listeners import TcpListener
from braidmq.transport.door import Door
from tests.integration.blip.peer import ack, auth, hello, until
from tests.unit.server.by_hand import Hand

GREETED = ack(1, 0) + ack(2, 0)


def door_of(limits: LimitsConfig) -> Door:
    """Return a door with these limits."""
    return Door(
        connections=limits.connections,
        strangers=limits.unauthenticated_connections,
        per_address=limits.connections_per_ip,
    )


@asynccontextmanager
async def two_strands(limits: LimitsConfig) -> AsyncIterator[tuple[TcpListener, TcpListener]]:
    """Run two listeners on one engine with one door; both speak Blip."""
    engine = Hand().engine
    door = door_of(limits)
    blip, vibe = (
        TcpListener(strand, config, limits, door=door, make=BlipConnection)
        for strand, config in (("blip", BlipConfig(port=0)), ("vibe", VibeConfig(port=0)))
    )
    try:
        await blip.start(engine)
        await vibe.start(engine)
        yield blip, vibe
    finally:
        for listener in (blip, vibe):
            listener.stop_accepting()
            listener.abort_connections()
        await until(lambda: not len(blip) and not len(vibe))


async def greet(listener: TcpListener) -> tuple[bytes, asyncio.StreamWriter]:
    """Send HELLO and AUTH; return the answer and the connection."""
    host, _, port = listener.address.rpartition(":")
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello(1) + auth(2, "key"))
        try:
            answer = await reader.read(1024)
        except ConnectionError:  # a refused connection is reset
            answer = b""
    return answer, writer


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", ["connections", "connections_per_ip"])
async def test_the_strands_share_the_limits(limit: str) -> None:
    """A connection to one strand counts for the other, and each counts its own refusals."""
    async with two_strands(LimitsConfig.model_validate({limit: 2})) as (blip, vibe):
        first, to_blip = await greet(blip)
        second, to_vibe = await greet(vibe)
        third, refused = await greet(vibe)
        assert [GREETED, GREETED, b""] == [first, second, third]
        assert [{}, {limit: 1}] == [blip.refused, vibe.refused]
        to_blip.close()
        await until(lambda: not len(blip))
        fourth, replacing = await greet(vibe)

        assert GREETED == fourth
        for writer in (to_vibe, refused, replacing):
            writer.close()


@pytest.mark.asyncio
async def test_the_error_for_an_address_in_use_names_the_strand() -> None:
    """With several listeners, the name says which section to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        limits = LimitsConfig()
        config = VibeConfig(port=taken.getsockname()[1])
        with pytest.raises(AddressInUseError, match="vibe: cannot listen on"):
            TcpListener("vibe", config, limits, door=door_of(limits), make=BlipConnection)
