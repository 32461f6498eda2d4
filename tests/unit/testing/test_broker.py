"""The broker in a test's own process."""

from pathlib import Path

import pytest

from braidmq.testing.broker import running_broker
from tests.integration.blip.peer import connected

pytestmark = pytest.mark.asyncio


async def test_two_brokers_run_side_by_side() -> None:
    """Free ports and a directory of its own each."""
    async with running_broker() as one, running_broker() as two:
        assert one.address() != two.address()
        assert one.data_dir != two.data_dir
        async with connected(one) as peer, connected(two) as other:
            await peer.publish("t", b"x")
            assert (0, 0, 0, 0, 0) == await other.stats()


async def test_a_throw_away_log_is_thrown_away() -> None:
    """Nothing is left on the machine."""
    async with running_broker() as broker:
        directory = broker.data_dir
        assert directory.exists()

    assert not directory.exists()


async def test_a_directory_that_was_given_is_kept(tmp_path: Path) -> None:
    """So that a test can start again on it."""
    async with running_broker(data_dir=tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
    async with running_broker(data_dir=tmp_path) as broker, connected(broker) as peer:
        assert None is await peer.poll(subscription)


async def test_settings_are_those_of_a_file() -> None:
    """And what is not said stays as it is for tests: development mode, any free port."""
    settings: dict[str, object] = {
        "delivery": {"max_retries": 2},
        "blip": {"subscription_lease_s": 9},
    }
    async with running_broker(config=settings) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        broker.clock.advance(11)

        assert None is not await peer.poll(subscription)
        assert 0 != broker.address()[1]


async def test_a_listener_that_is_off_has_no_address() -> None:
    """A test that asks for it has a mistake in it."""
    async with running_broker(config={"http": {"enabled": False}}) as broker:
        with pytest.raises(AssertionError, match="http is off"):
            broker.address("http")


async def test_the_url_is_what_the_client_takes() -> None:
    """Strand, key and address."""
    async with running_broker() as broker:
        host, port = broker.address()

        assert f"blip://dev-key@{host}:{port}" == broker.url()
        assert f"blip://other@{host}:{port}" == broker.url(key="other")


async def test_a_qumbed_client_is_told_what_to_pin() -> None:
    """The address has the fingerprint; the gateway's key is there to compare with."""
    async with running_broker() as broker:
        host, port = broker.address("qumbed")
        facts = broker.daemon.ready_facts()

        assert broker.url("qumbed") == (
            f"qumbed://dev-key@{host}:{port}?fingerprint={facts['qumbed_fingerprint']}"
        )
        assert facts["gateway_public_key"] == broker.gateway_public_key.hex()
