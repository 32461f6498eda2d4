"""The Vibe strand over TLS: the same protocol from the first byte."""

import ssl
from pathlib import Path

import pytest
import trustme

from tests.integration.blip.peer import broker_at, until
from tests.integration.vibe.peer import CONNECT, TOKEN, connected, stranger

pytestmark = pytest.mark.asyncio


@pytest.fixture
def authority(tmp_path: Path) -> trustme.CA:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    issued.private_key_pem.write_to_path(tmp_path / "key.pem")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    return authority


async def test_the_protocol_is_the_same_over_tls(
    tmp_path: Path, authority: trustme.CA, dialect: str
) -> None:
    """Connect, publish and consume over TLS; a plaintext client gets no answer."""
    client = ssl.create_default_context()
    authority.configure_trust(client)
    server = {"tls_cert": tmp_path / "cert.pem", "tls_key": tmp_path / "key.pem"}
    large = b'"' + b"x" * 900_000 + b'"'
    async with broker_at(tmp_path / "data", vibe=server) as broker:
        async with connected(broker, dialect, tls=client) as peer:
            await peer.publish("q", large, "m")
            await peer.subscribe("q")
            assert large == (await peer.delivered()).payload
            await peer.settle("m")
            assert (0, 0) == await peer.counts("q")
        async with stranger(broker, dialect) as plain:
            plain.send(plain.frame(CONNECT, "c", headers=TOKEN))
            await until(plain.transport.is_closing)

            assert b"serverVersion" not in plain.unread
