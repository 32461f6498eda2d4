"""The real process with the Qumbed strand: its address, identity and mDNS announcement."""

import asyncio
import socket
from pathlib import Path

import pytest

import braidmq
from braidmq.server.strands.qumbed.mdns import Node, find
from tests.integration.blip.peer import PATIENCE_S
from tests.integration.served import key_section, refused, served

pytestmark = pytest.mark.asyncio


async def test_a_broker_without_qumbed_shows_no_trace_of_it(tmp_path: Path) -> None:
    """Off means no address, no fingerprint, no gateway key and no files."""
    async with served(tmp_path, "--qumbed", "off") as broker:
        facts = await broker.ready()

        assert [None] * 3 == [
            facts[name] for name in ("qumbed", "qumbed_fingerprint", "gateway_public_key")
        ]
        assert 0 == await broker.end()
    assert not (tmp_path / "data" / "gateway.key").exists()


async def test_a_qumbed_address_in_use_exits_with_69(tmp_path: Path) -> None:
    """UDP addresses can be taken as well; the error names the strand."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, line = await refused(tmp_path, "--qumbed", address)

    assert 69 == code
    assert f"qumbed: cannot listen on {address}" in line


async def test_qumbeds_identity_is_created_once(tmp_path: Path) -> None:
    """Certificate and gateway key are kept, readable by their owner only, and logged."""
    identities = []
    for _ in range(2):
        async with served(tmp_path) as broker:
            facts = await broker.ready()
            identities.append((facts["qumbed_fingerprint"], facts["gateway_public_key"]))
            assert 0 == await broker.end()
            assert facts["qumbed_fingerprint"] in broker.stderr

    assert identities[0] == identities[1]
    for name in ("gateway.key", "qumbed.key.pem"):
        assert 0o600 == (tmp_path / "data" / name).stat().st_mode & 0o777


OPEN = '[qumbed]\nauth = "none"\n'
KEYS = key_section("ada", "ada-key")


@pytest.mark.parametrize("config", [KEYS, KEYS + OPEN], ids=["by default", "auth none"])
async def test_a_key_is_needed_unless_the_configuration_says_otherwise(
    tmp_path: Path, config: str
) -> None:
    """With keys configured, a local program without one cannot publish."""
    is_open = OPEN in config
    async with served(tmp_path, config=config, dev=False) as broker:
        facts = await broker.ready()
        place = f"{facts['qumbed']}?fingerprint={facts['qumbed_fingerprint']}"
        for key in ("ada-key", "no-key") if is_open else ("ada-key",):
            async with braidmq.connect(f"qumbed://{key}@{place}") as client:
                await client.publish("t", b"1", qos=1)
        if not is_open:
            with pytest.raises(braidmq.AuthenticationFailed):
                async with braidmq.connect(f"qumbed://no-key@{place}"):
                    pass
        assert is_open == ("without a key" in broker.stderr)


async def test_qumbed_without_keys_is_for_loopback_only(tmp_path: Path) -> None:
    """Exit 2, and a line that names the setting, the address and what is allowed."""
    code, line = await refused(tmp_path, "--qumbed", "0.0.0.0:0", config=KEYS + OPEN, dev=False)

    assert 2 == code
    problem = "none is for loopback only: must be key or mtls to listen on 0.0.0.0"
    assert f"error: qumbed.auth: {problem}" == line


async def test_a_broker_with_mdns_is_discoverable(tmp_path: Path) -> None:
    """`serve --mdns` announces the strand with its port, its key and its topics."""
    async with served(tmp_path, "--mdns") as broker:
        facts = await broker.ready()
        async with broker.peer() as peer:
            await peer.publish("news", b"1")
        found: list[Node] = []
        async with asyncio.timeout(PATIENCE_S):
            while not any("news" in node.topics for node in found):
                # Other brokers may announce themselves on this machine, too.
                nodes = await find(0.5)
                found = [
                    node for node in nodes if node.public_key == facts["gateway_public_key"]
                ]
        (node,) = found

        assert (facts["qumbed"],) == node.addresses
        assert 0 == await broker.end()


async def test_topics_are_not_announced_where_a_key_is_required(
    tmp_path: Path,
) -> None:
    """The whole network may see the broker, but not its topics."""
    async with served(tmp_path) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.publish("news", b"1")
        assert 0 == await broker.end()
    async with served(tmp_path, "--mdns", config='[qumbed]\nauth = "key"\n') as broker:
        facts = await broker.ready()
        found: list[Node] = []
        async with asyncio.timeout(PATIENCE_S):
            while not found:
                nodes = await find(0.5)
                found = [
                    node for node in nodes if node.public_key == facts["gateway_public_key"]
                ]

        assert [()] == [node.topics for node in found]
        assert 0 == await broker.end()
