"""QUIC streams over real loopback UDP: bytes, ends, and bounds in both directions."""

import asyncio
from pathlib import Path

import pytest

from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import (
    LIMITS,
    aioquic_client,
    listening,
    lossy,
    one_stream,
    opened,
)

pytestmark = pytest.mark.asyncio


async def test_interleaved_streams_carry_bytes_both_ways(tmp_path: Path) -> None:
    """Each stream has its own bytes, in order, and its own ends."""
    async with listening(tmp_path, echoes=True) as server:
        client = await server.connect()
        streams = [opened(client) for _ in range(8)]
        sent = [bytes([number]) * 50_000 for number in range(8)]
        for start in range(0, 50_000, 5_000):
            for stream, data in zip(streams, sent, strict=True):
                stream.wire.write(data[start : start + 5_000])
        await until(lambda: sent == [bytes(stream.received) for stream in streams])
        assert "127.0.0.1" == server.accepted[0].wire.peer_address
        await client.close()


async def test_a_server_can_end_a_stream(tmp_path: Path) -> None:
    """Everything written before the close arrives, then the end."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(b"question")
        await until(lambda: server.accepted and server.accepted[0].received == b"question")
        server.accepted[0].wire.write(b"answer")
        server.accepted[0].wire.close()
        await until(lambda: stream.events == ["finished", "lost"])
        await until(lambda: server.accepted[0].events == ["lost"])
        assert b"answer" == stream.received
        await client.close()


async def test_a_client_ends_its_output_and_reads_the_reply(tmp_path: Path) -> None:
    """After the client's FIN the answer still arrives; then both directions are closed."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(b"question")
        stream.wire.finish_output()
        stream.wire.write(b"too late")
        await until(lambda: server.accepted and server.accepted[0].events == ["finished"])
        served = server.accepted[0]
        assert b"question" == served.received
        assert [] == stream.events
        served.wire.write(b"answer")
        served.wire.close()
        await until(lambda: stream.events == ["finished", "lost"])
        await until(lambda: served.events == ["finished", "lost"])
        assert b"answer" == stream.received
        assert 0 == server.listener.dropped_writes
        await client.close()


async def test_a_client_that_closes_after_writing_loses_nothing(tmp_path: Path) -> None:
    """More than a window is in flight; the server gets all of it, and the end."""
    data = bytes(range(256)) * 400
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(data)
        stream.wire.close()
        await until(
            lambda: server.accepted and server.accepted[0].events == ["finished", "lost"]
        )
        assert data == bytes(server.accepted[0].received)
        await until(lambda: stream.events[-1] == "lost")
        await until(lambda: not client.carrier.wires)
        await client.close()


async def test_a_closing_client_still_lets_the_server_write(tmp_path: Path) -> None:
    """The client drops that data; a server that writes before it reads is not blocked."""
    data = bytes(range(256)) * 400
    async with one_stream(tmp_path) as (_, _, stream, served):
        served.wire.pause_reading()
        stream.wire.write(data)
        stream.wire.close()
        served.wire.write(bytes(2 * LIMITS.stream_window_bytes))
        await until(lambda: served.wire.unsent_bytes() == 0)
        assert "lost" not in stream.events
        assert not served.wire.is_stopped  # STOP_SENDING would overtake the data in flight
        served.wire.resume_reading()
        await until(lambda: served.events[-1] == "lost")
        assert b"x" + data == bytes(served.received)
        assert b"" == stream.received


async def test_a_stream_stopped_before_its_first_data_is_read_to_its_end(
    tmp_path: Path,
) -> None:
    """STOP_SENDING comes first: data is read, answers are dropped, other streams continue."""
    async with listening(tmp_path, echoes=True) as server, aioquic_client(server) as peer:
        carrier = next(iter(server.listener.carriers))
        stopped = peer.open_stopped()
        await until(lambda: carrier.stopped_early == {stopped})
        peer.send(stopped, bytes(100_000), ends=True)
        await until(
            lambda: server.accepted and server.accepted[0].events == ["finished", "lost"]
        )
        assert bytes(100_000) == server.accepted[0].received
        assert 1 <= server.listener.dropped_writes
        assert set() == carrier.stopped_early
        peer.send(stopped + 4, b"y")
        await until(lambda: len(server.accepted) > 1 and server.accepted[1].received == b"y")
        await until(lambda: list(carrier.wires) == [stopped + 4])


