"""Flight against peers that speak HTTP/2 by hand: what no client of gRPC would send."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Final

import psutil
import pyarrow as pa
import pytest
import structlog

from braidmq.base.limits import MIB
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnauthenticatedError
from braidmq.columnar.flight.requests import StageRequest, encode
from braidmq.server.flight.listener import FlightListener
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, key_config, until
from tests.integration.flights import in_thread
from tests.unit.server.flight.frames import (
    BODY,
    DATA,
    HEADER,
    INITIAL_WINDOW,
    PREFACE,
    SETTINGS,
    UNKNOWN,
    call,
    data,
    field,
    frame,
    message,
    varint,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

ADMIN: Final = key_config("admin", "admin", admin=True)
KEY: Final = key_config("k", "secret")
POWERLESS: Final = key_config("p", "nothing", publish=[], subscribe=[])
SMALL: Final = key_config("s", "small", quotas={"unfinished_bytes": MIB})
OTHER: Final = key_config("o", "other")

COMMAND: Final = b"\x08\x02" + field(2, b"{}")  # a descriptor
PUT: Final = b"\x08\x02" + field(2, encode(StageRequest("t")))
TICKET: Final = field(1, b"{}")
ROWS: Final = pa.record_batch([pa.array([bytes(MIB)], pa.binary())], names=["value"])


@asynccontextmanager
async def flying(
    *keys: dict[str, object], **flight: object
) -> AsyncIterator[tuple[RunningBroker, FlightListener]]:
    given = {"auth": {"keys": [ADMIN, *(keys or (KEY, POWERLESS, SMALL, OTHER))]}}
    async with broker_at(None, None, **given, flight=flight) as broker:
        (found,) = (one for one in broker.daemon.status.listeners if one.strand == "flight")
        assert isinstance(found, FlightListener)
        yield broker, found


@contextmanager
def connected(
    broker: RunningBroker, window: int | None = None, source: str = "127.0.0.1"
) -> Iterator[socket.socket]:
    host, _, port = broker.endpoint.rpartition("//")[2].rpartition(":")
    address = (host, int(port))
    with socket.create_connection(address, timeout=20, source_address=(source, 0)) as peer:
        settings = b"" if window is None else struct.pack(">HI", INITIAL_WINDOW, window)
        peer.sendall(PREFACE + frame(SETTINGS, 0, settings))
        yield peer


async def make_known(peer: socket.socket, listener: FlightListener, key: str) -> None:
    """Make the first call of a connection, on stream 1."""
    host, port = peer.getsockname()
    peer.sendall(call(1, "GetSchema", key) + data(1, message(COMMAND)))
    await until(
        lambda: any(
            one.peer == f"{host}:{port}" and one.principal is not None
            for one in listener.open_connections()
        )
    )
    peer.sendall(frame(SETTINGS, 0, flags=1))  # gRPC's are in force, its windows too


def received(peer: socket.socket) -> bytes:
    with suppress(ConnectionResetError, BrokenPipeError):
        return peer.recv(65536)
    return b""


async def is_closed(peer: socket.socket) -> bool:
    while await in_thread(received, peer):
        pass
    return True


def written(codec: str) -> list[bytes]:
    """Return FlightData for a schema and a batch that unpacks to a MiB."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.ipc.new_stream(sink, ROWS.schema, options=options) as writer:
        writer.write_batch(ROWS)
    return [
        field(HEADER, one.metadata.to_pybytes())
        + (b"" if one.body is None else field(BODY, one.body.to_pybytes()))
        for one in pa.ipc.MessageReader.open_stream(sink.getvalue())
    ]


def stage(codec: str, key: str) -> bytes:
    schema, batch = written(codec)
    messages = message(field(1, PUT) + schema) + message(batch)
    return call(3, "DoPut", key) + data(3, messages, ends=False)


LONG: Final = data(3, message(field(1, b"offsets"), size=700 * MIB), ends=False)
GZIP: Final = data(3, message(b"x", compressed=True), ends=False)
REQUEST: Final = message(field(1, b"x") + varint(2 << 3 | 2) + varint(5 * MIB), size=6 * MIB)
REFUSED: Final = {
    "long": (call(3, "DoAction", "secret") + LONG, "flight_message"),
    "long, of an unknown key": (call(3, "DoAction", "gone") + LONG, "flight_message"),
    "a long request": (call(3, "DoAction", "secret") + data(3, REQUEST), "flight_message"),
    "gzip": (call(3, "DoAction", "secret") + GZIP, "flight_compressed"),
    "zstd": (stage("zstd", "secret"), "flight_compressed"),
    "lz4": (stage("lz4", "secret"), "flight_compressed"),
    "zstd without rights": (stage("zstd", "nothing"), "flight_compressed"),
    "lz4 without rights": (stage("lz4", "nothing"), "flight_compressed"),
}


