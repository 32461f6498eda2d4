"""The Qumbed listener: its address, its identity, its connections and its shutdown."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from braidmq.base.errors import AddressInUseError, ConfigError
from braidmq.server.config.config import LimitsConfig, QumbedConfig
from braidmq.server.strands.qumbed.listener import QumbedListener
from braidmq.testing.disk import FakeDisk
from braidmq.transport.door import Door
from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_client import HandshakeError, QuicClient, Trust, connect
from tests.integration.blip.peer import broker_at, until
from tests.integration.qumbed.peer import connected, publish
from tests.integration.qumbed.slow import Slow
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio

LIMITS = LimitsConfig()
IMPATIENT = QuicLimits(handshake_timeout_s=1.0)


def new_listener(limits: LimitsConfig = LIMITS, **config: object) -> QumbedListener:
    return QumbedListener(
        QumbedConfig.model_validate({"port": 0, "auth": "none", **config}),
        limits,
        door=Door(connections=100, strangers=100),
        named=lambda _: None,
    )


@asynccontextmanager
async def listening(
    directory: Path, limits: LimitsConfig = LIMITS
) -> AsyncIterator[tuple[QumbedListener, Hand]]:
    listener, hand = new_listener(limits), Hand()
    listener.prepare(FakeDisk(), directory, None)
    await listener.start(hand.engine)
    try:
        yield listener, hand
    finally:
        listener.stop_accepting()
        listener.abort_connections()


async def opened(listener: QumbedListener) -> tuple[Slow, QuicClient]:
    host, _, port = listener.address.rpartition(":")
    client = await connect(host, int(port), trust=Trust(fingerprint=listener.fingerprint))
    return Slow(client), client


async def test_an_address_in_use_is_reported() -> None:
    """With strand, address and reason; the exit code is 69."""
    taken = new_listener()
    port = int(taken.address.rpartition(":")[2])
    with pytest.raises(AddressInUseError, match=f"qumbed: .*{taken.address}: ") as caught:
        new_listener(port=port)
    taken.stop_accepting()

    assert 69 == caught.value.exit_code


async def test_a_listener_that_never_started_releases_its_address() -> None:
    """A start that failed elsewhere leaves nothing bound."""
    listener = new_listener()
    port = int(listener.address.rpartition(":")[2])
    listener.stop_accepting()
    listener.close_connections()
    listener.abort_connections()
    listener.close_idle()
    assert 0 == len(listener)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as again:
        again.bind(("127.0.0.1", port))


async def test_the_identity_is_generated_once(tmp_path: Path) -> None:
    """The certificate is in the data directory, the gateway key among the broker's files."""
    files, first, second = FakeDisk(), new_listener(), new_listener()
    for listener in (first, second):
        listener.prepare(files, tmp_path, None)
        listener.stop_accepting()

    assert first.fingerprint == second.fingerprint
    assert first.gateway_public_key == second.gateway_public_key


async def test_an_unusable_certificate_is_an_error(tmp_path: Path) -> None:
    """It names the setting."""
    for name in ("cert", "key"):
        (tmp_path / name).write_text("nothing")
    listener = new_listener(tls_cert=tmp_path / "cert", tls_key=tmp_path / "key")
    with pytest.raises(ConfigError, match=r"qumbed\.tls_cert"):
        listener.prepare(FakeDisk(), tmp_path, None)
    listener.stop_accepting()


async def test_the_listener_reports_the_counts_of_its_endpoint(tmp_path: Path) -> None:
    """An operator sees Retry packets, resets and drops."""
    async with listening(tmp_path) as (listener, _):
        before = listener.packet_events()
        host, _, port = listener.address.rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stray:
            # A short header with the id of a connection that this endpoint does not know.
            stray.sendto(b"\x40" + 63 * b"\x07", (host, int(port)))
            await until(lambda: listener.packet_events() != before)

        names = ("retry", "stateless_reset", "dropped_datagram", "dropped_write")
        assert dict.fromkeys(names, 0) == before
        assert before | {"stateless_reset": 1} == listener.packet_events()


async def test_streams_are_connections_of_the_engine(tmp_path: Path) -> None:
    """Each for as long as it lives; the listener counts QUIC connections."""
    async with listening(tmp_path) as (listener, hand):
        slow, client = await opened(listener)
        for _ in range(3):
            slow.open().send(publish("t", b"1"))
        await until(lambda: len(hand.engine.connections) == 3)
        assert 1 == len(listener)
        await client.close()
        await until(lambda: len(listener) == 0)

        assert set() == hand.engine.connections
        assert {} == dict(listener.refused)


async def test_a_listener_that_stops_accepting_refuses_new_connections(tmp_path: Path) -> None:
    """Existing connections go on."""
    limits = LimitsConfig(handshake_timeout_s=5)
    async with listening(tmp_path, limits) as (listener, hand):
        slow, client = await opened(listener)
        listener.stop_accepting()
        host, _, port = listener.address.rpartition(":")
        with pytest.raises(HandshakeError):
            await connect(host, int(port), trust=Trust(insecure=True), limits=IMPATIENT)
        slow.open().send(publish("t", b"1"))
        await until(lambda: len(hand.engine.connections) == 1)
        await client.close()


async def test_shutdown_closes_connections_after_their_last_answers() -> None:
    """A stopping broker answers every request that it accepted, then closes the connection."""
    async with broker_at() as broker, connected(broker) as peer:
        stream = peer.open()
        stream.send(*(publish("t", b"%d" % number) for number in range(50)))
        for _ in range(50):
            await stream.answer()
        await broker.daemon.stop()
        await peer.expect_close()

        assert 0 == peer.close_code
