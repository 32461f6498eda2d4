"""Fan-out without acknowledgement: once to each connected subscriber, durable or not."""

from braidmq.broker.policy import (
    DROP_OLDEST,
    FAN_OUT_WITH_ACK,
    FAN_OUT_WITHOUT_ACK,
)
from tests.unit.broker.drive import ROOM_BYTES, Drive, S, policy_of

ACK_TIMEOUT_US = 32 * S


def test_each_subscriber_gets_each_message_once(drive: Drive) -> None:
    """Nothing waits, nothing is in flight, nothing is redelivered."""
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITHOUT_ACK))
    ada, bob = drive.join(queue, 1), drive.join(queue, 1)
    ids = drive.publish_many("q", 3)
    seen = drive.pushed_ids(ada), drive.pushed_ids(bob)
    drive.advance(10 * ACK_TIMEOUT_US)

    assert (ids, ids) == seen
    assert ([], 0, 0) == (drive.pushed_ids(ada), queue.waiting(), queue.in_flight_count())


def test_undelivered_messages_are_dropped_and_counted(drive: Drive) -> None:
    """Without a subscriber, with a full buffer, or after pushing has stopped."""
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITHOUT_ACK))
    drive.publish_many("q", 1)
    full, done, ada = drive.join(queue), drive.join(queue), drive.join(queue)
    full.peer.room_bytes = 0
    drive.broker.stop_pushing(done.peer)
    drive.publish_many("q", 1)
    full.peer.room_bytes = ROOM_BYTES
    drive.broker.resume(full.peer, drive.now_us)

    assert ([], [], [3]) == tuple(drive.pushed_ids(c) for c in (full, done, ada))
    assert (1, 2) == (drive.broker.stats.dropped.unheard, drive.broker.stats.dropped.overflow)


def test_nothing_is_redelivered_after_a_restart(drive: Drive) -> None:
    """Nor does an uncommitted message in a snapshot count as waiting."""
    drive.declare("q", policy_of(mode=FAN_OUT_WITHOUT_ACK, max_size=1))
    drive.publish_many("q", 2)
    drive.publish("q")
    drive.snapshot()
    drive.commit()
    drive.publish_many("q", 1)
    drive.restart()

    assert 0 == drive.queue("q").waiting()
    assert [] == drive.pushed_ids(drive.join(drive.queue("q")))
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


# Memory-only messages.


def test_memory_only_messages_wait_for_the_first_subscriber(drive: Drive) -> None:
    """Later messages go to every connected subscriber, once."""
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITH_ACK, durable=False))
    drive.publish("q", b"1")
    waiting = queue.waiting()
    ada = drive.join(queue)
    bob = drive.join(queue)
    drive.publish("q", b"2")
    received = [[d.message.payload for d in drive.pushed(c)] for c in (ada, bob)]

    assert (1, 0) == (waiting, queue.waiting())
    assert [[b"1", b"2"], [b"2"]] == received
    assert 0 == drive.broker.dispatch.windows.held_bytes


def test_waiting_memory_only_messages_are_bounded(drive: Drive) -> None:
    """DropOldest keeps the newest."""
    queue = drive.declare(
        "q", policy_of(mode=FAN_OUT_WITH_ACK, durable=False, max_size=2, overflow=DROP_OLDEST)
    )
    for number in range(5):
        drive.publish("q", b"%d" % number)
    waiting = queue.waiting()
    ada = drive.join(queue)

    assert 2 == waiting
    assert [b"3", b"4"] == [d.message.payload for d in drive.pushed(ada)]


def test_a_subscriber_without_permission_gets_nothing_until_it_has_it(drive: Drive) -> None:
    """The broker checks again only when the permissions change."""
    queue = drive.declare("q", policy_of(mode=FAN_OUT_WITHOUT_ACK))
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
