"""A queue counts what is really there, after forced retention and after a repair."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from braidmq.broker import records, state
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.recounts import ROWS_MAX, Corrections, Ranges, Recount, Survey
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED, ROUND_ROBIN, Policy
from braidmq.broker.topics import Message, body_of
from braidmq.server.config.config import Config
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import Recovered, recover
from braidmq.testing.disk import FakeDisk
from braidmq.testing.simulation import SEGMENT_BYTES, InlineLog
from braidmq.wal import snapshots
from braidmq.wal.maintenance.repair import repair
from braidmq.wal.segment import list_segments, segment_path

NOW_US = 5_000_000
COUNT = 100
EVERYTHING = 10**6
MODES = [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK]


def wanted(broker: Broker, lost: Ranges, rows_max: int = EVERYTHING) -> list[Recount]:
    """Return what a survey finds, in as many turns as it takes."""
    survey = Survey(broker.queues, lost)
    while not survey.go_on(rows_max):
        pass
    return survey.found


class Running:
    """A broker, its engine and a log that works when it is told to."""

    def __init__(self, disk: FakeDisk) -> None:
        limits = {"retention_force": True, "retention_bytes": 1, "retention_hours": 0}
        config = Config.model_validate({"dev": True, "wal": limits})
        wal = config.wal.model_copy(update={"segment_bytes": SEGMENT_BYTES})
        self.disk = disk
        self.found: Recovered = recover(
            disk,
            config.model_copy(update={"wal": wal}),
            now_us=NOW_US,
            clock=lambda: 0.0,
        )
        self.broker: Broker = self.found.broker
        self.engine = Engine(
            self.broker,
            now_us=lambda: NOW_US,
            find_principal=lambda _: None,
            wake_later=lambda *_: None,
            fail=lambda error: pytest.fail(str(error)),
        )
        self.log = InlineLog(self.found.wal, disk, self.engine, lambda: NOW_US)
        self.engine.start(self.log)

    def settle(self) -> None:
        self.engine.end_turn()
        while self.log.jobs or self.log.reads or self.log.reports:
            if self.log.reports:
                self.log.reports.popleft()()
            else:
                self.log.do(self.log.jobs or self.log.reads)

    def declare(self, mode: int, name: str = "q") -> None:
        policy = Policy()
        policy.mode = mode
        policy.max_size = COUNT
        topic = self.broker.topics.get(name)
        assert topic is not None
        self.broker.queues.declare(topic, policy, NOW_US)
        self.settle()

    def publish(self, count: int, name: str = "q") -> None:
        rng = Random(count)
        for number in range(count):
            topic = self.broker.topics.get(name)
            assert topic is not None
            message = Message(topic, 1, body_of(topic, bytes(300)))
            message.priority = rng.randrange(4)
            self.broker.publish(message, NOW_US)
            if number % 7 == 0:
                self.settle()
        self.settle()

    @property
    def queue(self) -> Queue:
        return self.broker.queues.by_name["q"]

    def there(self) -> int:
        """Return how many messages the log really holds."""
        last_id = self.found.wal.committed_id
        wal = self.found.wal
        found = wal.read(0, topic=b"q", up_to=last_id, count_max=10**6, bytes_max=10**9)
        return sum(body[0] == records.MESSAGE for _, body in found.records)


@pytest.mark.parametrize("mode", MODES)
def test_forced_retention_leaves_no_count_behind(mode: int) -> None:
    """Live, and after a restart from the snapshot that still counted what is gone."""
    running = Running(FakeDisk())
    running.declare(mode)
    running.publish(COUNT)
    assert not running.queue.has_room()
    running.engine.take_snapshot()
    running.settle()  # the snapshot counts everything; retention follows it
    running.engine.take_snapshot()
    running.settle()
    left = running.there()

    assert 0 < left < COUNT
    assert left == running.queue.unsettled() == running.queue.waiting()
    assert running.queue.has_room()
    again = Running(running.disk.kill())
    assert left == again.queue.unsettled()
    again.publish(COUNT - left)
    assert not again.queue.has_room()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("with_snapshot", [False, True])
def test_a_repair_leaves_no_count_behind(mode: int, with_snapshot: bool) -> None:
    """Whether a snapshot counted what was lost, or the records after it would have."""
    running = Running(FakeDisk())
    running.declare(mode)
    running.publish(COUNT)
    if with_snapshot:
        snapshots.save(running.disk, *state.snapshot(running.broker, NOW_US))
    disk = running.disk.kill()
    path = segment_path(list_segments(disk)[2])
    disk.remove(path)
    repair(disk, records.describe, accept_loss=True)
    again = Running(disk)

    assert 0 < again.there() < COUNT
    assert again.there() == again.queue.unsettled()
    assert again.queue.has_room()


def test_only_the_difference_is_subtracted() -> None:
    """And nothing from a lane that has read everything since, which knows its number."""
    running = Running(FakeDisk())
    running.declare(ROUND_ROBIN)
    running.publish(COUNT)
    (lane,) = running.queue.lanes
    lane.position.behind = True
    (recount,) = wanted(running.broker, [(0, 50)])
    assert (COUNT, [(lane.position.cursor + 1, running.queue.topic.last_id)]) == (
        recount.expected,
        recount.ranges,
    )
    recount.apply(COUNT)
    assert COUNT == lane.unsettled
    recount.apply(COUNT - 30)
    assert COUNT - 30 == lane.unsettled
    lane.position.behind = False
    recount.apply(0)

    assert COUNT - 30 == lane.unsettled


def test_queues_that_lost_nothing_are_not_counted() -> None:
    """Only those whose unread messages may be among the lost ids."""
    running = Running(FakeDisk())
    running.declare(ROUND_ROBIN)
    running.publish(3)

    assert [] == wanted(running.broker, [])
    last_id = running.found.wal.committed_id
    assert [] == wanted(running.broker, [(last_id + 1, last_id + 9)])
    assert 1 == len(wanted(running.broker, [(0, last_id)]))


def test_a_survey_and_its_corrections_take_turns() -> None:
    """A bounded number of queues in each, and the same in the end as in one go."""
    running = Running(FakeDisk())
    names = [f"q.{number}" for number in range(20)]
    for name in names:
        running.declare(PRIORITY_BASED, name)
        running.publish(8, name)
    lost = [(0, running.found.wal.committed_id)]
    expected = [recount.channel for recount in wanted(running.broker, lost)]
    survey = Survey(running.broker.queues, lost)
    found = [0]
    running.broker.queues.delete(running.broker.queues.by_name["q.3"])
    while not survey.go_on(rows_max=9):
        found.append(len(survey.found))
    steps = [after - before for before, after in pairwise(found)]

    assert 8 < len(steps)
    assert 8 >= max(steps)  # of two queues at most
    assert [each for each in expected if not each.ended] == [
        recount.channel for recount in survey.found
    ]
    corrections = Corrections(running.broker.queues, [(each, 0) for each in survey.found])
    assert not corrections.go_on(rows_max=4)
    left = [name for name in names if name != "q.3"]
    assert (
        18
        >= sum(running.broker.queues.by_name[name].unsettled() > 0 for name in left)
        >= len(left) - 4
    )
    while not corrections.go_on(rows_max=4):
        pass
    assert {0} == {running.broker.queues.by_name[name].unsettled() for name in left}


def test_another_deletion_waits_for_the_recount_under_way() -> None:
    """Turn by turn if the event loop is there, and one recount at a time."""
    running = Running(FakeDisk())
    turns: list[Callable[[], None]] = []
    for number in range(ROWS_MAX // 5 + 1):
        running.declare(PRIORITY_BASED, f"q.{number}")
    running.declare(ROUND_ROBIN)
    running.publish(COUNT)
    running.queue.lanes[0].position.behind = True
    engine = running.engine
    first_id = running.found.wal.committed_id
    engine.later = turns.append
    engine.forced_out(first_id)
    engine.forced_out(first_id)
    assert 1 == len(turns)
    assert not running.log.reads  # the survey has not seen all
    turns.pop()()
    assert 1 == len(running.log.reads)
    engine.forced_out(first_id)
    running.settle()  # a recount with its correction, and the next survey's first turn

    assert 1 == len(turns)
    turns.pop()()
    running.settle()
    assert ([], COUNT) == (turns, running.queue.unsettled())  # nothing was really deleted
