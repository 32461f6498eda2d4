"""Turns of the engine: batches, failures, snapshots and the drain."""

import pytest

from braidmq.base.errors import LogFullError, LogPoisonedError
from braidmq.broker.admission import UNCOMMITTED_BYTES_MAX
from braidmq.broker.settings import Settings
from braidmq.server.engine.requests import SHUTTING_DOWN
from tests.integration.blip.peer import ack, nack, ping, poll, pong, publish, subscribe
from tests.unit.server.by_hand import Hand, frames


def test_while_a_batch_is_written_the_next_one_accumulates() -> None:
    """One append at a time; records that arrive meanwhile become one batch, in order."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    connection.receive(publish(2, "t", b"b"))
    connection.receive(publish(3, "t", b"c"))
    assert [1] == [len(batch) for batch in hand.log.batches]
    hand.commit()

    assert [1, 2] == [len(batch) for batch in hand.log.batches]
    assert [b"b", b"c"] == [body[-1:] for body in hand.log.batches[1]]


def test_all_messages_of_one_read_are_one_batch() -> None:
    """A thousand pipelined messages cost one commit."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(b"".join(publish(n, "t", b"x") for n in range(1000)))

    assert [1000] == [len(batch) for batch in hand.log.batches]


def test_a_poisoned_log_refuses_every_publish() -> None:
    """Publishers get a 500, the daemon is told once, and nothing is appended again."""
    hand = Hand()
    connection, wire = hand.connect()
    connection.receive(publish(1, "t", b"a") + ping(2))
    hand.fail(LogPoisonedError("fdatasync", "Input/output error"))
    text = "durable publish failed: log poisoned: fdatasync failed: Input/output error"
    assert wire.take()[:1] == frames(nack(1, 500, text))
    connection.receive(publish(3, "t", b"b"))
    hand.fail(LogPoisonedError("write", "again"))

    assert wire.take() == frames(nack(3, 500, text))
    assert [74] == [error.exit_code for error in hand.failures]
    assert 1 == len(hand.log.batches)


def test_a_log_without_even_a_reserve_waits_for_room() -> None:
    """Full twice: the engine appends nothing until it has looked for room."""
    hand = Hand()
    connection, wire = hand.subscriber()
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
    assert frames(pong(4), pong(5)) == wire.take()


def test_a_log_that_is_not_full_is_not_asked_for_room() -> None:
    """The chore costs nothing while all is well."""
    hand = Hand()
    hand.engine.look_for_room()

    assert 0 == hand.log.room_asked


def test_a_snapshot_is_saved_once_all_of_it_is_committed() -> None:
    """It sums up all records up to its id, so they must be in the log first."""
    hand = Hand()
    connection, _ = hand.connect()
    connection.receive(publish(1, "t", b"a"))
    hand.engine.take_snapshot()
    assert [] == hand.log.saved
    hand.commit()

    assert [1] == hand.log.saved


def test_a_snapshot_of_a_refused_batch_is_discarded() -> None:
    """It would contain records that the log never took."""
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
    """Room on the disk does not reopen a broker that is shutting down."""
    hand = Hand()
    connection, wire = hand.connect()
    hand.engine.drain()
    hand.engine.room_made()
    connection.receive(publish(1, "t", b"a"))

    text = f"durable publish failed: {SHUTTING_DOWN}"
    assert wire.take() == frames(nack(1, 500, text))


def test_quiet_means_nothing_in_flight_and_nothing_uncommitted() -> None:
    """The drain waits for this, and for nothing more."""
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


@pytest.mark.parametrize("memory_bytes", [1, UNCOMMITTED_BYTES_MAX, 10 * UNCOMMITTED_BYTES_MAX])
def test_uncommitted_bytes_stay_within_the_memory_budget(memory_bytes: int) -> None:
    """A budget below the usual limit becomes the limit."""
    engine = Hand(Settings(memory_bytes=memory_bytes)).engine

    assert min(memory_bytes, UNCOMMITTED_BYTES_MAX) == engine.uncommitted_bytes_max
