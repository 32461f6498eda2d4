"""Peers without a key hold and renew connections of the real process; others are not harmed."""

import asyncio
import json
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trustme

from braidmq.daemon.descriptors import RESERVED
from braidmq.testing.broker import running_broker
from braidmq.transport.door import HTTP, HTTP_PLACES, SHARE, STRANDS
from tests.integration.blip.peer import Peer, hello, ping, pong
from tests.integration.qumbed.peer import ack, connected, publish
from tests.integration.served import Served, served

pytestmark = pytest.mark.asyncio

FILES_MAX = 500
"""Open files that the broker may have: fewer than the connections that come."""

HALF_A_HELLO = bytes.fromhex("1603010200010001fc0303")
"""The beginning of a TLS handshake that never goes on."""

SENT = {"blip": HALF_A_HELLO, "vibe": b"\0\0", "http": b"GET /healthz HT"}


@pytest.fixture
def many_files() -> Iterator[None]:
    """Let this process open more files than the broker may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address_of(broker: Served, listener: str) -> tuple[str, int]:
    host, _, port = broker.facts()[listener].rpartition(":")
    return host, int(port)


def held(address: tuple[str, int], count: int, sent: bytes) -> list[socket.socket]:
    """Return this many connections on which *sent* was sent, open or closed by the broker."""
    sockets = []
    for _ in range(count):
        one = socket.create_connection(address, timeout=10)
        sockets.append(one)
        try:
            one.send(sent)
        except OSError:
            continue
    return sockets


def open_files(broker: Served) -> int:
    return len(list(Path(f"/proc/{broker.process.pid}/fd").iterdir()))


def config_with(tmp_path: Path) -> str:
    """Return a configuration in which Blip has TLS, and files are opened often."""
    issued = trustme.CA().issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    return (
        "[wal]\nsegment_bytes = 65536\nsnapshot_interval_s = 0.05\n"
        f'[blip]\ntls_cert = "{tmp_path}/both.pem"\ntls_key = "{tmp_path}/both.pem"\n'
    )


async def published(broker: Served, count: int) -> int:
    """Publish over HTTP with a key, and return how many were confirmed."""
    reader, writer = await asyncio.open_connection(*address_of(broker, "http"))
    body = json.dumps({"payload": "x" * 8_000})
    confirmed = 0
    for _ in range(count):
        writer.write(
            "POST /api/topics/t/messages HTTP/1.1\r\nHost: localhost\r\n"
            "Authorization: Bearer dev-key\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 "), head
        (size,) = (line for line in head.lower().split(b"\r\n") if b"content-length" in line)
        await reader.readexactly(int(size.split()[1]))
        confirmed += 1
    writer.close()
    return confirmed


@pytest.mark.usefixtures("many_files")
async def test_strangers_do_not_use_up_the_files_of_the_log(tmp_path: Path) -> None:
    """They come to every listener, hold on and come again; the broker goes on as before."""
    config = config_with(tmp_path)
    async with served(tmp_path, config=config, ulimit=f"-n {FILES_MAX}") as broker:
        await broker.ready()
        strangers: list[socket.socket] = []
        most = 0
        for _ in range(3):
            for listener, sent in SENT.items():
                address = address_of(broker, listener)
                strangers += await asyncio.to_thread(held, address, 250, sent)
                most = max(most, open_files(broker))
            assert 20 == await published(broker, 20)
            for path in ("/healthz", "/livez", "/readyz"):
                assert 200 == (await broker.get(path))[0]
        assert f"accepts {FILES_MAX - RESERVED} connections" in broker.stderr
        assert most < FILES_MAX - 100
        for one in strangers:
            one.close()
        assert 0 == await broker.end()
    assert [] == [line for line in broker.stderr.splitlines() if '"level": "error"' in line]
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        log = [path for path in (tmp_path / "data" / "wal").iterdir() if path.suffix == ".wal"]
        assert len(log) > 1, "the log opened no file while they were there"


@pytest.mark.usefixtures("many_files")
async def test_health_is_answered_beside_thousands_of_connections(tmp_path: Path) -> None:
    """Idle or half open, and with the connections of the strands used up as well."""
    config = "[limits]\nconnections = 3\n"
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        async with broker.peer(), broker.peer(), broker.peer():
            assert await is_refused(broker)
            http = address_of(broker, "http")
            strangers: list[socket.socket] = []
            for sent in (b"", b"GET /healthz HT"):
                strangers += await asyncio.to_thread(held, http, 1_200, sent)
                for path in ("/healthz", "/livez", "/readyz", "/"):
                    assert 200 == (await broker.get(path))[0]
            assert open_files(broker) < 300
            for one in strangers:
                one.close()


async def test_the_limit_of_open_files_is_raised_at_start(tmp_path: Path) -> None:
    """To the hard one; then there is room for the connections, and no warning."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    config = "[limits]\nconnections = 400\n"
    async with served(tmp_path, config=config, ulimit="-S -n 256") as broker:
        await broker.ready()
        assert (hard, hard) == resource.prlimit(broker.process.pid, resource.RLIMIT_NOFILE)
        assert 0 == await broker.end()

    assert "open" not in broker.stderr


