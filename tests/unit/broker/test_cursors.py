"""Cursors: created, moved and removed; across a full log, a restart and a snapshot."""

from braidmq.broker import records
from braidmq.broker.cursors import Cursor
from tests.unit.broker.drive import Drive

START = 5


def created(drive: Drive, name: str = "night", start: int = START) -> Cursor:
    """Create a cursor and commit it."""
    cursor = drive.broker.cursors.create(name, "ada", start)
    drive.commit()
    return cursor


def positions(drive: Drive) -> dict[str, tuple[str, int, int]]:
    """Return the principal, initial offset and position of each cursor."""
    return {c.name: (c.principal, c.initial, c.position) for c in drive.broker.cursors.all()}


def test_a_cursor_starts_at_the_offset_it_was_created_with() -> None:
    """Its initial offset and its position are the same."""
    drive = Drive()
    cursor = created(drive)

    assert (START, START) == (cursor.initial, cursor.position)
    assert cursor is drive.broker.cursors.find("night")
    assert drive.broker.cursors.find("day") is None
    assert 1 == len(drive.broker.cursors)


def test_a_cursor_moves_forward_only() -> None:
    """A late report changes nothing and costs no record."""
    drive = Drive()
    cursor = created(drive)
    drive.broker.cursors.move(cursor, 9)
    drive.broker.cursors.move(cursor, 7)
    drive.broker.cursors.move(cursor, 9)
    drive.commit()

    assert {"night": ("ada", START, 9)} == positions(drive)
    assert 2 == len(drive.log.records)


def test_cursors_survive_a_restart() -> None:
    """Each has its position and its initial offset; a removed one stays removed."""
    drive = Drive()
    drive.broker.cursors.move(created(drive), 9)
    drive.broker.cursors.remove(created(drive, "gone"))
    drive.commit()
    drive.restart()

    assert {"night": ("ada", START, 9)} == positions(drive)


def test_cursors_survive_in_a_snapshot() -> None:
    """A move after the snapshot survives as well."""
    drive = Drive()
    created(drive, "day")
    drive.broker.cursors.move(created(drive), 9)
    drive.snapshot()
    day = drive.broker.cursors.find("day")
    assert day is not None
    drive.commit()
    drive.broker.cursors.move(day, 6)
    drive.commit()
    drive.restart()

    assert 1 == len(drive.log.snapshots)
    assert {"day": ("ada", START, 6), "night": ("ada", START, 9)} == positions(drive)


def test_a_crash_loses_uncommitted_changes() -> None:
    """No client was told that they had succeeded."""
    drive = Drive()
    cursor = created(drive)
    drive.broker.cursors.move(cursor, 9)
    drive.broker.cursors.create("day", "ada", 1)
    drive.restart()

    assert {"night": ("ada", START, START)} == positions(drive)


def test_retention_needs_what_the_slowest_cursor_needs() -> None:
    """A cursor's position is the first offset that it has not read."""
    drive = Drive()
    drive.publish_many("a", 20)
    night = created(drive, start=4)
    created(drive, "day", start=8)

    assert 4 == drive.broker.needed_id()
    drive.broker.cursors.move(night, 15)
    drive.commit()
    assert 8 == drive.broker.needed_id()
    for cursor in drive.broker.cursors.all():
        drive.broker.cursors.remove(cursor)
    drive.commit()
    assert drive.broker.committed_id + 1 == drive.broker.needed_id()


def test_a_cursor_refused_by_a_full_log_does_not_exist() -> None:
    """Its name is free again."""
    drive = Drive()
    drive.broker.cursors.create("night", "ada", START)
    drive.refuse()

    assert {} == positions(drive)
    assert not drive.broker.wants_commit()


def test_a_cursor_created_and_moved_in_one_refused_batch_does_not_exist() -> None:
    """Its move is not written without it."""
    drive = Drive()
    cursor = drive.broker.cursors.create("night", "ada", START)
    drive.broker.cursors.move(cursor, 9)
    drive.refuse()
    drive.commit()

    assert {} == positions(drive)
    assert [] == drive.log.records


def test_refused_moves_and_removals_are_queued_again() -> None:
    """They let retention free space; only the latest move of each cursor counts."""
    drive = Drive()
    night, gone = created(drive), created(drive, "gone")
    drive.broker.cursors.move(night, 7)
    drive.broker.cursors.move(night, 9)
    drive.broker.cursors.remove(gone)
    drive.refuse()
    drive.commit()
    written = [records.read_cursor(record) for record in drive.log.records[2:]]

    assert [("night", "ada", START, 9, False), ("gone", "ada", START, START, True)] == written
    assert {"night": ("ada", START, 9)} == positions(drive)
    drive.restart()
    assert {"night": ("ada", START, 9)} == positions(drive)


def test_a_name_is_free_when_the_log_refuses_its_removal_and_reuse() -> None:
    """The old cursor is removed as requested; the new one does not exist."""
    drive = Drive()
    drive.broker.cursors.remove(created(drive))
    drive.broker.cursors.create("night", "bob", 6)
    drive.refuse()
    drive.commit()
    drive.restart()

    assert {} == positions(drive)
