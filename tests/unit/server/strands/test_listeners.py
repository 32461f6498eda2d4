"""Addresses and limits: what is bound and what cannot be had, who is let in and who is not."""

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
    """Whoever leaves makes room for one, wherever it comes from."""
    admission = ConnectionQuota(LimitsConfig(connections=2))
    told = [admission.enter(address) for address in ("a", "b", "c")]
    admission.leave("a")
    told += [admission.enter(address) for address in ("c", "a")]

    assert ["", "", "connections", "", "connections"] == told


def test_the_limit_per_address_leaves_others_alone() -> None:
    """One address at its limit is refused; who was refused does not count."""
    admission = ConnectionQuota(LimitsConfig(connections_per_ip=1))
    told = [admission.enter(address) for address in ("a", "a", "b")]
    admission.leave("a")
    told += [admission.enter("a")]

    assert ["", "connections_per_ip", "", ""] == told


@asynccontextmanager
async def two_strands(limits: LimitsConfig) -> AsyncIterator[tuple[TcpListener, TcpListener]]:
    """Run two listeners on one engine under one admission; both speak Blip."""
    engine = Hand().engine
    admission = ConnectionQuota(limits)
    blip, vibe = (
        TcpListener(strand, config, limits, quota=admission, make=BlipConnection)
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
    """Return what a stranger's HELLO is answered with, and the connection."""
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
    """What one strand has taken the other cannot have, and each counts its own refusals."""
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
async def test_a_taken_address_is_an_error_of_the_strand_that_wanted_it() -> None:
    """With several listeners the name says which section to change."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        limits = LimitsConfig()
        config = VibeConfig(port=taken.getsockname()[1])
        with pytest.raises(AddressInUseError, match="vibe: cannot listen on"):
            TcpListener(
                "vibe", config, limits, quota=ConnectionQuota(limits), make=BlipConnection
            )
