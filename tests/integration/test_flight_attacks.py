"""Flight under attack: greedy keys and strangers, while a healthy key goes on beside them."""

import asyncio
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

import psutil
import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq.base.limits import MIB
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import (
    REQUEST_BYTES_MAX,
    ReadRequest,
    StageRequest,
    encode,
)
from tests.integration.blip.peer import until
from tests.integration.flights import (
    SCHEMA,
    assert_clean,
    in_thread,
    rows,
    serving,
)
from tests.integration.served import Served, key_section
from tests.integration.test_flight_listener import certificate
from tests.unit.columnar.endpoints import read
from tests.unit.columnar.logs import message, write_log

pytestmark = [pytest.mark.asyncio, pytest.mark.slow]

KEYS: Final = key_section("greedy", "k-greedy") + key_section("healthy", "k-healthy")
MESSAGES: Final = 20


def log_in(directory: Path) -> None:
    """Write a log whose stream exceeds every buffer on the way."""
    (directory / "data").mkdir(parents=True)
    bodies = [message("t", bytes(MIB)) for _ in range(MESSAGES)]
    write_log(directory / "data", bodies, segment_bytes=8 * MIB)


def call(key: str) -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])


async def assert_healthy(broker: Served, roots: bytes | None = None) -> None:
    """Assert that another key reads, scans and stages as if it were alone."""
    address = broker.facts()["flight"]
    address = address if "//" in address else f"grpc://{address}"
    healthy = Endpoint(address, "k-healthy", roots=roots)
    async with asyncio.timeout(60):
        assert MESSAGES == (await in_thread(read, healthy)).num_rows
        assert MESSAGES == (await in_thread(healthy.cut, parts=1))[0].messages
        await in_thread(healthy.stage, "t", SCHEMA, rows("x"))
    healthy.close()


def clients(broker: Served, count: int) -> Iterator[fl.FlightClient]:
    options = [("grpc.use_local_subchannel_pool", 1)]
    for _ in range(count):
        yield fl.FlightClient(f"grpc://{broker.facts()['flight']}", generic_options=options)


async def test_unread_streams_of_one_key_stop_no_other(tmp_path: Path) -> None:
    """Forty of them, more than there are places: the others of its own wait."""
    log_in(tmp_path)
    async with serving(tmp_path, config=KEYS, dev=False) as broker:
        greedy = list(clients(broker, 40))
        loop, pool = asyncio.get_running_loop(), ThreadPoolExecutor(40)
        begun = [
            loop.run_in_executor(pool, client.do_get, fl.Ticket(b"{}"), call("k-greedy"))
            for client in greedy
        ]
        async with asyncio.timeout(60):
            await asyncio.gather(*begun)

        await assert_healthy(broker)
        assert 0 == await broker.end()
        assert_clean(broker)
        for client in greedy:
            client.close()


async def test_silent_stages_of_one_key_stop_no_other(tmp_path: Path) -> None:
    """Some send a batch and no more, others not even that."""
    log_in(tmp_path)
    descriptor = fl.FlightDescriptor.for_command(encode(StageRequest("t")))
    async with serving(tmp_path, config=KEYS, dev=False) as broker:
        with ExitStack() as held:
            (client,) = clients(broker, 1)
            for number in range(40):
                writer, _ = await in_thread(client.do_put, descriptor, SCHEMA, call("k-greedy"))
                if number % 2:
                    await in_thread(writer.write_batch, rows("x")[0])
                held.callback(_given_up, writer)

            await assert_healthy(broker)
            assert 0 == await broker.end()


def _given_up(writer: fl.FlightStreamWriter) -> None:
    with suppress(fl.FlightError, pa.ArrowException, OSError):
        writer.close()


async def test_a_peer_that_makes_no_progress_loses_its_connection(tmp_path: Path) -> None:
    """A reader that takes nothing, a writer that sends nothing; the log says so."""
    log_in(tmp_path)
    config = f"{KEYS}\n[flight]\nstall_timeout_s = 0.5\n"
    descriptor = fl.FlightDescriptor.for_command(encode(StageRequest("t")))
    async with serving(tmp_path, config=config, dev=False) as broker:
        reading, writing = clients(broker, 2)
        reader = await in_thread(reading.do_get, fl.Ticket(b"{}"), call("k-greedy"))
        writer, _ = await in_thread(writing.do_put, descriptor, SCHEMA, call("k-greedy"))
        await in_thread(writer.write_batch, rows("x")[0])
        await until(lambda: 2 <= broker.stderr.count("made no progress for 0.5 s"))

        with pytest.raises(fl.FlightUnavailableError):
            await in_thread(reader.read_all)
        with pytest.raises(fl.FlightUnavailableError):
            await in_thread(writer.close)
        await assert_healthy(broker)
        assert '"principal":"greedy"' in broker.stderr.replace(": ", ":")


