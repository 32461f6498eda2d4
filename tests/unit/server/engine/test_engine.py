"""The engine's turns: batches, failures, snapshots and the drain."""

from braidmq.base.errors import LogFullError, LogPoisonedError
from braidmq.broker.delivery.queues import Queue
from braidmq.broker.policy import Policy
from braidmq.server.engine.engine import SHUTTING_DOWN
from tests.integration.blip.peer import ack, nack, parse, ping, poll, pong, publish, subscribe
from tests.unit.server.by_hand import Hand


def test_while_a_batch_is_written_the_next_one_accumulates() -> None:
    """One append at a time; what came meanwhile is one batch, and order is kept."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    connection.receive(publish(2, "t", b"b"))
    connection.receive(publish(3, "t", b"c"))
    assert [1] == [len(batch) for batch in hand.log.batches]
    hand.commit()

    assert [1, 2] == [len(batch) for batch in hand.log.batches]
    assert [b"b", b"c"] == [body[-1:] for body in hand.log.batches[1]]


def test_all_of_one_read_is_one_batch() -> None:
    """A thousand pipelined messages cost one commit."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(b"".join(publish(n, "t", b"x") for n in range(1000)))

    assert [1000] == [len(batch) for batch in hand.log.batches]


def test_a_poisoned_log_ends_everything() -> None:
    """Publishers are told 500, the daemon is told once, and nothing is appended again."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2))
    hand.fail(LogPoisonedError("fdatasync", "Input/output error"))
    text = "durable publish failed: log poisoned: fdatasync failed: Input/output error"
    assert wire.take()[0] == parse(nack(1, 500, text))[0]
    connection.receive(publish(3, "t", b"b"))
    hand.fail(LogPoisonedError("write", "again"))

    assert wire.take() == [parse(nack(3, 500, text))[0]]
    assert [74] == [error.exit_code for error in hand.failures]
    assert 1 == len(hand.log.batches)


def test_a_log_without_even_a_reserve_waits_for_room() -> None:
    """Full twice: nothing is tried until somebody has looked for room."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(subscribe(1, "t"))
    hand.commit()
    connection.receive(publish(2, "t", b"a"))
    hand.commit()
    connection.receive(poll(3, 1) + ack(2, 1) + ping(4))
    hand.fail(LogFullError())
    hand.fail(LogFullError())
    tried = len(hand.log.batches)
    connection.receive(ping(5))
    assert tried == len(hand.log.batches)
    hand.engine.look_for_room()

    assert 1 == hand.log.room_asked
    assert tried + 1 == len(hand.log.batches)
    wire.take()
    hand.commit()
    assert [parse(pong(4))[0], parse(pong(5))[0]] == wire.take()


def test_a_log_that_is_not_full_is_not_asked_for_room() -> None:
    """The chore costs nothing when all is well."""
    hand = Hand()
    hand.engine.look_for_room()

    assert 0 == hand.log.room_asked


def test_a_snapshot_is_kept_once_all_of_it_is_committed() -> None:
    """It says what all records up to its id amount to, so they must be there first."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    hand.engine.take_snapshot()
    assert [] == hand.log.saved
    hand.commit()

    assert [1] == hand.log.saved


def test_a_refused_batch_takes_its_snapshot_with_it() -> None:
    """A snapshot that counts on refused records would be a lie."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    hand.engine.take_snapshot()
    hand.fail(LogFullError())
    hand.engine.room_made()
    connection.receive(publish(2, "t", b"b"))
    hand.commit()

    assert [] == hand.log.saved


def test_draining_outlives_a_full_disk() -> None:
    """Room on the disk does not open a broker that is shutting down."""
    hand = Hand()
    connection, wire = hand.connect()
    hand.engine.drain()
    hand.engine.room_made()
    connection.receive(publish(1, "t", b"a"))

    text = f"durable publish failed: {SHUTTING_DOWN}"
    assert wire.take() == [parse(nack(1, 500, text))[0]]


def test_quiet_means_nothing_in_flight_and_nothing_uncommitted() -> None:
    """What the drain waits for, and no more."""
    hand = Hand()
    connection, _ = hand.connect()
    assert hand.engine.is_quiet()
    connection.receive(subscribe(1, "t"))
    assert not hand.engine.is_quiet()
    hand.commit()
    connection.receive(publish(2, "t", b"a"))
    hand.commit()
    assert hand.engine.is_quiet()
    connection.receive(poll(3, 1))
    assert not hand.engine.is_quiet()
    connection.receive(ack(2, 1) + ping(4))
    assert not hand.engine.is_quiet()
    hand.commit()

    assert hand.engine.is_quiet()


# Whoever waits for one record.


def declared(hand: Hand, name: str = "q") -> Queue:
    """Declare a queue whose record is not committed yet."""
    broker = hand.engine.broker
    topic = broker.topics.get(name)
    assert topic is not None
    return broker.queues.declare(topic, Policy(), hand.now_us)


def test_whoever_waits_for_a_record_is_told_when_it_is_committed() -> None:
    """Not before, once, and only of its own."""
    hand = Hand()
    told: list[str] = []
    other: list[str] = []
    hand.engine.when_committed(declared(hand).id, told.append)
    hand.engine.end_turn()
    hand.engine.when_committed(declared(hand, "r").id, other.append)
    assert [] == told
    hand.commit()
    assert ([""], []) == (told, other)
    hand.commit()

    assert ([""], [""]) == (told, other)


def test_what_is_committed_already_is_told_at_once() -> None:
    """There is nothing to wait for."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    told: list[str] = []
    hand.engine.when_committed(queue.id, told.append)

    assert [""] == told


def test_a_full_log_is_told_as_the_reason() -> None:
    """What is not queued anew will never be committed."""
    hand = Hand()
    told: list[str] = []
    hand.engine.when_committed(declared(hand).id, told.append)
    hand.engine.end_turn()
    hand.fail(LogFullError())

    assert ["no space left on the log's disk"] == told


def test_what_is_queued_anew_is_waited_for_under_its_new_id() -> None:
    """The end of a queue may use the log's reserve, and is durable then."""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    told: list[str] = []
    engine = hand.engine
    engine.when_committed(engine.broker.queues.delete(queue), told.append, lasts=True)
    engine.end_turn()
    hand.fail(LogFullError())
    assert ([], True) == (told, hand.log.urgent[-1])
    hand.commit()

    assert [""] == told


def test_a_log_without_even_a_reserve_keeps_nobody_waiting() -> None:
    """Full twice: who knows when there will be room?"""
    hand = Hand()
    queue = declared(hand)
    hand.engine.end_turn()
    hand.commit()
    told: list[str] = []
    engine = hand.engine
    engine.when_committed(engine.broker.queues.delete(queue), told.append, lasts=True)
    engine.end_turn()
    hand.fail(LogFullError())
    hand.fail(LogFullError())

    assert ["no space left on the log's disk"] == told


def test_a_poisoned_log_is_told_to_everybody() -> None:
    """To those who wait, whatever for, and to those who ask later."""
    hand = Hand()
    told: list[str] = []
    queue = declared(hand)
    hand.engine.when_committed(queue.id, told.append, lasts=True)
    hand.engine.end_turn()
    hand.fail(LogPoisonedError("write", "Input/output error"))
    hand.engine.when_committed(queue.id, told.append)

    assert 2 * ["log poisoned: write failed: Input/output error"] == told
