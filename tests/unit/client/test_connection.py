"""The strand-neutral behaviour of one connection."""

import asyncio
import weakref

import pytest

from braidmq.client.connection import FLUSH_BYTES, WRITE_BUFFER_BYTES_MAX
from braidmq.client.errors import ConnectionFailed, ConnectionLost
from braidmq.client.options import Options
from tests.unit.client.peer import die, hang_up, ignore
from tests.unit.client.strands import (
    AnyConnection,
    AnyPeer,
    connected,
    dialled,
    every_strand,
    forgotten,
)

pytestmark = [pytest.mark.asyncio, every_strand]


async def fill(connection: AnyConnection) -> None:
    """Fill the write buffer until senders have to wait; the content does not matter."""
    while not connection.is_full:
        connection.send(bytes(WRITE_BUFFER_BYTES_MAX))
        connection.flush()


@pytest.mark.parametrize("script", [die, hang_up])
async def test_connecting_fails_when_the_broker_hangs_up_in_the_handshake(
    strand: type[AnyPeer], script: object
) -> None:
    """The failed attempt leaves no open connection behind."""
    async with strand() as peer:
        peer.script(peer.greeting, die if script is die else hang_up)
        with pytest.raises(ConnectionFailed):
            await dialled(peer)
        await peer.until(lambda: not peer.open_lines())


async def test_connecting_to_a_silent_broker_times_out(strand: type[AnyPeer]) -> None:
    """One attempt takes at most `connect_timeout`."""
    async with strand() as peer:
        peer.script(peer.greeting, ignore)
        with pytest.raises(ConnectionFailed, match=r"no answer within 0.05 s"):
            await dialled(peer, Options(connect_timeout=0.05))
        await peer.until(lambda: not peer.open_lines())


async def test_a_refused_connection_names_its_address(strand: type[AnyPeer]) -> None:
    """Host and port are in the error when no server listens."""
    async with strand() as peer:
        pass
    with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{peer.port}"):
        await dialled(peer)


async def test_one_ping_is_in_flight_and_later_fences_share_the_next(
    strand: type[AnyPeer],
) -> None:
    """Any number of waiters costs one PING per round trip."""
    async with strand() as peer, connected(peer) as connection:
        peer.hold(peer.ping)
        _, first = connection.fence()
        await peer.until(lambda: peer.count(peer.ping) == 1)
        others = [connection.fence()[1] for _ in range(100)]
        peer.release()

        assert [True] * 101 == await asyncio.gather(first, *others)
        assert 2 == peer.count(peer.ping)


async def test_a_cancelled_waiter_does_not_disturb_the_others(strand: type[AnyPeer]) -> None:
    """Each waiter has its own future."""
    async with strand() as peer, connected(peer) as connection:
        first, second = connection.fence()[1], connection.fence()[1]
        first.cancel()

        assert await second


async def test_settling_sends_no_ping_when_nothing_is_unconfirmed(
    strand: type[AnyPeer],
) -> None:
    """If everything is confirmed, settling costs no round trip."""
    async with strand() as peer, connected(peer) as connection:
        await connection.fence()[1]

        assert await connection.settle()
        assert 1 == peer.count(peer.ping)


async def test_a_broken_connection_notifies_every_waiter(strand: type[AnyPeer]) -> None:
    """Fences in flight, fences queued behind them, and fences asked for afterwards."""
    lost: list[AnyConnection] = []
    async with strand() as peer, connected(peer, on_lost=lost.append) as connection:
        peer.hold(peer.ping)
        fences = [connection.fence()[1]]
        await peer.until(lambda: peer.held)
        fences.append(connection.fence()[1])
        peer.lines[0].hang_up()

        assert [False, False] == await asyncio.gather(*fences)
        assert not await connection.fence()[1]
        assert not await connection.settle()
        connection.send(b"lost on the way")
        connection.flush()
        assert [connection] == lost
        assert connection.ended_by_peer
        assert "lost the connection" in str(connection.lost())


async def test_a_broker_that_does_not_answer_a_ping_is_considered_dead(
    strand: type[AnyPeer],
) -> None:
    """The connection ends after `answer_timeout`, and every waiter is told."""
    async with strand() as peer, connected(peer, Options(answer_timeout=0.05)) as connection:
        peer.script(peer.ping, ignore)

        assert not await connection.fence()[1]
        assert "no answer within 0.05 s" in str(connection.lost())


async def test_a_closed_connection_is_garbage_collected(strand: type[AnyPeer]) -> None:
    """No timer keeps running, which would hold a reference."""
    async with strand() as peer:
        connection = await dialled(peer)
        await connection.close()
        left = weakref.ref(connection)
        del connection
        await forgotten(left)


async def test_senders_wait_while_the_broker_does_not_read(strand: type[AnyPeer]) -> None:
    """Memory is bounded by the buffer, not by the sender's speed."""
    async with strand() as peer, connected(peer) as connection:
        peer.lines[0].pause_reading()
        await fill(connection)
        waiting = asyncio.create_task(connection.writable())
        for _ in range(100):
            await asyncio.sleep(0)

        assert not waiting.done()
        connection.abort("enough")
        await waiting


async def test_waiting_senders_are_released_when_the_connection_breaks(
    strand: type[AnyPeer],
) -> None:
    """Their wait ends, although the broker has read nothing."""
    async with strand() as peer, connected(peer) as connection:
        peer.lines[0].pause_reading()
        await fill(connection)
        waiters = [asyncio.create_task(connection.writable()) for _ in range(2)]
        await asyncio.sleep(0)
        waiters[0].cancel()
        peer.lines[0].die()
        await waiters[1]

        assert connection.is_lost


async def test_a_sender_that_never_waits_does_not_starve_the_loop(
    strand: type[AnyPeer],
) -> None:
    """Beyond the flush threshold the bytes are written and other tasks get to run."""
    async with strand() as peer, connected(peer) as connection:
        peer.lines[0].pause_reading()
        turns = 0

        def count() -> None:
            nonlocal turns
            turns += 1

        for _ in range(3):
            asyncio.get_running_loop().call_soon(count)
            connection.send(bytes(FLUSH_BYTES))
            await connection.writable()

        assert 3 == turns
        connection.abort("not a frame")


async def test_closing_does_not_wait_for_a_broker_that_never_closes_its_side(
    strand: type[AnyPeer],
) -> None:
    """Closing takes at most `close_timeout`."""
    async with strand() as peer:
        connection = await dialled(peer, Options(close_timeout=0.02))
        peer.lines[0].pause_reading()
        await fill(connection)
        await connection.close()
        peer.lines[0].die()
        await peer.until(lambda: not peer.open_lines())

        assert isinstance(connection.lost(), ConnectionLost)