async def test_a_stopped_stream_ends_by_itself_after_its_input(tmp_path: Path) -> None:
    """As long as the peer may send, it is read; then it ends without a close."""
    async with listening(tmp_path) as server, aioquic_client(server) as peer:
        stream_id = peer.quic.get_next_available_stream_id()
        peer.send(stream_id, b"1")
        await until(lambda: server.accepted)
        served = server.accepted[0]
        peer.stop(stream_id)
        await until(lambda: served.wire.is_stopped)
        served.wire.write(b"dropped")
        peer.send(stream_id, b"2")
        await until(lambda: served.received == b"12")
        assert [] == served.events
        assert 0 == served.wire.unsent_bytes()
        assert 1 == server.listener.dropped_writes
        peer.send(stream_id, b"3", ends=True)
        await until(lambda: served.events == ["finished", "lost"])
        assert b"123" == served.received


async def test_a_stopped_stream_that_is_reset_without_data_is_forgotten(tmp_path: Path) -> None:
    """The state that a peer can cause is bounded by the streams that it may have open."""
    async with listening(tmp_path) as server, aioquic_client(server) as peer:
        carrier = next(iter(server.listener.carriers))
        stopped = [peer.open_stopped() for _ in range(LIMITS.streams_max)]
        await until(lambda: carrier.stopped_early == set(stopped))
        for stream_id in stopped:
            peer.reset(stream_id)
        await until(lambda: not carrier.stopped_early)
        assert [] == server.accepted
        peer.send(peer.quic.get_next_available_stream_id(), b"x")
        await until(lambda: server.accepted and server.accepted[0].received == b"x")


async def test_a_write_on_a_reset_stream_is_dropped_and_counted(tmp_path: Path) -> None:
    """Nothing is raised if the library has reset it and its event is not handled yet."""
    async with one_stream(tmp_path) as (server, _, stream, served):
        next(iter(server.listener.carriers)).quic.reset_stream(served.wire.stream_id, 0)
        served.wire.write(b"never sent")
        assert 1 == server.listener.dropped_writes
        assert 0 == served.wire.unsent_bytes()
        served.wire.finish_output()
        served.wire.close()
        await until(lambda: served.events == ["lost"])
        await until(lambda: stream.events == ["lost"])


async def test_a_reset_ends_only_its_stream(tmp_path: Path) -> None:
    """Another stream of the same connection continues."""
    async with listening(tmp_path, echoes=True) as server:
        client = await server.connect()
        first, second = opened(client), opened(client)
        first.wire.write(b"1")
        second.wire.write(b"2")
        await until(lambda: first.received and second.received)
        first.wire.abort()
        await until(
            lambda: sorted("".join(one.events) for one in server.accepted) == ["", "lost"]
        )
        second.wire.write(b"2")
        await until(lambda: second.received == b"22")
        assert ["lost"] == first.events
        await client.close()


async def test_paused_reading_stops_the_peer_within_its_window(tmp_path: Path) -> None:
    """The window does not grow: a flood costs one stream window, and no data is lost."""
    async with one_stream(tmp_path) as (server, client, stream, served):
        served.wire.pause_reading()
        stream.wire.write(bytes(1_000_000))
        quic = next(iter(server.listener.carriers)).quic
        await until(lambda: quic.unread_bytes() == LIMITS.stream_window_bytes - 1)
        fence = opened(client)  # its data arrives after everything that the window allows
        fence.wire.write(b"y")
        await until(lambda: len(server.accepted) > 1 and server.accepted[1].received == b"y")
        assert b"x" == served.received
        assert LIMITS.stream_window_bytes - 1 == quic.unread_bytes()
        served.wire.resume_reading()
        await until(lambda: len(served.received) == 1_000_001)