async def test_what_grpc_must_not_take_in_ends_the_connection() -> None:
    """On a connection with a known key too; the reason is counted, and logged once."""
    async with flying() as (broker, listener):
        for sent, why in REFUSED.values():
            before = listener.refused[why]
            with connected(broker) as peer, structlog.testing.capture_logs() as logs:
                await make_known(peer, listener, "secret")
                peer.sendall(sent)
                assert await is_closed(peer)
                await until(lambda: before < listener.refused[why])  # noqa: B023 - called now
            assert before + 1 == listener.refused[why]
            (line,) = (one for one in logs if one.get("limit") == why)
            assert ("k", "warning") == (line["principal"], line["log_level"])

        assert (1, 1) == await in_thread(Endpoint(broker.endpoint, "other").offsets)


async def test_a_stranger_is_judged_as_well() -> None:
    """Its first message may be a long one, and is not logged."""
    async with flying() as (broker, listener):
        with connected(broker) as peer, structlog.testing.capture_logs() as logs:
            peer.sendall(REFUSED["zstd"][0])
            assert await is_closed(peer)
            await until(lambda: 1 == listener.refused["flight_compressed"])
        assert [] == [one for one in logs if one["log_level"] == "warning"]


def body(stream: int, size: int, key: str) -> bytes:
    """Return the beginning of a stage: the first half of a batch of *size* bytes."""
    start = message(field(1, PUT) + varint(BODY << 3 | 2) + varint(size), size=size + 100)
    return call(stream, "DoPut", key) + data(stream, start, ends=False)