def open_files(broker: Served) -> int:
    return psutil.Process(broker.process.pid).num_fds()


@pytest.mark.parametrize("tls", [False, True])
async def test_sockets_of_strangers_use_up_no_descriptors(tmp_path: Path, tls: bool) -> None:
    """They hold and renew them; with TLS half open, or with the beginning of HTTP/2 sent."""
    log_in(tmp_path)
    section, root = certificate(tmp_path / "tls")
    limits = "[limits]\nunauthenticated_connections = 64\n"
    config = KEYS + limits + (section if tls else "")
    said = b"\x16\x03\x01" if tls else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    async with serving(tmp_path, config=config, dev=False) as broker:
        host, _, port = broker.facts()["flight"].rpartition("//")[2].rpartition(":")
        before = open_files(broker)
        with ExitStack() as held:
            for number in range(500):
                peer = held.enter_context(socket.create_connection((host, int(port))))
                with suppress(OSError):
                    peer.sendall(said if number % 2 else b"")
            await assert_healthy(broker, root if tls else None)

            # Three each, both ends of the connection to gRPC included, and some slack.
            await until(lambda: open_files(broker) <= before + 3 * 64 + 30)
        assert 0 == await broker.end()
        assert_clean(broker)


@pytest.mark.parametrize("tls", [False, True])
async def test_a_stranger_has_a_deadline(tmp_path: Path, tls: bool) -> None:
    """Whatever it has sent by then."""
    section, _ = certificate(tmp_path / "tls")
    limits = "[limits]\nhandshake_timeout_s = 0.2\n"
    async with serving(tmp_path, config=limits + (section if tls else "")) as broker:
        host, _, port = broker.facts()["flight"].rpartition("//")[2].rpartition(":")
        for said in (b"", b"\x16\x03\x01" if tls else b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
            with socket.create_connection((host, int(port)), timeout=20) as peer:
                peer.sendall(said)

                while await in_thread(_received, peer):
                    pass


def _received(peer: socket.socket) -> bytes:
    with suppress(ConnectionResetError):
        return peer.recv(65536)
    return b""


async def test_a_message_of_a_stranger_is_not_taken_in(tmp_path: Path) -> None:
    """Without a key, or with an unknown one: memory does not grow, and others go on.

    The first request of a connection with a known key may be as long as any: the key is seen
    only after all of it has arrived.
    """
    log_in(tmp_path)
    limits = "[limits]\nhandshake_timeout_s = 5.0\n"
    names = [f"{number:050}" for number in range(REQUEST_BYTES_MAX // 53 - 100)]
    ticket = encode(ReadRequest(topics=["t", *names]))
    assert REQUEST_BYTES_MAX - 10_000 < len(ticket) <= REQUEST_BYTES_MAX
    async with serving(tmp_path, config=KEYS + limits, dev=False) as broker:
        await assert_healthy(broker)
        memory = psutil.Process(broker.process.pid).memory_info
        before = memory().rss
        large = fl.Action("offsets", bytes(100 * MIB))
        *strangers, client = clients(broker, 5)
        sending = [
            asyncio.create_task(in_thread(_answers, stranger, large, key))
            for stranger, key in zip(strangers, 2 * ["", "unknown"], strict=True)
        ]
        reader = await in_thread(client.do_get, fl.Ticket(ticket), call("k-healthy"))
        assert MESSAGES == (await in_thread(reader.read_all)).num_rows
        await assert_healthy(broker)
        most = 0
        while not all(task.done() for task in sending):
            most = max(most, memory().rss - before)
            await asyncio.sleep(0.01)
        failures = await asyncio.gather(*sending)

        assert {True} == {isinstance(one, fl.FlightUnavailableError) for one in failures}
        assert most < 80 * MIB
        client.close()


def _answers(client: fl.FlightClient, action: fl.Action, key: str) -> Exception | None:
    try:
        list(client.do_action(action, call(key)))
    except (fl.FlightError, OSError) as error:
        return error
    return None
