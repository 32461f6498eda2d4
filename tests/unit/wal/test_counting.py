"""Counting messages by the index."""

import errno
from collections.abc import Callable

import pytest

from braidmq.base.errors import LogScarceError
from braidmq.testing.disk import FakeDisk
from braidmq.wal.counting import Count, Tally
from braidmq.wal.wal import Wal
from tests.unit.wal.bodies import FIRST_INDEX, message, note, open_log, write


def filled() -> tuple[FakeDisk, Wal]:
    """Return a log with messages of two topics by turns, and a note after each ten."""
    disk = FakeDisk()
    wal = open_log(disk)
    for number in range(12):
        bodies = [
            message(b"even" if i % 2 else b"odd", bytes(90), priority=(number + i) % 3)
            for i in range(10)
        ]
        write(wal, [*bodies, note(b"n")])
    assert len(wal.segments()) > 3
    return disk, wal


def counted(wal: Wal, *tallies: Tally, rows_max: int = 10**6) -> list[int]:
    """Return what each of *tallies* finds, after as many slices as it takes."""
    count = Count(list(tallies))
    while not wal.count(count, rows_max):
        pass
    return [tally.count for tally in tallies]


RANGES: dict[str, tuple[list[tuple[int, int]], Callable[[int], bool]]] = {
    "everything": ([(1, 999)], lambda _: True),
    "nothing": ([], lambda _: False),
    "one id": ([(2, 2)], lambda i: i == 2),
    "a few": (
        [(5, 40), (60, 61), (130, 400)],
        lambda i: 5 <= i <= 40 or 60 <= i <= 61 or i > 129,
    ),
}


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("priority", [-1, 0, 2])
def test_messages_are_counted(name: str, priority: int) -> None:
    """Those of the topic and the priority in any of the ranges, over all segments."""
    _, wal = filled()
    ranges, is_in = RANGES[name]
    expected = 0
    for number in range(12):
        for i in range(10):
            is_wanted = i % 2 == 1 and priority in {-1, (number + i) % 3}
            expected += is_wanted and is_in(number * 11 + i + 1)

    even = Tally(b"even", ranges, priority=priority)
    assert [expected, 0] == counted(wal, even, Tally(b"unknown", ranges))
    again = Tally(b"even", ranges, priority=priority)
    assert [expected] == counted(wal, again, rows_max=1)


def test_one_pass_serves_all() -> None:
    """Each row is looked at once, however many topics, priorities and ranges are counted."""
    _, wal = filled()
    alone = Count([Tally(b"even", [(1, 132)])])
    assert wal.count(alone, 10**6)
    many = Count(
        [
            Tally(topic, [(first, 132)], priority=priority)
            for topic in (b"even", b"odd", *(b"%d" % i for i in range(500)))
            for priority in (-1, 0, 1, 2)
            for first in (1, 60)
        ]
    )
    assert wal.count(many, 10**6)

    assert 132 == alone.rows == many.rows
    assert (
        60 == sum(t.count for t in many.tallies if t.topic == b"odd" and t.priority == -1) - 33
    )


def test_a_pass_goes_on_where_it_stopped() -> None:
    """It stops after a number of rows; what retention deletes meanwhile is not counted."""
    _, wal = filled()
    even = Tally(b"even", [(1, 132)])
    count = Count([even])
    assert not wal.count(count, 1)
    first = wal.segments()[0]
    assert (first.last_id, first.last_id) == (count.rows, count.reached_id)
    assert 0 < even.count < 60
    before = even.count
    gone = wal.segments()[1]
    wal.retain(gone.last_id + 1, 10**15)
    assert wal.first_id == gone.last_id + 1
    while not wal.count(count, 1):
        pass

    left = counted(wal, Tally(b"even", [(1, 132)]))
    assert [even.count - before] == left


def test_a_damaged_index_is_rebuilt() -> None:
    """As for every other read; without a descriptor it is tried again."""
    disk, wal = filled()
    data = bytearray(disk.content(FIRST_INDEX))
    data[50] ^= 1
    disk.put(FIRST_INDEX, bytes(data))
    disk.fail("open", errno.EMFILE)
    with pytest.raises(LogScarceError):
        counted(wal, Tally(b"odd", [(1, 999)]))

    assert [60] == counted(wal, Tally(b"odd", [(1, 999)]))