async def test_bytes_that_no_handler_takes_count_towards_a_quota() -> None:
    """Over all connections of a key; another key has its own."""
    async with flying() as (broker, listener):
        half = frame(DATA, 3, bytes(MIB // 2 + 1000))
        with connected(broker) as one, connected(broker) as two, connected(broker) as other:
            for peer, key in ((one, "small"), (two, "small"), (other, "other")):
                await make_known(peer, listener, key)
                peer.sendall(body(3, 10 * MIB, key))
                peer.sendall(half)
                if peer is one:
                    await until(
                        lambda: (
                            3 * len(half) // 4
                            < max(
                                visitor.in_bytes or 0 for visitor in listener.open_connections()
                            )
                        )
                    )
            assert await is_closed(two)
            await until(lambda: 1 == listener.refused["unfinished_bytes"])
            engine = broker.daemon.status.engine
            assert engine is not None
            assert 1 == engine.broker.topics.accounts.refused["unfinished_bytes"]
            assert {"s", "o"} == {one.principal for one in listener.open_connections()}


async def test_the_connection_that_holds_the_most_leaves_when_all_hold_too_much() -> None:
    """Not the one that came last."""
    async with flying() as (broker, listener):
        listener._front._ledger._bytes_max = 3 * MIB  # noqa: SLF001 - the least is 65 MiB
        with connected(broker) as greedy, connected(broker) as modest:
            for peer, key, size in ((greedy, "secret", 2 * MIB), (modest, "other", 0)):
                await make_known(peer, listener, key)
                peer.sendall(body(3, 10 * MIB, key) + frame(DATA, 3, bytes(size)))
            await until(
                lambda: 2 * MIB < max(one.in_bytes or 0 for one in listener.open_connections())
            )
            modest.sendall(frame(DATA, 3, bytes(MIB + 1000)))

            assert await is_closed(greedy)
            await until(lambda: 1 == listener.refused["flight_memory"])
            assert ["o"] == [one.principal for one in listener.open_connections()]


ANSWERS: Final = {
    "GetSchema": message(COMMAND),
    "DoGet": message(TICKET),
    "ListActions": message(b""),
    "DoAction": message(field(1, b"offsets")),
}


@pytest.mark.parametrize("method", ANSWERS)
async def test_a_peer_that_takes_no_answer_loses_its_connection(method: str) -> None:
    """Whatever the answer is: its window is closed, and other frames are no progress."""
    async with flying(stall_timeout_s=0.4) as (broker, listener):
        before = psutil.Process().num_threads()
        with connected(broker, window=0) as peer, structlog.testing.capture_logs() as logs:
            await make_known(peer, listener, "secret")
            for number in range(1, 11):
                stream = 1 + 2 * number
                peer.sendall(call(stream, method, "secret") + data(stream, ANSWERS[method]))
            with suppress(OSError):
                while listener.open_connections():
                    peer.sendall(frame(UNKNOWN, 0, b"x"))
                    await asyncio.sleep(0.02)
        assert 11 >= listener.refused["flight_stalled"] >= 10
        lines = [one["calls"] for one in logs if "made no progress" in one["event"]]
        assert [listener.refused["flight_stalled"]] == lines
        await until(lambda: 0 == len(listener))
        await until(lambda: psutil.Process().num_threads() <= before + 8)


async def test_a_call_without_a_message_does_not_live_on_other_frames() -> None:
    """Nor on other calls of its connection that do end."""
    async with flying(stall_timeout_s=0.4) as (broker, listener):
        with connected(broker) as peer:
            await make_known(peer, listener, "secret")
            peer.sendall(call(3, "DoPut", "secret"))
            stream = 3
            with suppress(OSError):
                while listener.open_connections():
                    stream += 2
                    short = call(stream, "GetSchema", "secret") + data(stream, message(COMMAND))
                    peer.sendall(frame(UNKNOWN, 0, b"x") + short)
                    await asyncio.sleep(0.02)
        assert 1 == listener.refused["flight_stalled"]


async def test_calls_that_wait_for_their_peer_hold_no_connection_from_others() -> None:
    """All of them are one key's, and none is idle: one of those leaves for another key."""
    async with flying() as (broker, listener):
        listener._front._connections_max = 8  # noqa: SLF001 - it depends on the machine
        with ExitStack() as held:
            for _ in range(10):
                peer = held.enter_context(connected(broker, window=0))
                peer.sendall(call(1, "DoGet", "secret") + data(1, message(TICKET)))
            await until(lambda: 7 == len(listener.open_connections()))
            with Endpoint(broker.endpoint, "other") as endpoint:
                assert (1, 1) == await in_thread(endpoint.offsets)
                assert 8 > sum(one.principal == "k" for one in listener.open_connections())


async def test_strangers_of_one_address_make_room_among_themselves() -> None:
    """The handshake of another address goes on."""
    async with flying() as (broker, listener):
        listener._front._connections_max = 8  # noqa: SLF001 - it depends on the machine
        with ExitStack() as held:
            slow = held.enter_context(connected(broker))
            await until(lambda: 1 == len(listener.open_connections()))
            for _ in range(30):
                held.enter_context(connected(broker, source="127.0.0.2"))
            await until(lambda: 23 <= listener.refused["connections"])
            await make_known(slow, listener, "secret")


async def test_many_calls_of_strangers_close_the_one_with_the_most() -> None:
    """Each of their calls may have a thread; one with a single call goes on."""
    async with flying() as (broker, listener):
        with ExitStack() as held:
            modest = held.enter_context(connected(broker, window=0))
            modest.sendall(call(1, "GetSchema", "x"))
            for _ in range(3):
                peer = held.enter_context(connected(broker, window=0))
                for number in range(90):  # gRPC waits for their messages
                    peer.sendall(call(1 + 2 * number, "GetSchema", "x"))
            await until(lambda: 1 <= listener.refused["flight_streams"])
            modest.sendall(frame(UNKNOWN, 0, b"x"))
            await make_known_again(modest, listener)


async def make_known_again(peer: socket.socket, listener: FlightListener) -> None:
    peer.sendall(call(3, "GetSchema", "secret") + data(3, message(COMMAND)))
    await until(lambda: any(one.principal == "k" for one in listener.open_connections()))


async def test_a_revoked_key_loses_its_flight_connections() -> None:
    """Also one without a call; another key's stays."""
    async with flying(KEY, OTHER) as (broker, listener):
        with connected(broker) as revoked, connected(broker) as other:
            await make_known(revoked, listener, "secret")
            await make_known(other, listener, "other")
            reloaded = await broker.reload({"auth": {"keys": [ADMIN, OTHER]}, "flight": {}})

            assert 1 == reloaded.connections_closed
            assert await is_closed(revoked)
            assert ["o"] == [one.principal for one in listener.open_connections()]
            with pytest.raises(UnauthenticatedError):
                await in_thread(Endpoint(broker.endpoint, "secret").offsets)


async def test_stages_that_wait_for_their_place_hold_nothing() -> None:
    """Our client sends rows once it has one: eight at a time fit into a quota for one."""
    quotas = {"flight_streams": 1, "unfinished_bytes": 24 * MIB}
    narrow = key_config("n", "narrow", quotas=quotas)
    batches = [
        pa.record_batch([pa.array([bytes(MIB)] * 4, pa.binary())], names=["value"])
        for _ in range(4)
    ]
    async with flying(narrow) as (broker, listener):
        with ExitStack() as held:
            clients = [
                held.enter_context(Endpoint(broker.endpoint, "narrow")) for _ in range(8)
            ]
            stages = await asyncio.gather(
                *(in_thread(one.stage, "t", batches[0].schema, batches) for one in clients)
            )

        assert [16] * 8 == [stage.rows for stage in stages]
        assert 0 == listener.refused["unfinished_bytes"]
