"""The parts of a queue, and what it counts."""

import pytest

from braidmq.broker.delivery.acknowledgements import Settled
from braidmq.broker.delivery.channels import Peer
from braidmq.broker.delivery.queue import Ledger, Queue, QueueConsumer, View
from braidmq.broker.policy import (
    DROP_NEWEST,
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    ROUND_ROBIN,
    Policy,
    of_policy,
)
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic

TOPIC = Topic("q")


def queue_of(mode: int, *, max_size: int = 0, overflow: int = DROP_NEWEST) -> Queue:
    policy = Policy()
    policy.mode, policy.max_size, policy.overflow = mode, max_size, overflow
    queue = Queue(TOPIC, policy, of_policy(policy, Settings()), 5)
    queue.begin(7)
    return queue


def ledger_of(queue: Queue) -> Ledger:
    assert queue.ledger is not None
    return queue.ledger


def view_of(queue: Queue, *, unsettled: int, in_flight: int) -> View:
    view = View(queue, ledger_of(queue), Settled(7))
    view.unsettled, view.flight().count = unsettled, in_flight
    queue.add_consumer(QueueConsumer(Peer(), queue, view))
    return view


@pytest.mark.parametrize(
    ("mode", "priorities", "keeps_nothing"),
    [
        (ROUND_ROBIN, [-1], None),
        (FAN_OUT_WITH_ACK, [], False),
        (FAN_OUT_WITHOUT_ACK, [], True),
        (PRIORITY_BASED, [0, 1, 2, 3], None),
    ],
)
def test_the_mode_determines_the_lanes(
    mode: int, priorities: list[int], keeps_nothing: bool | None
) -> None:
    """One lane, or one per priority; a fan-out has a ledger instead."""
    queue = queue_of(mode)

    assert priorities == [lane.priority for lane in queue.lanes]
    assert keeps_nothing == (None if queue.ledger is None else queue.ledger.keeps_nothing)
    channels = queue.durable_channels()
    assert len(channels) == max(1, len(priorities))
    assert all(channel.queue is queue and channel.topic is TOPIC for channel in channels)


def test_lane_ids_are_derived_from_the_queues_id() -> None:
    """Progress is recorded per lane; no message can have such an id."""
    queue = queue_of(PRIORITY_BASED)

    assert [(number << 60) + 7 for number in (1, 2, 3, 4)] == [lane.id for lane in queue.lanes]
    assert [7] == [lane.id for lane in queue_of(ROUND_ROBIN).lanes]
    assert 7 == queue.id


def test_a_queue_starts_after_its_own_record() -> None:
    """Messages above its id belong to it, and its ledger reflects that from the start."""
    queue = queue_of(FAN_OUT_WITH_ACK)
    ledger = ledger_of(queue)

    assert (7, 7) == (ledger.position.cursor, ledger.position.tail)
    assert [(0, 7)] == ledger.settled().ranges()


def test_a_message_belongs_to_the_lane_of_its_priority() -> None:
    """Without priorities there is one lane for all."""
    by_priority = queue_of(PRIORITY_BASED)
    plain = queue_of(ROUND_ROBIN)

    assert by_priority.lanes == [by_priority.lane_of(n) for n in range(4)]
    assert [plain.lanes[0]] * 4 == [plain.lane_of(n) for n in range(4)]


def test_waiting_messages_are_neither_settled_nor_in_flight() -> None:
    """Counted over all lanes, including memory-only messages."""
    queue = queue_of(PRIORITY_BASED)
    for lane, (unsettled, in_flight) in zip(
        queue.lanes, [(5, 2), (1, 1), (0, 0), (4, 0)], strict=True
    ):
        lane.unsettled, lane.flight().count = unsettled, in_flight
    queue.lanes[2].add_volatile(Message(TOPIC, 0, b""))

    assert (8, 3) == (queue.waiting(), queue.in_flight_count())


def test_the_slowest_subscriber_determines_how_many_wait_in_a_fan_out() -> None:
    """The number in flight is the sum over all subscribers."""
    queue = queue_of(FAN_OUT_WITH_ACK)
    ledger_of(queue).unsettled = 50
    alone = (queue.waiting(), queue.in_flight_count())
    view_of(queue, unsettled=9, in_flight=2)
    view_of(queue, unsettled=5, in_flight=4)

    assert (50, 0) == alone
    assert (7, 6) == (queue.waiting(), queue.in_flight_count())


def test_a_drop_oldest_fan_out_reports_no_more_than_its_limit() -> None:
    """The excess in the log does not count; memory-only messages are counted on top."""
    queue = queue_of(FAN_OUT_WITH_ACK, max_size=3, overflow=DROP_OLDEST)
    ledger_of(queue).unsettled = 50
    durable = queue.waiting()
    ledger_of(queue).add_volatile(Message(TOPIC, 0, b""))

    assert (3, 4) == (durable, queue.waiting())


def test_the_number_of_waiting_messages_is_never_negative() -> None:
    """Until the log is read, a view may count fewer messages than it has in flight."""
    queue = queue_of(FAN_OUT_WITH_ACK)
    view_of(queue, unsettled=0, in_flight=2)

    assert 0 == queue.waiting()


def test_an_id_that_no_log_can_reach_is_a_programming_error() -> None:
    """The high bits belong to the lanes."""
    queue = Queue(TOPIC, Policy(), of_policy(Policy(), Settings()), 0)
    with pytest.raises(AssertionError):
        queue.begin(1 << 60)
