"""The QUIC client: whom it trusts, and how it notices a lost server."""

from dataclasses import replace
from pathlib import Path

import pytest

from braidmq.transport.quic_client import HandshakeError, Trust, UntrustedError, connect
from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import LIMITS, listening

pytestmark = pytest.mark.asyncio


async def test_a_server_is_verified_by_ca_or_fingerprint_unless_insecure(
    tmp_path: Path,
) -> None:
    """By default a self-signed certificate is refused."""
    async with listening(tmp_path) as server:
        for trust in (
            Trust(ca_file=server.files.certificate),
            Trust(fingerprint=server.files.fingerprint),
            Trust(insecure=True),
        ):
            await (await connect("127.0.0.1", server.port, trust=trust)).close()
        with pytest.raises(HandshakeError, match="self-signed"):
            await connect("127.0.0.1", server.port, trust=Trust())
        with pytest.raises(UntrustedError):
            await connect("127.0.0.1", server.port, trust=Trust(fingerprint=64 * "0"))


async def test_another_protocol_is_refused(tmp_path: Path) -> None:
    """ALPN must be exactly qumbed/1; otherwise the alert is no_application_protocol."""
    async with listening(tmp_path) as server:
        trust = Trust(insecure=True)
        with pytest.raises(HandshakeError) as caught:
            await connect("127.0.0.1", server.port, trust=trust, alpn="qumbed/2")
        assert 0x178 == caught.value.code


async def test_a_closed_port_is_reported_at_once(tmp_path: Path) -> None:
    """Without waiting for the handshake timeout."""
    async with listening(tmp_path) as server:
        port = server.port
    with pytest.raises(HandshakeError, match="nothing listens"):
        await connect("127.0.0.1", port, trust=Trust(insecure=True))


async def test_pings_keep_a_silent_connection_open(tmp_path: Path) -> None:
    """The server hears from a client that sends nothing."""
    async with listening(tmp_path) as server:
        trust = Trust(insecure=True)
        client = await connect("127.0.0.1", server.port, trust=trust, keepalive_s=0.05)
        await until(lambda: len(server.listener))
        carrier = next(iter(server.listener.carriers))
        before = carrier.heard_at
        await until(lambda: carrier.heard_at > before + 0.2)
        assert not client.carrier.is_ended
        await client.close()


async def test_the_idle_timeout_ends_a_silent_connection(tmp_path: Path) -> None:
    """If it sends no pings."""
    limits = replace(LIMITS, idle_timeout_s=0.3)
    async with listening(tmp_path) as server:
        client = await server.connect(limits=limits)
        await until(lambda: client.carrier.is_ended)
        await until(lambda: not len(server.listener))
        await client.close()


async def test_a_restarted_server_is_noticed_at_once(tmp_path: Path) -> None:
    """It answers with a stateless reset, whose token survives the restart."""
    async with listening(tmp_path) as server:
        client = await server.connect(keepalive_s=0.05)
        server.start(port=server.die())
        await until(lambda: client.carrier.is_ended)
        assert server.listener.resets
        assert "no longer knows this connection" in client.carrier.end_reason
        await client.close()


async def test_a_reset_with_a_guessed_token_ends_nothing(tmp_path: Path) -> None:
    """Only the server can compute the token of a connection."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        client.route(b"\x40" + 41 * b"?", server.listener.address, 0.0)
        assert not client.carrier.is_ended
        await client.close()


async def test_a_stopped_server_is_noticed_by_icmp_errors(tmp_path: Path) -> None:
    """Several in a row, with no datagram received in between, end the connection."""
    async with listening(tmp_path) as server:
        client = await server.connect(keepalive_s=0.05)
        server.die()
        await until(lambda: client.carrier.is_ended)
        assert "nothing listens there" == client.carrier.end_reason
        await client.close()
