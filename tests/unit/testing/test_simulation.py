"""The simulation, part by part; tests/simulation has the long runs."""

from random import Random

from braidmq.testing.clients import PLANS, Consumer, Publisher
from braidmq.testing.ledger import SETTLE, summarize
from braidmq.testing.simulation import World, survives


def test_a_world_publishes_delivers_and_settles() -> None:
    """A run without faults uses the broker's features and keeps every promise."""
    world = World(1)
    world.run(400)
    summary = summarize(world.scene.ledger)

    assert min(summary.confirmed, summary.deliveries, summary.settled) > 0
    assert [] == world.drain()


def test_equal_seeds_replay_the_world() -> None:
    """The same seed gives the same ledger, line by line; another seed gives another."""
    ledgers = []
    for seed in (5, 5, 6):
        world = World(seed)
        world.run(300)
        ledgers.append(world.scene.ledger.events)

    assert ledgers[0] == ledgers[1]
    assert ledgers[0] != ledgers[2]


def test_a_verdict_on_a_crashed_disk_leaves_the_world_alone() -> None:
    """`survives` works on forks and does not change the world it checks."""
    world = World(2)
    world.run(300)
    events = list(world.scene.ledger.events)
    operations = world.disk.operations

    assert [] == survives(world.disk.crash(Random(1)), world, seed=1)
    assert events == world.scene.ledger.events
    assert operations == world.disk.operations


def test_the_loss_of_the_disk_is_found() -> None:
    """A world that restarts on an empty disk has lost its subscriptions."""
    world = World(3)
    world.run(300)
    empty = World(4).disk.kill()

    assert "lost subscription" in {v.kind for v in survives(empty, world, seed=1)}


def test_clients_subscribe_publish_and_confirm() -> None:
    """A consumer gets the publisher's messages, and the ledger records that it settled them."""
    world = World(4)
    plan = next(plan for plan in PLANS if plan.name == "faithful")
    consumer = world.join(plan)
    publisher = world.join(None)
    assert isinstance(consumer, Consumer)
    assert isinstance(publisher, Publisher)
    consumer.act()
    world.settle()
    publisher.publish(["orders", "orders"])
    world.settle()
    consumer.ask(2)
    world.settle()
    consumer.acknowledge_all()
    world.settle()

    assert 2 == consumer.delivered
    assert 1 == world.scene.confirmations
    assert 2 == sum(event.kind == SETTLE for event in world.scene.ledger.events)
    assert 0 == consumer.unanswered == publisher.unanswered
