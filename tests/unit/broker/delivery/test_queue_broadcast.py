"""Fan-out that needs no acknowledgement: to who is there, once; durable or in memory only."""

import pytest

from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
    Policy,
)
from tests.unit.broker.drive import ROOM_BYTES, Drive, S

ACK_TIMEOUT_US = 32 * S


def policy_of(mode: int = FAN_OUT_WITH_ACK, **given: int | bool) -> Policy:
    policy = Policy()
    policy.mode = mode
    for name, value in given.items():
        setattr(policy, name, value)
    return policy


@pytest.fixture
def drive() -> Drive:
    return Drive()


def test_without_acknowledgement_each_gets_it_once(drive: Drive) -> None:
    """Nothing waits, nothing is in flight, nothing comes back."""
    queue = drive.declare("q", policy_of(FAN_OUT_WITHOUT_ACK))
    ada, bob = drive.join(queue, 1), drive.join(queue, 1)
    ids = drive.publish_many("q", 3)
    seen = drive.pushed_ids(ada), drive.pushed_ids(bob)
    drive.advance(10 * ACK_TIMEOUT_US)

    assert (ids, ids) == seen
    assert ([], 0, 0) == (drive.pushed_ids(ada), queue.waiting(), queue.in_flight_count())


def test_without_acknowledgement_what_nobody_hears_is_dropped_and_counted(drive: Drive) -> None:
    """Without a subscriber, into a full buffer, or to who may not have it any more."""
    queue = drive.declare("q", policy_of(FAN_OUT_WITHOUT_ACK))
    drive.publish_many("q", 1)
    full, done, ada = drive.join(queue), drive.join(queue), drive.join(queue)
    full.peer.room_bytes = 0
    drive.broker.stop_pushing(done.peer)
    drive.publish_many("q", 1)
    full.peer.room_bytes = ROOM_BYTES
    drive.broker.resume(full.peer, drive.now_us)

    assert ([], [], [3]) == tuple(drive.pushed_ids(c) for c in (full, done, ada))
    assert (1, 2) == (drive.broker.stats.dropped.unheard, drive.broker.stats.dropped.overflow)


def test_without_acknowledgement_nothing_comes_back_after_a_restart(drive: Drive) -> None:
    """Nor is anything counted as waiting that was on its way when a snapshot was taken."""
    drive.declare("q", policy_of(FAN_OUT_WITHOUT_ACK, max_size=1))
    drive.publish_many("q", 2)
    drive.publish("q")
    drive.snapshot()
    drive.commit()
    drive.publish_many("q", 1)
    drive.restart()

    assert 0 == drive.queue("q").waiting()
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


# In memory only.


def test_memory_only_messages_wait_for_the_first_subscriber(drive: Drive) -> None:
    """All who are there get each of them, once."""
    queue = drive.declare("q", policy_of(durable=False))
    drive.publish("q", b"1")
    waiting = queue.waiting()
    ada = drive.join(queue)
    bob = drive.join(queue)
    drive.publish("q", b"2")
    given = [[d.message.payload for d in drive.pushed(c)] for c in (ada, bob)]

    assert (1, 0) == (waiting, queue.waiting())
    assert [[b"1", b"2"], [b"2"]] == given
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_memory_only_messages_that_nobody_hears_are_bounded_too(drive: Drive) -> None:
    """DropOldest keeps the newest."""
    queue = drive.declare("q", policy_of(durable=False, max_size=2, overflow=DROP_OLDEST))
    for number in range(5):
        drive.publish("q", b"%d" % number)
    waiting = queue.waiting()
    ada = drive.join(queue)

    assert 2 == waiting
    assert [b"3", b"4"] == [d.message.payload for d in drive.pushed(ada)]


def test_who_may_not_have_it_hears_nothing_until_it_may(drive: Drive) -> None:
    """Permissions change meanwhile, and each change is looked at once."""
    queue = drive.declare("q", policy_of(FAN_OUT_WITHOUT_ACK))
    ada = drive.join(queue)
    principal = ada.peer.principal
    assert principal is not None
    heard: list[int] = []
    for allowed in ([], ["q"]):
        principal.subscribe = allowed
        principal.version += 1
        for _ in range(2):
            drive.publish_many("q", 1)
            heard.append(len(drive.pushed(ada)))

    assert [0, 0, 1, 1] == heard
