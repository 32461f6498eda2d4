"""The parts of delivery together: a message comes to all that its topic has."""

from braidmq.broker.delivery.dispatch import Dispatch
from braidmq.broker.outgoing import Outgoing
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Topics
from tests.unit.broker.drive import Drive, S
from tests.unit.broker.following import follow, take


def test_a_message_comes_to_subscriptions_followers_and_the_queue_of_its_topic() -> None:
    """Each has it once, and it is counted once."""
    drive = Drive()
    queue = drive.declare("a")
    worker = drive.join(queue)
    consumer = drive.subscribe("a")
    peer = follow(drive, "a")
    (given,) = drive.publish_many("a", 1)

    assert [given] == drive.pushed_ids(worker)
    assert given == drive.poll_id(consumer)
    assert [b"0"] == take(peer)
    assert (1, given) == (drive.broker.stats.published, drive.topic("a").last_id)


def test_what_comes_back_goes_before_what_is_newer() -> None:
    """All timers that end together are looked at before anything is pushed."""
    drive = Drive()
    consumer = drive.subscribe("a")
    drive.publish_many("a", 3)
    before = drive.credit(consumer, 2)
    drive.broker.credit(consumer, 3, 0, drive.now_us)
    drive.pushed(consumer)
    drive.advance(6 * S)

    assert before == drive.pushed_ids(consumer)[:2]


def test_the_parts_know_each_other_by_name() -> None:
    """The fields that close a circle are set when all are made."""
    dispatch = Dispatch(Settings(), Topics(), Outgoing(), Stats())

    assert dispatch.settling.queues is dispatch.queues
    assert dispatch.queues.replays.queues is dispatch.queues
