"""Browsing the index backwards and by time, across segments and records without a topic."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.records import Description
from braidmq.testing.disk import FakeDisk
from braidmq.wal.browse import Bounds
from braidmq.wal.disk import Disk
from braidmq.wal.options import WalOptions
from braidmq.wal.wal import Wal

EVERYTHING = Bounds(count_max=10**6, bytes_max=10**9, rows_max=10**9)

Row = tuple[str, int]
"""Topic and time of one record; without a topic it is not a message."""


def describe(body: bytes) -> Description:
    """Parse the bodies of this test: kind, time, topic, and a payload after a colon."""
    topic, _, _ = body[9:].partition(b":")
    if not topic:
        return Description(b"", 0, 0, 0, 0, 0)
    return Description(topic, 9 + len(topic) + 1, int.from_bytes(body[1:9], "little"), 1, 1, 1)


def body(topic: str, time_us: int, payload: bytes = b"x") -> bytes:
    return b"\x01" + time_us.to_bytes(8, "little") + topic.encode() + b":" + payload


def log_of(rows: list[Row], *, batch: int = 3, payload: bytes = b"x") -> Wal:
    """Return a log of these records, with a few batches per segment."""
    wal = Wal.open(
        FakeDisk(),
        WalOptions(segment_bytes=4096),
        describe,
        now_us=1,
        after_id=0,
        visit=lambda *_: None,
    )
    for at in range(0, len(rows), batch):
        wal.append([body(*row, payload=payload) for row in rows[at : at + batch]])
        wal.commit(1)
    return wal


records = st.lists(st.sampled_from(["a", "b", ""]), max_size=40)


@given(records, st.integers(1, 50), st.integers(1, 5))
def test_the_newest_records_before_an_id_are_found(
    topics: list[str], before: int, count: int
) -> None:
    """Page by page, the same as a scan of everything finds."""
    wal = log_of([(topic, 1) for topic in topics], payload=500 * b"x")
    expected = [i for i, topic in enumerate(topics, 1) if topic == "a" and i < before][::-1]
    bounds = Bounds(count, EVERYTHING.bytes_max, EVERYTHING.rows_max)
    found: list[int] = []
    at = before
    while True:
        page = wal.browse_before(at, b"a", bounds)
        assert len(page.ids) <= count
        found += page.ids
        if page.reached_id <= 1 or page.reached_id == at:
            break
        at = page.reached_id

    assert expected == found


@given(st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.integers(0, 2)), max_size=40))
def test_the_first_id_at_a_time_is_found(steps: list[tuple[str, int]]) -> None:
    """Nothing from that id on is older; records without a topic have no time."""
    rows: list[Row] = []
    now = 10
    for topic, step in steps:
        now += step
        rows.append((topic, now))
    wal = log_of(rows, payload=500 * b"x")
    for time_us in range(9, now + 2):
        first = wal.first_at(time_us)
        older = [
            t for i, (topic, t) in enumerate(rows, 1) if topic and i >= first and t < time_us
        ]
        newer = [
            t for i, (topic, t) in enumerate(rows, 1) if topic and i < first and t >= time_us
        ]

        assert ([], []) == (older, newer)


class Stepped:
    """A clock that was set at some ids."""

    def __init__(self, step_ids: list[int]) -> None:
        self._step_ids = step_ids

    def moved_us(self, record_id: int) -> int:
        raise AssertionError(record_id)

    def step_ids(self) -> list[int]:
        return self._step_ids


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from([0, 1, 2, -7])), max_size=40
    )
)
def test_the_first_id_at_a_time_is_found_where_times_go_back(
    steps: list[tuple[str, int]],
) -> None:
    """It follows the last message that is older, however often the clock was set back."""
    rows: list[Row] = []
    now = 100
    step_ids: list[int] = []
    for topic, step in steps:
        now += step
        if step < 0:
            rows.append(("", now))
            step_ids.append(len(rows))
        rows.append((topic, now))
    wal = log_of(rows, payload=500 * b"x")
    wal.steps = Stepped(step_ids)
    times = {i: t for i, (topic, t) in enumerate(rows, 1) if topic}
    for time_us in range(80, 120, 3):
        older = [i for i, t in times.items() if t < time_us]
        found = wal.first_at(time_us)

        # No message is between the two: records without a time do not count.
        assert max(older, default=0) < found
        assert not [i for i in times if max(older, default=0) < i < found]


def test_a_search_stops_at_its_limits() -> None:
    """Bytes and rows; it finds at least one match if there is one, and says how far it got."""
    wal = log_of(20 * [("a", 1)], payload=100 * b"x")
    one = wal.browse_before(21, b"a", Bounds(99, 1, 10**9))
    three = wal.browse_before(21, b"a", Bounds(99, 300, 10**9))

    assert ([20], 20) == (one.ids, one.reached_id)
    assert ([20, 19, 18], 18) == (three.ids, three.reached_id)
    few_rows = wal.browse_before(21, b"none", Bounds(99, 300, 1))
    assert [] == few_rows.ids


def test_an_unknown_topic_is_not_found() -> None:
    """The whole log is searched without reading a single row."""
    wal = log_of(9 * [("a", 1)])
    found = wal.browse_before(10, b"none", EVERYTHING)

    assert ([], 1, 0) == (found.ids, found.reached_id, found.rows)


def test_nothing_is_found_in_an_empty_log() -> None:
    """Its first id is the next one to be written."""
    wal = log_of([])

    assert [] == wal.browse_before(1, b"a", EVERYTHING).ids
    assert 1 == wal.first_at(0)


@pytest.mark.parametrize("damage", [b"", b"noise"])
def test_a_lost_index_is_rebuilt(tmp_path: Path, damage: bytes) -> None:
    """It can always be derived from its segment."""
    options = WalOptions(segment_bytes=4096)
    wal = Wal.open(
        Disk(tmp_path), options, describe, now_us=1, after_id=0, visit=lambda *_: None
    )
    for _ in range(4):
        wal.append([body("a", 5, 4096 * b"x")])
        wal.commit(1)
    (tmp_path / "wal" / "00000000000000000002.idx").write_bytes(damage)

    assert [4, 3, 2, 1] == wal.browse_before(5, b"a", EVERYTHING).ids
    assert 1 == wal.first_at(5)
    wal.close()
