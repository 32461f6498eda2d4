"""Competing consumers of a queue: which one gets a message, and what leaving means."""

import pytest

from braidmq.broker.policy import PRIORITY_BASED
from braidmq.broker.settings import Settings
from tests.unit.broker.drive import ROOM_BYTES, Drive, S, peer_of, policy_of

ACK_TIMEOUT_US = 32 * S  # with the first backoff


def test_messages_are_spread_over_the_consumers(drive: Drive) -> None:
    """Each goes to the consumer that holds the fewest; among equals, in turn."""
    queue = drive.declare("q")
    consumers = [drive.join(queue) for _ in range(3)]
    drive.publish_many("q", 7)

    assert [[2, 5, 8], [3, 6], [4, 7]] == drive.pushed_to(*consumers)


def test_the_consumer_that_holds_the_fewest_is_next(drive: Drive) -> None:
    """A consumer that acknowledges quickly gets more."""
    queue = drive.declare("q")
    quick, slow = drive.join(queue), drive.join(queue)
    drive.publish_many("q", 2)
    (entry,) = drive.taken(quick)
    for _ in range(10):
        drive.broker.queues.acknowledge(entry, drive.now_us)
        drive.publish_many("q", 1)
        (entry,) = drive.taken(quick)

    assert (1, 1) == (slow.held, quick.held)


def test_shares_are_fair(drive: Drive) -> None:
    """Among consumers that never acknowledge, none holds two more than another."""
    queue = drive.declare("q")
    consumers = [drive.join(queue) for _ in range(7)]
    drive.publish_many("q", 100)

    assert {14, 15} == {consumer.held for consumer in consumers}


def test_prefetch_limits_what_a_consumer_holds(drive: Drive) -> None:
    """Joining again changes it, and the backlog flows at once."""
    queue = drive.declare("q")
    drive.publish_many("q", 9)
    consumer = drive.join(queue, 2)
    before = consumer.held
    again = drive.join(queue, 5, peer=consumer.peer)

    assert again is consumer
    assert (2, 5) == (before, consumer.held)
    assert (4, 5) == (queue.waiting(), queue.in_flight_count())
    assert [consumer] == queue.consumers


def test_a_consumer_without_room_does_not_delay_others(drive: Drive) -> None:
    """Its output buffer is full; it gets messages again once there is room."""
    queue = drive.declare("q")
    slow, quick = drive.join(queue), drive.join(queue)
    slow.peer.room_bytes = 0
    drive.publish_many("q", 4)
    while_full = drive.pushed_to(slow, quick)
    slow.peer.room_bytes = ROOM_BYTES
    drive.broker.resume(slow.peer, drive.now_us)
    drive.publish_many("q", 1)

    assert [[], [2, 3, 4, 5]] == while_full
    assert [[6], []] == drive.pushed_to(slow, quick)


def test_a_consumer_that_holds_many_bytes_does_not_delay_others() -> None:
    """Bytes in flight are bounded, but an idle consumer always gets one message."""
    drive = Drive(Settings(window_bytes=100))
    queue = drive.declare("q")
    hoarder = drive.join(queue)
    for _ in range(4):
        drive.publish("q", bytes(60))
    drive.commit()
    other = drive.join(queue)

    assert [[2, 3], [4]] == drive.pushed_to(hoarder, other)
    assert 1 == queue.waiting()


def test_permissions_are_checked_before_each_delivery(drive: Drive) -> None:
    """A consumer that may no longer subscribe gets nothing more; the others get its share."""
    queue = drive.declare("q")
    ada, bob = drive.join(queue), drive.join(queue, name="bob")
    drive.publish_many("q", 2)
    principal = ada.peer.principal
    assert principal is not None
    principal.subscribe = []
    principal.version += 1
    drive.publish_many("q", 3)

    assert [[2], [3, 4, 5, 6]] == drive.pushed_to(ada, bob)


def test_thousands_of_consumers_can_lose_their_permission_at_once(drive: Drive) -> None:
    """The broker does not recurse once per consumer."""
    queue = drive.declare("q")
    peers = [peer_of("ada") for _ in range(2000)]
    for peer in peers:
        assert peer.principal is not None
        peer.principal.subscribe = []
        drive.broker.queues.join(peer, queue, 1)
    drive.publish_many("q", 1)

    assert 1 == queue.waiting()