async def is_refused(broker: Served) -> bool:
    """Return whether another connection to Blip is closed at once."""
    reader, writer = await asyncio.open_connection(*address_of(broker, "blip"))
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.parametrize("strand", ["blip", "vibe"])
async def test_strangers_do_not_keep_out_peers_with_a_key(tmp_path: Path, strand: str) -> None:
    """They have a bound of their own, within which the oldest leaves for a newcomer."""
    config = "[limits]\nconnections = 80\nunauthenticated_connections = 64\n"
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        strangers = await asyncio.to_thread(held, address_of(broker, strand), 200, b"")
        peers = []
        for _ in range(80 - 80 // SHARE):  # the others are for other principals
            _, peer = await asyncio.get_running_loop().create_connection(
                Peer, *address_of(broker, "blip")
            )
            await peer.log_in()
            peers.append(peer)
        left = 80 // SHARE  # places that no peer with this key may take
        for one in strangers[:-left]:
            one.settimeout(10)
            assert b"" == await asyncio.to_thread(_rest_of, one)
        for one in strangers[-left:]:
            one.close()
        for peer in peers:
            peer.send(ping(7))
        for peer in peers:
            await peer.expect(pong(7))
            await peer.leave()


@pytest.mark.parametrize("listener", ["blip", "vibe", "http"])
async def test_unfinished_tls_handshakes_keep_no_one_out(tmp_path: Path, listener: str) -> None:
    """They are strangers on every listener: bounded, and gone for whoever comes."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    certificate = {"tls_cert": tmp_path / "both.pem", "tls_key": tmp_path / "both.pem"}
    client = ssl.create_default_context()
    authority.configure_trust(client)
    sections: dict[str, object] = {"vibe": {}, "http": {}, listener: certificate}
    limits = {"connections": 100, "unauthenticated_connections": 64}
    async with running_broker(config={"limits": limits, **sections}) as broker:
        door = broker.daemon._door  # noqa: SLF001 - it counts what no client can see
        pool = HTTP if listener == "http" else STRANDS
        address = broker.address(listener)
        strangers = await asyncio.to_thread(held, address, 200, HALF_A_HELLO)
        reader, writer = await asyncio.open_connection(
            *address, ssl=client, server_hostname="localhost"
        )
        asked = {
            "blip": hello(1),
            "vibe": b"",
            "http": b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n",
        }
        writer.write(asked[listener])
        if asked[listener]:  # Vibe says nothing before a Connect; its handshake is done
            await reader.readexactly(9)
        assert door.count(pool) <= (HTTP_PLACES if listener == "http" else 65)
        writer.close()
        for one in strangers:
            one.close()


async def test_qumbed_connections_without_a_key_leave_for_newcomers() -> None:
    """Over QUIC as well: their bound holds, and a peer with a key is let in and stays."""
    limits = {"connections": 100, "unauthenticated_connections": 64}
    config = {"limits": limits, "qumbed": {"auth": "key"}}
    async with running_broker(config=config) as broker, AsyncExitStack() as open_ones:
        for _ in range(80):
            await open_ones.enter_async_context(connected(broker))
        door = broker.daemon._door  # noqa: SLF001 - it counts what no client can see
        async with connected(broker) as peer:
            stream = peer.open()
            assert ack("1", 0) == await stream.ask(publish("t", b"1", key="dev-key"))
            assert 63 == door.strangers()
            for _ in range(10):
                await open_ones.enter_async_context(connected(broker))
            assert ack("2", 0) == await stream.ask(publish("t", b"2"))


def _rest_of(one: socket.socket) -> bytes:
    with one:
        try:
            return one.recv(1)
        except ConnectionResetError:
            return b""
