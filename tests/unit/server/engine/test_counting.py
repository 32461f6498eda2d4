"""The log's part of a recount."""

from braidmq.broker.broker import Broker
from braidmq.broker.delivery.recounts import Recount
from braidmq.broker.policy import PRIORITY_BASED
from braidmq.broker.settings import Settings
from braidmq.server.engine.counting import Counting
from braidmq.testing.disk import FakeDisk
from tests.unit.broker.drive import policy_of
from tests.unit.wal.bodies import message, open_log, write


def test_each_channel_gets_its_own_number() -> None:
    """The lanes of a queue have one topic, and differ by priority."""
    wal = open_log(FakeDisk())
    write(wal, [message(b"t", b"x", priority=number % 3) for number in range(11)])
    broker = Broker(Settings())
    topic = broker.topics.get("t")
    assert topic is not None
    queue = broker.queues.new(topic, policy_of(mode=PRIORITY_BASED), 1)
    wanted = [Recount(lane, [(2, 11)], 10) for lane in queue.lanes]
    counting = Counting(wal, wanted)
    while not counting.go_on():
        pass

    assert list(zip(wanted, [3, 4, 3, 0], strict=True)) == counting.counts()
