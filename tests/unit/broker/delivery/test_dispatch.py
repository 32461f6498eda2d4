"""Dispatch: a message reaches every kind of consumer of its topic."""

from braidmq.broker.delivery.dispatch import Dispatch
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.times import Times
from braidmq.broker.topics import Topics
from tests.unit.broker.drive import Drive, S
from tests.unit.broker.following import follow, take


def test_a_message_reaches_subscriptions_followers_and_the_queue_of_its_topic() -> None:
    """Each gets it once, and it is counted once."""
    drive = Drive()
    queue = drive.declare("a")
    worker = drive.join(queue)
    consumer = drive.subscribe("a")
    peer = follow(drive, "a")
    (message_id,) = drive.publish_many("a", 1)

    assert [message_id] == drive.pushed_ids(worker)
    assert message_id == drive.poll_id(consumer)
    assert [b"0"] == take(peer)
    assert (1, message_id) == (drive.broker.stats.published, drive.topic("a").last_id)


def test_returned_messages_are_pushed_before_newer_ones() -> None:
    """The broker handles all timers that end together before it pushes anything."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish_many("a", 3)
    before = drive.credit(consumer, 2)
    drive.broker.credit(consumer, 3, 0, drive.now_us)
    drive.pushed(consumer)
    drive.advance(6 * S)

    assert before == drive.pushed_ids(consumer)[:2]


def test_the_parts_of_dispatch_are_connected() -> None:
    """References between them are set once all parts exist."""
    outgoing = Outgoing()
    dispatch = Dispatch(Settings(), Topics(), outgoing, Stats(), Times(outgoing))

    assert dispatch.settling.queues is dispatch.queues
    assert dispatch.queues.replays.queues is dispatch.queues
