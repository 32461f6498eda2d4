"""The simulation with queues, part by part; tests/simulation has the long runs."""

from random import Random

from braidmq.testing import ledger as kinds
from braidmq.testing.queue_simulation import QueueWorld
from braidmq.testing.simulation import survives
from braidmq.testing.vibe_clients import URGENT, WORK, VibeConsumer, VibePublisher


def test_a_world_declares_publishes_and_consumes() -> None:
    """A run without faults uses every feature of queues and keeps every promise."""
    world = QueueWorld(1)
    world.run(400)

    assert [] == world.drain()
    recorded = {event.kind for event in world.scene.ledger.events}
    assert {kinds.DECLARED, kinds.PUSH, kinds.TAKEN, kinds.DELIVER, kinds.SETTLE} <= recorded


def test_equal_seeds_replay_the_world() -> None:
    """The same seed gives the same ledger, line by line; another seed gives another."""
    ledgers = []
    for seed in (5, 5, 6):
        world = QueueWorld(seed)
        world.run(200)
        ledgers.append(world.scene.ledger.events)

    assert ledgers[0] == ledgers[1]
    assert ledgers[0] != ledgers[2]


def test_a_verdict_on_a_crashed_disk_leaves_the_world_alone() -> None:
    """`survives` works on forks and does not change the world it checks."""
    world = QueueWorld(2)
    world.run(200)
    events = list(world.scene.ledger.events)

    assert [] == survives(world.disk.crash(Random(1)), world, seed=1)
    assert events == world.scene.ledger.events


def test_clients_publish_and_consume() -> None:
    """A consumer gets the publisher's messages, and the ledger records that it took them."""
    world = QueueWorld(4)
    consumer = world.join_as(WORK)
    publisher = world.join_as("publisher")
    assert isinstance(consumer, VibeConsumer)
    assert isinstance(publisher, VibePublisher)
    consumer.care = 1.0
    world.settle()
    publisher.publish([WORK, WORK])
    world.settle()
    consumer.acknowledge_all()
    world.settle()
    recorded = [event.kind for event in world.scene.ledger.events]

    assert 2 == consumer.delivered == recorded.count(kinds.TAKEN)
    assert 0 == consumer.unanswered == publisher.unanswered


def test_counts_that_do_not_match_the_log_are_found() -> None:
    """After a restart the broker must count the messages in the log, no more and no fewer."""
    world = QueueWorld(4)
    world.join_as(URGENT)
    world.settle()
    world.clear()
    publisher = world.join_as("publisher")
    assert isinstance(publisher, VibePublisher)
    publisher.publish([URGENT])
    world.settle()
    world.restart(world.disk.kill())
    assert [] == world.miscounts
    lanes = world.engine.broker.queues.by_name[URGENT.name].lanes
    next(lane for lane in lanes if lane.unsettled).unsettled += 1
    world.count()

    assert ["miscounted"] == [violation.kind for violation in world.miscounts]
