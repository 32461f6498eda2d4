"""The network itself: certificates, a wrong ALPN, lost and reordered datagrams."""

import ssl
from pathlib import Path

import pytest
import trustme
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

from braidmq.testing.broker import RunningBroker
from braidmq.transport.quic_client import Trust
from braidmq.transport.quic_client import connect as connect_pinned
from tests.integration.blip.peer import broker_at
from tests.integration.qumbed.peer import ALICE, ack, connected, opened, publish
from tests.unit.transport.quic_peers import lossy

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("protocols", [["qumbed/2"], ["h3"], None])
async def test_another_protocol_is_refused(
    broker: RunningBroker, protocols: list[str] | None
) -> None:
    """The ALPN must be exactly qumbed/1; another or none gets no connection."""
    settings = QuicConfiguration(alpn_protocols=protocols, verify_mode=ssl.CERT_NONE)
    with pytest.raises(ConnectionError):
        async with connect(*broker.address("qumbed"), configuration=settings):
            pass


async def test_a_configured_certificate_is_served(tmp_path: Path) -> None:
    """qumbed.tls_cert and tls_key: a client that trusts the CA needs no pin."""
    ca = trustme.CA()
    made = ca.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA)
    chain, key, ca_file = (tmp_path / name for name in ("chain.pem", "key.pem", "ca.pem"))
    made.cert_chain_pems[0].write_to_path(chain)
    made.private_key_pem.write_to_path(key)
    ca.cert_pem.write_to_path(ca_file)
    async with broker_at(qumbed={"tls_cert": chain, "tls_key": key}) as broker:
        address = broker.address("qumbed")
        for trust in (Trust(ca_file=ca_file), Trust(fingerprint=broker.fingerprint)):
            client = await connect_pinned(*address, trust=trust)
            await client.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_loss_and_reordering_lose_nothing(broker: RunningBroker, seed: int) -> None:
    """With 10 % of all datagrams lost and others late, every publish is delivered."""
    _, port = broker.address("qumbed")
    async with (
        lossy(port, seed=seed, loss=0.1, later=0.1) as (bad_port, there, back),
        connected(broker, port=bad_port) as peer,
    ):
        reader, writer = peer.open(), peer.open()
        await reader.subscribe("t", ALICE)
        writer.send(*(publish("t", b"%d" % n + bytes(500)) for n in range(300)))
        await writer.expect(*(ack(f"{n}", 1) for n in range(1, 301)))
        found = [opened(await reader.message(), ALICE) for _ in range(300)]

        assert [b"%d" % n + bytes(500) for n in range(300)] == found
        assert there.lost > 0
        assert back.lost > 0
