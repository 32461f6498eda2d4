"""The HTTP listener with a certificate."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trustme

from braidmq.admin.http.app import build_app
from braidmq.admin.http.server import AdminServer
from braidmq.base.errors import ConfigError
from tests.unit.admin.world import World

pytestmark = pytest.mark.asyncio


def server_with(certificate: Path) -> AdminServer:
    """Return a listener whose certificate and key are in one file."""
    app = build_app(World().status, loopback=True)
    return AdminServer(app, host="127.0.0.1", port=0, tls_cert=certificate, tls_key=certificate)


@asynccontextmanager
async def trusted(tmp_path: Path) -> AsyncIterator[tuple[tuple[str, int], ssl.SSLContext]]:
    """Yield the address of a listener, and a context that trusts its certificate."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "both.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    server = server_with(tmp_path / "both.pem")
    try:
        yield await server.start(), context
    finally:
        await server.stop()


async def test_tls_is_on_with_a_certificate(tmp_path: Path) -> None:
    """A client that trusts the authority gets its answer."""
    async with trusted(tmp_path) as (address, context):
        reader, writer = await asyncio.open_connection(
            *address, ssl=context, server_hostname="localhost"
        )
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
        await writer.wait_closed()


async def test_only_tls_1_3_is_accepted(tmp_path: Path) -> None:
    """As on every other listener."""
    async with trusted(tmp_path) as (address, context):
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(*address, ssl=context, server_hostname="localhost")


async def test_an_invalid_certificate_is_a_configuration_error(tmp_path: Path) -> None:
    """It is reported at startup, in one line that shows nothing of the file."""
    (tmp_path / "cert.pem").write_text("secret")
    with pytest.raises(ConfigError, match=r"^http\.tls_cert: ") as caught:
        await server_with(tmp_path / "cert.pem").start()

    assert "secret" not in str(caught.value)
