"""The QUIC listener: limits, Retry, deadlines, many connections."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import uvloop

from braidmq.transport.door import Door
from braidmq.transport.quic_client import HandshakeError
from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import LIMITS, listening, opened

NewLoop = Callable[[], asyncio.AbstractEventLoop]


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_many_connections_on_either_loop(tmp_path: Path, new_loop: NewLoop) -> None:
    """Each has its own stream; when they close, the listener forgets them."""

    async def run() -> None:
        async with listening(tmp_path, echoes=True) as server:
            clients = [await server.connect() for _ in range(20)]
            streams = [opened(client) for client in clients]
            for number, stream in enumerate(streams):
                stream.wire.write(bytes([number]))
            await until(lambda: all(stream.received for stream in streams))
            assert [bytes([number]) for number in range(20)] == [
                bytes(stream.received) for stream in streams
            ]
            for client in clients:
                await client.close()
            await until(lambda: not len(server.listener))
            assert 0 == server.door.count()
            assert 0 == server.listener.handshakes

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.asyncio
async def test_above_the_threshold_an_address_must_be_proven(tmp_path: Path) -> None:
    """The server sends a Retry first; below the threshold it does not."""
    async with listening(tmp_path, replace(LIMITS, retry_above=0), echoes=True) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(b"x")
        await until(lambda: stream.received == b"x")
        assert 1 == server.listener.retries
        await client.close()
    async with listening(tmp_path) as server:
        await (await server.connect()).close()
        assert 0 == server.listener.retries


@pytest.mark.asyncio
async def test_a_connection_without_a_greeted_stream_is_closed(tmp_path: Path) -> None:
    """After the handshake timeout."""
    async with listening(tmp_path, replace(LIMITS, handshake_timeout_s=1.0)) as server:
        client = await server.connect()
        async with asyncio.timeout(10):
            await until(lambda: client.carrier.is_ended)
        await client.close()


@pytest.mark.asyncio
async def test_a_connection_over_the_limit_is_refused(tmp_path: Path) -> None:
    """The peer is told at once, and the listener keeps no state."""
    async with listening(tmp_path) as server:
        server.door = Door(connections=1, strangers=1)
        server.door.enter("127.0.0.1").known()
        with pytest.raises(HandshakeError) as caught:
            await server.connect()
        assert 2 == caught.value.code
        assert 0 == len(server.listener)


@pytest.mark.asyncio
async def test_a_stranger_leaves_for_a_newcomer(tmp_path: Path) -> None:
    """A connection whose streams never authenticate keeps no other out."""
    async with listening(tmp_path) as server:
        server.door = Door(connections=1, strangers=1)
        silent = await server.connect()
        newcomer = await server.connect()
        assert (1, 1) == (len(server.listener), server.door.count())
        await silent.close()
        await newcomer.close()
