"""Counting messages by the index."""

import errno
from collections.abc import Callable

import pytest

from braidmq.base.errors import LogScarceError
from braidmq.testing.disk import FakeDisk
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

    assert expected == wal.count(b"even", ranges, priority=priority)
    assert 0 == wal.count(b"unknown", ranges)


def test_a_damaged_index_is_rebuilt() -> None:
    """As for every other read; without a descriptor it is tried again."""
    disk, wal = filled()
    data = bytearray(disk.content(FIRST_INDEX))
    data[50] ^= 1
    disk.put(FIRST_INDEX, bytes(data))
    disk.fail("open", errno.EMFILE)
    with pytest.raises(LogScarceError):
        wal.count(b"odd", [(1, 999)])

    assert 60 == wal.count(b"odd", [(1, 999)])
