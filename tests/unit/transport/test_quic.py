"""The bounds that we put on aioquic, and guards for what is private in it."""

# ruff: noqa: SLF001 - what is private is the subject here

import ssl
from pathlib import Path

import pytest
import trustme
from aioquic.asyncio.client import connect as connect_stranger
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

from braidmq.transport.quic import ALPN, BoundedConnection
from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import LIMITS, listening, opened

pytestmark = pytest.mark.asyncio

OVERRIDDEN = ("_write_connection_limits", "_write_stream_limits")


@pytest.mark.parametrize("name", OVERRIDDEN)
async def test_what_we_override_is_there_and_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An override that nobody calls would leave the windows to the library."""
    original = getattr(BoundedConnection, name)
    calls: list[BoundedConnection] = []

    def spy(self: BoundedConnection, *args: object, **named: object) -> None:
        calls.append(self)
        original(self, *args, **named)

    assert hasattr(QuicConnection, name)
    monkeypatch.setattr(BoundedConnection, name, spy)
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(b"x")
        await until(lambda: server.accepted)
        served = next(iter(server.listener.carriers)).quic
        await until(lambda: served in calls)
        await client.close()


async def test_windows_move_and_never_grow(tmp_path: Path) -> None:
    """After a megabyte the peer may send one window more, as at the beginning."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(bytes(1_000_000))
        await until(lambda: server.accepted and len(server.accepted[0].received) == 1_000_000)
        quic = next(iter(server.listener.carriers)).quic
        assert quic._local_max_data.value <= 1_000_000 + LIMITS.connection_window_bytes
        assert quic._streams[0].max_stream_data_local <= 1_000_000 + LIMITS.stream_window_bytes
        await client.close()


async def test_unacknowledged_bytes_are_what_was_written_and_not_confirmed(
    tmp_path: Path,
) -> None:
    """They are counted at the write, and are none once the peer has confirmed them."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(bytes(1_234))
        assert 1_234 == stream.wire.stream_unsent_bytes() == stream.wire.unsent_bytes()
        await until(lambda: stream.wire.unsent_bytes() == 0)
        stream.wire.write(bytes(5_000))
        stream.wire.abort()
        assert 0 == client.carrier.quic.unacknowledged_bytes(stream.wire.stream_id)
        await client.close()


async def test_a_server_says_what_it_allows(tmp_path: Path) -> None:
    """Its transport parameters: bidirectional streams up to the limit, no others."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        quic = client.carrier.quic
        assert 0 == quic._remote_max_streams_uni
        assert 128 == quic._remote_max_streams_bidi
        assert 300.0 == quic._remote_max_idle_timeout
        await client.close()


async def test_a_unidirectional_stream_is_refused(tmp_path: Path) -> None:
    """A peer that opens one although it may not is closed: STREAM_LIMIT_ERROR."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        quic = client.carrier.quic
        quic._remote_max_streams_uni = 1
        quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), b"x")
        client.transmit_soon(client.carrier)
        await until(lambda: client.carrier.is_ended)
        assert QuicErrorCode.STREAM_LIMIT_ERROR == client.carrier.end_code
        assert [] == server.accepted
        await client.close()


async def test_there_are_no_session_tickets(tmp_path: Path) -> None:
    """No ticket, no resumption, no 0-RTT: nothing can be replayed."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        tickets: list[object] = []
        client.carrier.quic.tls.new_session_ticket_cb = tickets.append
        stream = opened(client)
        stream.wire.write(b"x")
        await until(lambda: server.accepted)
        served = next(iter(server.listener.carriers)).quic
        assert [] == tickets
        assert served.tls.new_session_ticket_cb is None
        assert served.tls.get_session_ticket_cb is None
        await client.close()


async def test_the_fingerprint_is_that_of_the_proven_certificate(tmp_path: Path) -> None:
    """It is read from the handshake."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        assert server.files.fingerprint == client.carrier.quic.peer_fingerprint()
        await client.close()


async def test_a_client_certificate_is_asked_for_and_judged(tmp_path: Path) -> None:
    """The name is told of a client that a CA vouches for; of others there is none."""
    ca, other = trustme.CA(), trustme.CA()
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(ca_file)
    names = []
    async with listening(tmp_path, asks_for_certificates=True) as server:
        for issuer in (ca, other, None):
            settings = QuicConfiguration(alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE)
            if issuer is not None:
                made = issuer.issue_cert("client.example", common_name="ada")
                made.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
                settings.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.pem")
            async with connect_stranger(
                "127.0.0.1", server.port, configuration=settings
            ) as peer:
                await peer.ping()
                (carrier,) = server.listener.carriers
                names.append(carrier.quic.peer_name(ca_file))
            await until(lambda: not server.listener.carriers)

    assert ["ada", "", ""] == names


async def test_without_being_asked_a_client_shows_no_certificate(tmp_path: Path) -> None:
    """The switch is off unless it is wanted."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        (carrier,) = server.listener.carriers
        assert not carrier.quic.tls._request_client_certificate  # aioquic's switch is there
        assert "" == carrier.quic.peer_name(server.files.certificate)
        await client.close()
