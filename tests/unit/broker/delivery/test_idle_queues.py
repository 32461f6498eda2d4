"""What an idle queue costs, and what idle queues share without getting in each other's way."""

import gc
import tracemalloc

import pytest

from braidmq.base.build import is_compiled
from braidmq.broker import state
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.channels import Position
from braidmq.broker.delivery.queue import NO_CONSUMERS
from braidmq.broker.policy import (
    DROP_NEWEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    PRIORITY_BASED,
    ROUND_ROBIN,
    Policy,
    SharedRules,
)
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import Drive, peer_of, policy_of

QUEUES = 2000
QUEUE_BYTES_MAX = 2000
MODES = [ROUND_ROBIN, PRIORITY_BASED, FAN_OUT_WITH_ACK, FAN_OUT_WITHOUT_ACK]


def traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("mode", MODES)
def test_an_idle_queue_takes_less_than_two_kilobytes(mode: int) -> None:
    """All that a declaration makes, but the topic: compiled, and interpreted, which is more.

    Compiled also after a restart, with the topic, which a restart makes too. Interpreted every
    position has numbers of its own then.
    """
    drive = Drive()
    topics = [drive.broker.topics.get(f"queue.{number}") for number in range(QUEUES)]
    tracemalloc.start()
    before = traced_bytes()
    for topic in topics:
        assert topic is not None
        drive.broker.queues.declare(topic, policy_of(mode=mode), drive.now_us)
    drive.commit_batch()
    drive.log.records = [b""] * len(drive.log.records)
    each = (traced_bytes() - before) / QUEUES
    _, body = state.snapshot(drive.broker, drive.now_us)
    before = traced_bytes()
    restored = Broker(Settings())
    state.restore(restored, body)
    state.recovered(restored, QUEUES + 1, drive.now_us)
    after_restart = (traced_bytes() - before) / QUEUES
    tracemalloc.stop()
    topic_bytes = _topic_bytes()

    assert QUEUE_BYTES_MAX > each
    assert not is_compiled() or QUEUE_BYTES_MAX > after_restart - topic_bytes


def _topic_bytes() -> float:
    tracemalloc.start()
    broker = Broker(Settings())
    before = traced_bytes()
    for number in range(QUEUES):
        broker.topics.get(f"queue.{number}")
    each = (traced_bytes() - before) / QUEUES
    tracemalloc.stop()
    return each


@pytest.mark.parametrize("mode", MODES)
def test_what_idle_queues_share_stays_empty(mode: int) -> None:
    """Consumers, lines, attempts: a queue gets its own before it adds to one."""
    drive = Drive()
    queue_a = drive.declare("a", policy_of(mode=mode))
    other = drive.declare("b", policy_of(mode=mode))
    consumer = drive.join(queue_a)
    drive.publish("a", b"x")
    drive.commit()
    queue_a.line().append(peer_of("ada"))
    for channel in queue_a.channels():
        channel.position.wait(peer_of("ada"))
        channel.position.know_attempts({7: 2})

    assert [consumer] == queue_a.consumers
    assert ([], [], []) == (other.consumers, other.blocked, other.unsendable)
    for channel in other.channels():
        assert ([], {}) == (channel.position.waiters, channel.position.known_attempts)
    fresh = Position()
    assert ([], [], {}) == (NO_CONSUMERS, fresh.waiters, fresh.known_attempts)
    assert 1 == len(queue_a.take_line())
    assert [] == queue_a.blocked


def test_queues_declared_alike_share_their_rules() -> None:
    """By value; and a queue that comes to hold dead letters does not take the others along."""
    drive = Drive()
    declared = policy_of(max_size=5)
    first = drive.declare("a", declared)
    declared.max_size = 6  # its owner's, not the queue's
    second = drive.declare("b", policy_of(max_size=5))
    other = drive.declare("c", policy_of(max_size=5, overflow=DROP_NEWEST))
    assert 5 == first.policy.max_size
    assert first.policy is second.policy
    assert first.policy is not other.policy
    assert first.rules is second.rules is other.rules
    named = Policy()
    named.dead_letter_name = "a"
    drive.declare("d", named)

    assert (0, 0, False) == (first.size_max, first.rules.attempts_max, first.rules.dead_letters)
    assert {first.rules} == {lane.rules for lane in first.lanes}
    assert (5, 3, True) == (
        second.size_max,
        second.rules.attempts_max,
        second.rules.dead_letters,
    )
    assert ("dlq.a", "a") == (first.letters_name(), drive.queue("d").letters_name())


def test_peers_cannot_fill_the_memory_with_policies() -> None:
    """However many different ones they declare, a bounded number is remembered."""
    shared = SharedRules(Settings())
    policy, rules = shared.policy(Policy()), shared.rules(Policy())
    assert (policy, rules) == (shared.policy(Policy()), shared.rules(Policy()))
    for number in range(256):
        declared = shared.policy(policy_of(max_size=number + 1, max_attempts=number + 4))
        assert (number + 1, number + 4) == (
            declared.max_size,
            shared.rules(declared).attempts_max,
        )

    assert policy is not shared.policy(Policy())
    assert rules is not shared.rules(Policy())