async def test_a_peer_that_never_reads_fills_the_buffer_and_no_more(tmp_path: Path) -> None:
    """Above the limit it is full; once the peer has read, it is writable again."""
    async with one_stream(tmp_path) as (_, _, stream, served):
        stream.wire.pause_reading()
        written = 0
        async with asyncio.timeout(20):
            while served.events != ["full"]:
                served.wire.write(bytes(1_000))
                written += 1_000
                await asyncio.sleep(0)
        assert served.wire.unsent_bytes() > LIMITS.output_buffer_bytes
        assert written <= LIMITS.output_buffer_bytes + LIMITS.stream_window_bytes + 1_000
        stream.wire.resume_reading()
        await until(lambda: served.events == ["full", "writable"])
        await until(lambda: len(stream.received) == written)


async def test_a_stream_is_notified_when_few_bytes_are_unacknowledged(tmp_path: Path) -> None:
    """Its own bytes count; it is notified once, and never while the connection is full."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stuck, other = opened(client), opened(client)
        stuck.wire.write(b"x")
        await until(lambda: len(server.accepted) == 1)
        other.wire.write(b"x")
        await until(lambda: len(server.accepted) == 2)
        one, two = server.accepted
        stuck.wire.pause_reading()
        one.wire.write(bytes(90_000))
        one.wire.tell_below(20_000)  # out of reach with the peer's window of 64,000 bytes
        two.wire.write(bytes(5_000))
        two.wire.tell_below(0)
        await until(lambda: two.events == ["writable"])
        await until(lambda: one.wire.stream_unsent_bytes() == 26_000)
        assert [] == one.events
        two.wire.write(bytes(80_000))  # above the connection's bound
        assert ["full"] == one.events
        await until(lambda: one.events == ["full", "writable"])
        stuck.wire.resume_reading()
        await until(lambda: one.events == ["full", "writable", "writable"])
        await until(lambda: len(stuck.received) == 90_000)
        await until(lambda: one.wire.stream_unsent_bytes() == 0)
        assert ["full", "writable", "writable"] == one.events
        await client.close()


async def test_a_drained_connection_sends_its_data_before_code_and_reason(
    tmp_path: Path,
) -> None:
    """Everything written on any stream arrives first."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        streams = [opened(client) for _ in range(2)]
        for stream in streams:
            stream.wire.write(b"x")
        await until(lambda: len(server.accepted) == 2)
        for recorder in server.accepted:
            recorder.wire.write(bytes(20_000))
        server.accepted[0].wire.drain_connection(7, "enough")
        await until(lambda: client.carrier.is_ended)

        assert [20_000] * 2 == [len(stream.received) for stream in streams]
        assert (7, "enough") == (client.carrier.end_code, client.carrier.end_reason)
        await client.close()


@pytest.mark.parametrize("seed", [1, 2])
async def test_loss_and_reordering_lose_nothing(tmp_path: Path, seed: int) -> None:
    """A tenth of the datagrams is lost and a tenth is late, in both directions."""
    data = bytes(range(256)) * 400
    async with (
        listening(tmp_path, echoes=True) as server,
        lossy(server.port, seed=seed, loss=0.1, later=0.1) as (port, there, back),
    ):
        client = await server.connect(port)
        stream = opened(client)
        stream.wire.write(data)
        await until(lambda: data == bytes(stream.received))
        assert there.lost
        assert there.reordered
        assert back.lost
        await client.close()


async def test_the_bytes_received_by_the_peer_are_known_even_for_a_lost_stream(
    tmp_path: Path,
) -> None:
    """Counted from the start, up to the first gap."""
    async with one_stream(tmp_path) as (_, client, _, served):
        wire = served.wire
        wire.write(b"12345")
        await until(lambda: wire.received_bytes() == 5)
        assert 5 == wire.written_bytes
        client.drop_socket()
        wire.write(b"67890")
        wire.close_connection()
        await until(lambda: "lost" in served.events)
        assert (5, 10) == (wire.received_bytes(), wire.written_bytes)


async def test_dropped_bytes_never_count_as_received(tmp_path: Path) -> None:
    """After a write to a finished stream, the received bytes stay below the written ones."""
    async with one_stream(tmp_path) as (_, client, _, served):
        wire = served.wire
        wire.write(b"12345")
        await until(lambda: wire.received_bytes() == 5)
        wire.finish_output()
        wire.write(b"67890")
        await until(lambda: client.carrier.wires[0].input_ended)

        assert wire.received_bytes() < wire.written_bytes