def test_memory_only_messages_go_to_one_consumer_without_acknowledgement() -> None:
    """A queue that is not durable writes no records, and is empty after a restart."""
    drive = Drive()
    queue = drive.declare("q", policy_of(durable=False))
    records = len(drive.log.records)
    drive.publish("q", b"1")
    drive.publish("q", b"2")
    waiting = queue.waiting()
    ada, bob = drive.join(queue), drive.join(queue)
    drive.publish("q", b"3")
    drive.publish("q", b"4")
    received = [[d.message.payload for d in drive.pushed(c)] for c in (ada, bob)]
    drive.restart()

    assert (2, records) == (waiting, len(drive.log.records))
    assert [[b"1", b"2", b"3"], [b"4"]] == received
    assert (0, 0) == (drive.queue("q").waiting(), queue.in_flight_count())


def test_a_memory_only_message_keeps_its_place_among_durable_ones(drive: Drive) -> None:
    """They are delivered in order of arrival."""
    queue = drive.declare("q")
    consumer = drive.join(queue, 1)
    drive.publish_many("q", 2)
    drive.publish("q", b"memory", qos=0)
    waiting = queue.waiting()
    (entry,) = drive.taken(consumer)
    drive.broker.queues.acknowledge(entry, drive.now_us)
    (second,) = drive.taken(consumer)
    drive.broker.queues.acknowledge(second, drive.now_us)

    assert 2 == waiting
    assert [b"memory"] == [d.message.payload for d in drive.pushed(consumer)]


# Consumers that leave.


@pytest.mark.parametrize(("counted", "attempts"), [(False, 1), (True, 2)])
def test_a_leaving_consumers_messages_go_to_another(
    drive: Drive, attempts: int, *, counted: bool
) -> None:
    """At once; a lost connection counts as an attempt, an Unsubscribe does not."""
    queue = drive.declare("q")
    leaver = drive.join(queue)
    drive.publish_many("q", 2)
    drive.pushed(leaver)
    other = drive.join(queue)
    drive.leave(leaver, counted=counted)
    entries = drive.taken(other)

    assert [(2, attempts), (3, attempts)] == [(e.id, e.attempts) for e in entries]
    assert 0 == leaver.held


def test_an_uncounted_attempt_does_not_count_after_a_restart(drive: Drive) -> None:
    """A later record corrects that of the delivery."""
    queue = drive.declare("q", policy_of(max_attempts=1))
    drive.publish_many("q", 1)
    consumer = drive.join(queue)
    drive.commit()
    drive.broker.full_barrier()
    drive.commit()
    drive.leave(consumer)
    drive.broker.full_barrier()
    drive.commit()
    drive.restart()

    assert [(2, 1)] == [(e.id, e.attempts) for e in drive.taken(drive.join(drive.queue("q")))]


def test_leaving_a_deleted_queue_does_no_harm(drive: Drive) -> None:
    """It was deleted just before its consumer left."""
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.publish_many("q", 1)
    drive.broker.queues.delete(queue)
    drive.leave(consumer, counted=True)

    assert (0, 0) == (consumer.held, drive.broker.in_flight_count())


def test_a_lost_connection_leaves_every_queue(drive: Drive) -> None:
    """The messages it held in each of them are returned."""
    queues = [drive.declare("q"), drive.declare("r", policy_of(mode=PRIORITY_BASED))]
    peer = peer_of("ada")
    consumers = [drive.join(queue, peer=peer) for queue in queues]
    drive.publish_many("q", 1)
    drive.publish_many("r", 2)
    drive.broker.detach(peer, drive.now_us)

    assert [[], []] == [queue.consumers for queue in queues]
    assert [0, 0] == [consumer.held for consumer in consumers]
    assert [1, 2] == [queue.waiting() for queue in queues]


def test_a_stopping_broker_delivers_nothing(drive: Drive) -> None:
    """Messages in flight may still be acknowledged."""
    queue = drive.declare("q")
    consumer = drive.join(queue, 1)
    drive.publish_many("q", 2)
    (entry,) = drive.taken(consumer)
    drive.broker.stop_delivering()
    drive.broker.queues.acknowledge(entry, drive.now_us)

    assert ([], 1) == (drive.pushed_ids(consumer), queue.waiting())


def test_a_peer_that_has_stopped_sending_gets_nothing_more(drive: Drive) -> None:
    """It could not acknowledge a delivery."""
    queue = drive.declare("q")
    consumer = drive.join(queue)
    drive.broker.stop_pushing(consumer.peer)
    drive.publish_many("q", 1)

    assert ([], 1) == (drive.pushed_ids(consumer), queue.waiting())
