"""Lanes, ledgers and views: what each of them counts."""

from braidmq.broker.delivery.acknowledgements import Progress, Settled
from braidmq.broker.delivery.channels import NEVER, Entry
from braidmq.broker.delivery.queue import Lane, Ledger, Queue, View
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED, Policy, of_policy
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message, Topic


def queue_of(mode: int) -> Queue:
    policy = Policy()
    policy.mode = mode
    queue = Queue(Topic("q"), policy, of_policy(policy, Settings()), 0)
    queue.begin(1)
    return queue


def entry_of(channel: Lane | View, message_id: int) -> Entry:
    message = Message(channel.topic, 1, b"")
    message.id = message_id
    return Entry(channel, message, message_id - 1)


def fan_out() -> tuple[Ledger, View, View]:
    queue = queue_of(FAN_OUT_WITH_ACK)
    assert queue.ledger is not None
    queue.ledger.unsettled = 2
    views = [View(queue, queue.ledger, Settled(1)) for _ in range(2)]
    for view in views:
        view.unsettled = 2
    return queue.ledger, views[0], views[1]


def test_other_priorities_do_not_put_a_lane_behind() -> None:
    """Its newest message is the newest of its own priority."""
    lane = queue_of(PRIORITY_BASED).lanes[2]
    lane.topic.last_id = 50
    lane.last_id = 7

    assert 7 == lane.newest_id()


def test_a_lane_counts_settled_and_dead_lettered_messages() -> None:
    """It undoes the count when the log refuses the dead letter."""
    lane = queue_of(PRIORITY_BASED).lanes[0]
    lane.unsettled = 3
    first = lane.settle(entry_of(lane, 2))
    second = lane.settle(entry_of(lane, 3))
    undone = lane.settle_by_letter(entry_of(lane, 4))
    settled = lane.unsettled
    lane.unsettle()

    assert (True, False, False) == (first, second, undone)
    assert (0, 1) == (settled, lane.unsettled)
    assert [(1, 3)] == lane.made_progress().ranges


def test_a_message_of_a_fan_out_is_settled_once() -> None:
    """By whichever view is first; the ledger records it."""
    ledger, ada, bob = fan_out()
    first = ada.settle(entry_of(ada, 2))
    again = bob.settle(entry_of(bob, 2))

    assert (True, False) == (first, again)
    assert (1, 1, 1) == (ledger.unsettled, ada.unsettled, bob.unsettled)
    assert (1, [(1, 2)]) == (
        ledger.made_progress().settled_count,
        ledger.made_progress().ranges,
    )
    assert ada.journal is ledger


def test_an_acknowledgement_outlives_the_dead_letter_of_another_view() -> None:
    """The message stays settled even if the log refuses the letter."""
    ledger, ada, bob = fan_out()
    dead_lettered = ada.settle_by_letter(entry_of(ada, 2))
    burying = set(ledger.burying)
    bob.settle(entry_of(bob, 2))

    assert (True, {2}, set()) == (dead_lettered, burying, ledger.burying)
    assert not bob.settle_by_letter(entry_of(bob, 2))


def test_a_view_counts_only_known_attempts() -> None:
    """A lane assumes one for every message below its last delivery."""
    _, ada, _ = fan_out()
    ada.position.known_attempts = {5: 2}
    lane = queue_of(PRIORITY_BASED).lanes[0]

    assert [NEVER, 2, NEVER] == [ada.attempts_before(i) for i in (4, 5, 5)]
    assert 1 == lane.attempts_before(4)


def test_a_letter_and_an_acknowledgement_of_one_message_count_once_at_a_restart() -> None:
    """The dead letter's record came first, then the acknowledgement's."""
    ledger, _, _ = fan_out()
    made = Progress()
    made.settle(1, 2)
    ledger.replay_letter(1, 2)
    ledger.replay_progress(made)
    ledger.topic.last_id = 3
    ledger.recover(0)

    assert (1, set()) == (ledger.unsettled, ledger.burying)
    assert (2, False) == (ledger.position.cursor, ledger.position.behind)
    assert [(0, 2)] == ledger.settled_ranges(9)


def test_a_ledger_with_nothing_open_does_not_hold_the_log_back() -> None:
    """Everything committed counts as settled."""
    ledger, _, _ = fan_out()
    ledger.unsettled = 0

    assert [(0, 900)] == ledger.settled_ranges(900)
