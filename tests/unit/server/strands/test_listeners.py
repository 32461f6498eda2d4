"""Listeners: the addresses that they bind, and the connections that they accept or refuse."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from braidmq.base.errors import AddressInUseError
from braidmq.server.config.config import BlipConfig, LimitsConfig, VibeConfig
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.listeners import ConnectionQuota, TcpListener
from tests.integration.blip.peer import ack, hello, until
from tests.unit.server.by_hand import Hand


def test_the_limit_on_connections_counts_all_of_them() -> None:
    """A connection that leaves makes room for another, from any address."""
    quota = ConnectionQuota(LimitsConfig(connections=2))
    refusals = [quota.enter(address) for address in ("a", "b", "c")]
    quota.leave("a")
    refusals += [quota.enter(address) for address in ("c", "a")]

    assert ["", "", "connections", "", "connections"] == refusals


def test_the_limit_per_address_leaves_others_alone() -> None:
    """An address at its limit is refused; refused connections do not count."""
    quota = ConnectionQuota(LimitsConfig(connections_per_ip=1))
    refusals = [quota.enter(address) for address in ("a", "a", "b")]
    quota.leave("a")
    refusals += [quota.enter("a")]

    assert ["", "connections_per_ip", "", ""] == refusals


@asynccontextmanager
async def two_strands(limits: LimitsConfig) -> AsyncIterator[tuple[TcpListener, TcpListener]]:
    """Run two listeners on one engine with one quota; both speak Blip."""
    engine = Hand().engine
    quota = ConnectionQuota(limits)
    blip, vibe = (
        TcpListener(strand, config, limits, quota=quota, make=BlipConnection)
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
    """Send HELLO; return the answer and the connection."""
    host, _, port = listener.address.rpartition(":")
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(hello(1))
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
        assert [ack(1, 0), ack(1, 0), b""] == [first, second, third]
        assert [{}, {limit: 1}] == [blip.refused, vibe.refused]
        to_blip.close()
        await until(lambda: not len(blip))
        fourth, replacing = await greet(vibe)

        assert ack(1, 0) == fourth
        for writer in (to_vibe, refused, replacing):
            writer.close()


@pytest.mark.asyncio
async def test_the_error_for_an_address_in_use_names_the_strand() -> None:
    """With several listeners, the name says which section to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        limits = LimitsConfig()
        config = VibeConfig(port=taken.getsockname()[1])
        with pytest.raises(AddressInUseError, match="vibe: cannot listen on"):
            TcpListener(
                "vibe", config, limits, quota=ConnectionQuota(limits), make=BlipConnection
            )
