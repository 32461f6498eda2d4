"""The Blip strand over TLS: the same protocol, handshake timeout and half-close."""

import asyncio
import ssl
import threading
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import (
    PATIENCE_S,
    ack,
    auth,
    broker_at,
    connected,
    credit,
    hello,
    parse,
    ping,
    poll,
    pong,
    publish,
    stranger,
    subscribe,
    until,
)

pytestmark = pytest.mark.asyncio


class Tls(NamedTuple):
    """The broker's certificate settings and a client context that trusts it."""

    server: dict[str, object]
    client: ssl.SSLContext


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server: dict[str, object] = {
        "tls_cert": tmp_path / "cert.pem",
        "tls_key": tmp_path / "key.pem",
    }
    return Tls(server, client)


class HalfClosing:
    """A TLS client that can half-close and keep reading, which asyncio's cannot."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        self.received = b""

    @property
    def tls(self) -> ssl.SSLObject:
        assert self._tls is not None
        return self._tls

    async def shake_hands(self, context: ssl.SSLContext) -> None:
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_hostname="localhost"
        )
        while True:
            try:
                self.tls.do_handshake()
                break
            except ssl.SSLWantReadError:
                self._flush()
                self._incoming.write(await self._reader.read(65536))
        self._flush()

    def send(self, data: bytes) -> None:
        self.tls.write(data)
        self._flush()

    def finish(self, *, politely: bool) -> None:
        """Send close_notify, or merely end the TCP half."""
        if politely:
            with pytest.raises(ssl.SSLWantReadError):
                self.tls.unwrap()
            self._flush()
        else:
            self._writer.write_eof()

    async def read_to_the_end(self) -> bytes:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    data = self.tls.read(65536)
                except ssl.SSLWantReadError:
                    raw = await self._reader.read(65536)
                    if not raw:
                        return self.received
                    self._incoming.write(raw)
                    continue
                except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                    return self.received
                if not data:
                    return self.received
                self.received += data

    def _flush(self) -> None:
        self._writer.write(self._outgoing.read())


async def test_the_protocol_is_the_same_over_tls(tls: Tls) -> None:
    """Handshake, publish, poll, push and acknowledge, with frames of many TLS records."""
    large = bytes(range(256)) * 4000
    async with (
        broker_at(blip=tls.server) as broker,
        connected(broker, tls=tls.client) as peer,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"small", large)
        tag, message = await peer.take(subscription)
        assert b"small" == message
        await peer.acknowledge(subscription, tag)
        peer.send(credit(5, subscription, 1))
        assert (await peer.next()).payload.endswith(large)


async def test_tls_1_3_is_required(tls: Tls) -> None:
    """The broker refuses an older version in the handshake."""
    tls.client.maximum_version = ssl.TLSVersion.TLSv1_2
    async with broker_at(blip=tls.server) as broker:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            async with stranger(broker, tls=tls.client):
                pass


async def test_a_plain_client_is_closed(tls: Tls) -> None:
    """Plaintext frames are no TLS handshake; the broker sends no plaintext back."""
    async with broker_at(blip=tls.server) as broker:
        async with stranger(broker) as plain:
            plain.send(hello(1), auth(2), ping(3))
            await until(plain.transport.is_closing)
            assert ack(1, 0) not in plain.unread
        async with connected(broker, tls=tls.client) as peer:
            await peer.expect_silence()


@pytest.mark.parametrize("tls_done", [False, True])
async def test_the_handshake_timeout_includes_the_tls_handshake(
    tls: Tls, tls_done: bool
) -> None:
    """10 s from accept: silence before or after the TLS handshake ends the same way."""
    limits = {"handshake_timeout_s": 0.3}
    async with (
        broker_at(blip=tls.server, limits=limits) as broker,
        connected(broker, tls=tls.client) as known,
    ):
        async with stranger(broker, tls=tls.client if tls_done else None) as silent:
            await until(silent.transport.is_closing)
        await known.expect_silence()


@pytest.mark.parametrize("politely", [True, False])
async def test_everything_sent_before_a_half_close_is_answered(
    tls: Tls, may_sync: threading.Event, politely: bool
) -> None:
    """Over TLS too, the broker answers everything and then closes."""
    async with broker_at(blip=tls.server) as broker:
        reader, writer = await asyncio.open_connection(*broker.address())
        client = HalfClosing(reader, writer)
        await client.shake_hands(tls.client)
        client.send(hello(1) + auth(2) + subscribe(3, "t"))
        may_sync.clear()
        client.send(publish(4, "t", b"x") + ping(5) + poll(6, 1))
        client.finish(politely=politely)
        await until(lambda: _has_uncommitted(broker))
        may_sync.set()
        wanted = [ack(1, 0), ack(2, 0), ack(3, 1), pong(5), publish(2, "t", b"x")]
        received = await client.read_to_the_end()
        writer.close()

        assert [parse(one)[0] for one in wanted] == parse(received)


def _has_uncommitted(broker: RunningBroker) -> bool:
    engine = broker.daemon.status.engine
    assert engine is not None
    return bool(engine.broker.outgoing.pending())
