"""The status of the broker: the numbers that every page shows."""

import pytest

from braidmq.broker import records
from braidmq.server.config.config import BlipConfig, Config, VibeConfig
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.listeners import TcpListener
from braidmq.transport.door import Door
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.integration.blip.peer import broker_at, connected
from tests.unit.admin.world import World


def test_before_recovery_there_are_no_numbers() -> None:
    """The pages answer during recovery."""
    assert 0 == World(recovered=False).status.metrics().topics


def test_cursors_are_shown_with_their_lag(world: World) -> None:
    """A reader that holds the log back is visible in the metrics, too."""
    world.engine.broker.cursors.create("night", "ada", 1)
    world.wal.append(3 * [bytes([records.UNSUBSCRIBE])])
    world.wal.commit(1)

    assert {"night": 3} == world.status.metrics().cursor_lag
    assert [("night", 3)] == [(one.name, one.lag) for one in world.status.cursors.all()]


def test_failed_keys_are_counted() -> None:
    """Every unknown key counts, under the strand that it was sent to."""
    world = World(dev=True)
    found = [world.status.principal("wrong"), world.status.principal("dev-key")]
    world.engine.authentication_failures["vibe"] += 2

    assert [True, False] == [principal is None for principal in found]
    assert {
        "http": 1,
        "blip": 0,
        "vibe": 2,
        "qumbed": 0,
    } == world.status.metrics().authentication_failures


def test_refusals_are_added_up_over_all_strands(world: World) -> None:
    """Connections are counted by strand, refusals by reason."""
    limits = Config(dev=True).limits
    for strand, config in (("blip", BlipConfig(port=0)), ("vibe", VibeConfig(port=0))):
        listener = TcpListener(
            strand,
            config,
            limits,
            door=Door(connections=100, strangers=100),
            make=BlipConnection,
        )
        listener.stop_accepting()
        listener.refused.update({"idle": 1, strand: 2})
        world.status.listeners.append(listener)
    values = world.status.metrics()

    assert {"blip": 0, "vibe": 0} == values.connections
    assert {"idle": 2, "blip": 2, "vibe": 2} == values.connections_refused


@pytest.mark.asyncio
async def test_messages_that_will_expire_are_counted() -> None:
    """Waiting and in flight, once per subscription; messages without a time to live are not."""
    async with (
        broker_at(delivery={"message_ttl_ms": 60_000}) as broker,
        connected(broker) as peer,
    ):
        status = broker.daemon.status
        await status.queues.create("lasting", QueueOptions())
        first = await peer.subscribe("t")
        for topic, qos in (("t", 1), ("t", 0), ("lasting", 1)):
            await peer.subscribe(topic, qos)
        before = status.metrics().expiration_heap_size
        await peer.publish("t", b"1", b"2")
        await peer.publish("lasting", b"3", b"4")
        await peer.poll(first)

        assert (0, 3 * 2) == (before, status.metrics().expiration_heap_size)
        assert 1 == status.metrics().messages_inflight
