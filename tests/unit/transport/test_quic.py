"""The bounds that we put on aioquic, and guards for the private parts of it that we use."""

# ruff: noqa: SLF001 - private attributes are the subject here

import asyncio
import ssl
from pathlib import Path
from typing import NoReturn

import pytest
import trustme
from aioquic.asyncio.client import connect as connect_aioquic
from aioquic.quic import connection, recovery
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.packet import QuicErrorCode

from braidmq.transport.binding import bind_udp
from braidmq.transport.certificates import load_or_make
from braidmq.transport.quic import ALPN, BoundedConnection
from braidmq.transport.quic_server import QuicListener
from braidmq.transport.quic_streams import StreamWire
from tests.integration.blip.peer import until
from tests.unit.transport.quic_peers import LIMITS, listening, opened

pytestmark = pytest.mark.asyncio

OVERRIDDEN = ("_write_connection_limits", "_write_stream_limits")


@pytest.mark.parametrize("name", OVERRIDDEN)
async def test_the_methods_that_we_override_exist_and_are_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """An override that is never called would leave the windows to the library."""
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


async def test_flow_control_windows_move_but_never_grow(tmp_path: Path) -> None:
    """After a megabyte the peer may send one more window, as at the start."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        stream = opened(client)
        stream.wire.write(bytes(1_000_000))
        await until(lambda: server.accepted and len(server.accepted[0].received) == 1_000_000)
        quic = next(iter(server.listener.carriers)).quic
        assert quic._local_max_data.value <= 1_000_000 + LIMITS.connection_window_bytes
        assert quic._streams[0].max_stream_data_local <= 1_000_000 + LIMITS.stream_window_bytes
        await client.close()


async def test_unacknowledged_bytes_are_counted(
    tmp_path: Path,
) -> None:
    """From the write until the peer has acknowledged them."""
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


async def test_a_server_announces_its_limits(tmp_path: Path) -> None:
    """Its transport parameters allow bidirectional streams up to the limit, and no others."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        quic = client.carrier.quic
        assert 0 == quic._remote_max_streams_uni
        assert 128 == quic._remote_max_streams_bidi
        assert 300.0 == quic._remote_max_idle_timeout
        await client.close()


async def test_a_unidirectional_stream_is_refused(tmp_path: Path) -> None:
    """A peer that opens one anyway is closed with STREAM_LIMIT_ERROR."""
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


async def test_the_library_bounds_what_a_peer_can_make_it_hold() -> None:
    """Versions without these bounds could be made to buffer or to work without end."""
    assert recovery.MAX_ACK_RANGES <= 256
    assert connection.MAX_PENDING_CRYPTO <= 1024 * 1024
    assert connection.MAX_PENDING_RETIRES <= 256
    assert connection.MAX_REMOTE_CHALLENGES <= 64


async def test_there_are_no_session_tickets(tmp_path: Path) -> None:
    """Without tickets there is no resumption and no 0-RTT, so nothing can be replayed."""
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


async def test_the_fingerprint_is_that_of_the_verified_certificate(tmp_path: Path) -> None:
    """It is taken from the handshake."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        assert server.files.fingerprint == client.carrier.quic.peer_fingerprint()
        await client.close()


async def test_a_client_certificate_is_requested_and_verified(tmp_path: Path) -> None:
    """Only a client whose certificate the CA has signed gets a name."""
    ca, other = trustme.CA(), trustme.CA()
    ca_file = tmp_path / "ca.pem"
    ca.cert_pem.write_to_path(ca_file)
    names = []
    async with listening(tmp_path, asks_for_certificates=True) as server:
        for issuer in (ca, other, None):
            settings = QuicConfiguration(alpn_protocols=[ALPN], verify_mode=ssl.CERT_NONE)
            if issuer is not None:
                issued = issuer.issue_cert("client.example", common_name="ada")
                issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "client.pem")
                settings.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.pem")
            async with connect_aioquic(
                "127.0.0.1", server.port, configuration=settings
            ) as peer:
                await peer.ping()
                (carrier,) = server.listener.carriers
                names.append(carrier.quic.peer_name(ca_file.read_bytes()))
            await until(lambda: not server.listener.carriers)

    assert ["ada", "", ""] == names


async def test_client_certificates_are_not_requested_by_default(tmp_path: Path) -> None:
    """Then a client has no name."""
    async with listening(tmp_path) as server:
        client = await server.connect()
        (carrier,) = server.listener.carriers
        assert not carrier.quic.tls._request_client_certificate  # aioquic's switch exists
        assert "" == carrier.quic.peer_name(server.files.certificate.read_bytes())
        await client.close()


async def test_a_listener_that_cannot_be_made_leaves_its_socket_to_its_caller(
    tmp_path: Path,
) -> None:
    """The loop does not read from it: closing it then would end the process (SIGABRT)."""
    files = load_or_make("qumbed", tmp_path)
    files.certificate.write_text("broken")

    def never(wire: StreamWire) -> NoReturn:
        raise AssertionError(wire)

    loop = asyncio.get_running_loop()
    with bind_udp("qumbed", "127.0.0.1", 0) as bound:
        with pytest.raises(ValueError):  # noqa: PT011 - the text is the library's
            QuicListener(
                bound,
                certificate=files.certificate,
                key=files.key,
                make_stream=never,
                limits=LIMITS,
            )
        assert not loop.remove_reader(bound.fileno())
