"""The broker that runs in the process of a test."""

from pathlib import Path

import pytest

from braidmq.testing.broker import running_broker
from tests.integration.blip.peer import connected

pytestmark = pytest.mark.asyncio


async def test_two_brokers_run_side_by_side() -> None:
    """Each has free ports and its own directory."""
    async with running_broker() as one, running_broker() as two:
        assert one.address() != two.address()
        assert one.data_dir != two.data_dir
        async with connected(one) as peer, connected(two) as other:
            await peer.publish("t", b"x")
            assert (0, 0, 0, 0, 0) == await other.stats()


async def test_a_temporary_log_is_removed() -> None:
    """Nothing is left on disk."""
    async with running_broker() as broker:
        directory = broker.data_dir
        assert directory.exists()

    assert not directory.exists()


async def test_a_given_directory_is_kept(tmp_path: Path) -> None:
    """So that a test can start another broker on it."""
    async with running_broker(data_dir=tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
    async with running_broker(data_dir=tmp_path) as broker, connected(broker) as peer:
        assert None is await peer.poll(subscription)


async def test_settings_are_those_of_a_configuration_file() -> None:
    """Other settings keep the defaults for tests: development mode, any free port."""
    settings: dict[str, object] = {
        "delivery": {"max_retries": 2},
        "blip": {"subscription_lease_s": 9},
    }
    async with running_broker(config=settings) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        broker.clock.advance(11)

        assert None is not await peer.poll(subscription)
        assert 0 != broker.address()[1]


async def test_a_disabled_listener_has_no_address() -> None:
    """Asking for it is a mistake in the test."""
    async with running_broker(config={"http": {"enabled": False}}) as broker:
        with pytest.raises(AssertionError, match="http is off"):
            broker.address("http")


async def test_the_url_can_be_passed_to_the_client() -> None:
    """It holds strand, key and address."""
    async with running_broker() as broker:
        host, port = broker.address()

        assert f"blip://dev-key@{host}:{port}" == broker.url()
        assert f"blip://other@{host}:{port}" == broker.url(key="other")


async def test_the_qumbed_url_contains_the_fingerprint() -> None:
    """The gateway's public key is available for comparison."""
    async with running_broker() as broker:
        host, port = broker.address("qumbed")
        facts = broker.daemon.ready_facts()

        assert broker.url("qumbed") == (
            f"qumbed://dev-key@{host}:{port}?fingerprint={facts['qumbed_fingerprint']}"
        )
        assert facts["gateway_public_key"] == broker.gateway_public_key.hex()
