"""Cursors: made, moved and removed; what a full log, a restart and a snapshot leave of them."""

from braidmq.broker import records
from braidmq.broker.cursors import Cursor
from tests.unit.broker.drive import Drive

START = 5


def made(drive: Drive, name: str = "night", start: int = START) -> Cursor:
    """Make a cursor, committed."""
    cursor = drive.broker.cursors.create(name, "ada", start)
    drive.commit()
    return cursor


def places(drive: Drive) -> dict[str, tuple[str, int, int]]:
    """Return principal, beginning and position of each cursor."""
    return {c.name: (c.principal, c.initial, c.position) for c in drive.broker.cursors.all()}


def test_a_cursor_begins_where_it_was_made() -> None:
    """Nothing before it was asked for."""
    drive = Drive()
    cursor = made(drive)

    assert (START, START) == (cursor.initial, cursor.position)
    assert cursor is drive.broker.cursors.find("night")
    assert drive.broker.cursors.find("day") is None
    assert 1 == len(drive.broker.cursors)


def test_a_cursor_moves_forward_only() -> None:
    """A report that comes late says nothing new, and costs no record."""
    drive = Drive()
    cursor = made(drive)
    drive.broker.cursors.move(cursor, 9)
    drive.broker.cursors.move(cursor, 7)
    drive.broker.cursors.move(cursor, 9)
    drive.commit()

    assert {"night": ("ada", START, 9)} == places(drive)
    assert 2 == len(drive.log.records)


def test_cursors_survive_a_restart() -> None:
    """With the place they had come to, and the one they began at."""
    drive = Drive()
    drive.broker.cursors.move(made(drive), 9)
    drive.broker.cursors.remove(made(drive, "gone"))
    drive.commit()
    drive.restart()

    assert {"night": ("ada", START, 9)} == places(drive)


def test_cursors_survive_in_a_snapshot() -> None:
    """Also what changed while the snapshot was not yet kept, and after it."""
    drive = Drive()
    made(drive, "day")
    drive.broker.cursors.move(made(drive), 9)
    drive.snapshot()
    day = drive.broker.cursors.find("day")
    assert day is not None
    drive.commit()
    drive.broker.cursors.move(day, 6)
    drive.commit()
    drive.restart()

    assert 1 == len(drive.log.snapshots)
    assert {"day": ("ada", START, 6), "night": ("ada", START, 9)} == places(drive)


def test_what_was_not_committed_is_gone_after_a_crash() -> None:
    """Nobody was told about it."""
    drive = Drive()
    cursor = made(drive)
    drive.broker.cursors.move(cursor, 9)
    drive.broker.cursors.create("day", "ada", 1)
    drive.restart()

    assert {"night": ("ada", START, START)} == places(drive)


def test_retention_needs_what_the_slowest_cursor_needs() -> None:
    """Its position is the first offset that it has not had."""
    drive = Drive()
    drive.publish_many("a", 20)
    night = made(drive, start=4)
    made(drive, "day", start=8)

    assert 4 == drive.broker.needed_id()
    drive.broker.cursors.move(night, 15)
    drive.commit()
    assert 8 == drive.broker.needed_id()
    for cursor in drive.broker.cursors.all():
        drive.broker.cursors.remove(cursor)
    drive.commit()
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


def test_a_cursor_that_a_full_log_refused_was_never_made() -> None:
    """Whoever asked is told; the name is free."""
    drive = Drive()
    drive.broker.cursors.create("night", "ada", START)
    drive.refuse()

    assert {} == places(drive)
    assert not drive.broker.wants_commit()


def test_a_cursor_made_and_moved_in_one_refused_batch_was_never_made() -> None:
    """Its move is no news without it."""
    drive = Drive()
    cursor = drive.broker.cursors.create("night", "ada", START)
    drive.broker.cursors.move(cursor, 9)
    drive.refuse()
    drive.commit()

    assert {} == places(drive)
    assert [] == drive.log.records


def test_moves_and_removals_that_a_full_log_refused_are_queued_anew() -> None:
    """They give room; only the newest move of each cursor counts."""
    drive = Drive()
    night, gone = made(drive), made(drive, "gone")
    drive.broker.cursors.move(night, 7)
    drive.broker.cursors.move(night, 9)
    drive.broker.cursors.remove(gone)
    drive.refuse()
    drive.commit()
    told = [records.read_cursor(record) for record in drive.log.records[2:]]

    assert [("night", "ada", START, 9, False), ("gone", "ada", START, START, True)] == told
    assert {"night": ("ada", START, 9)} == places(drive)
    drive.restart()
    assert {"night": ("ada", START, 9)} == places(drive)


def test_a_name_that_was_given_up_and_taken_anew_is_free_when_the_log_refuses_both() -> None:
    """The old cursor is removed as it was told; the new one was never made."""
    drive = Drive()
    drive.broker.cursors.remove(made(drive))
    drive.broker.cursors.create("night", "bob", 6)
    drive.refuse()
    drive.commit()
    drive.restart()

    assert {} == places(drive)
