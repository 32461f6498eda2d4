"""Settled ranges against a plain set, and the progress between two records."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.delivery.acknowledgements import COMPACT_RANGES, Progress, Settled

ID_MAX = 40
spans = st.tuples(st.integers(0, ID_MAX - 1), st.integers(1, 8)).map(
    lambda s: (s[0], s[0] + s[1])
)


def ids_of(ranges: list[tuple[int, int]]) -> set[int]:
    return {i for after, last in ranges for i in range(after + 1, last + 1)}


@given(st.integers(1, 10), st.lists(spans, max_size=12))
def test_ranges_hold_exactly_the_settled_ids(floor: int, added: list[tuple[int, int]]) -> None:
    """However ranges overlap, touch or repeat, they hold the same ids as a set."""
    settled = Settled(floor)
    expected = set(range(1, floor + 1))
    for after, last in added:
        settled.add(after, last)
        expected |= set(range(after + 1, last + 1))

    assert expected == ids_of(settled.ranges())
    assert expected == {i for i in range(2 * ID_MAX) if settled.contains(i)}


@given(st.integers(1, 10), st.lists(spans, max_size=12))
def test_ranges_are_merged_sorted_and_disjoint(
    floor: int, added: list[tuple[int, int]]
) -> None:
    """Adjacent ranges are merged; the first begins at 0 and ends at the floor."""
    settled = Settled(floor)
    for after, last in added:
        settled.add(after, last)
    ranges = settled.ranges()

    assert 0 == ranges[0][0]
    assert ranges[0][1] == settled.floor
    assert all(left[1] < right[0] for left, right in pairwise(ranges))


@given(st.integers(1, 10), st.lists(spans, max_size=12), st.integers(0, 2 * ID_MAX))
def test_a_reader_skips_exactly_the_settled_ids(
    floor: int, added: list[tuple[int, int]], position: int
) -> None:
    """After a skip, every id up to the start of the next range is open."""
    settled = Settled(floor)
    expected = set(range(1, floor + 1))
    for after, last in added:
        settled.add(after, last)
        expected |= set(range(after + 1, last + 1))
    at = settled.skip_from(position)
    begins = settled.next_range_after(at)

    assert set(range(position + 1, at + 1)) <= expected
    assert at + 1 not in expected
    assert (begins or 3 * ID_MAX) >= min((i for i in expected if i > at), default=1) - 1
    assert expected.isdisjoint(range(at + 1, begins + 1))
    assert bool(begins) == any(i > at for i in expected)


def test_acknowledgement_in_order_stays_one_range() -> None:
    """Ids of other topics lie in between, but the ranges of one subscription still touch."""
    settled = Settled(3)
    for after, last in [(3, 10), (10, 11), (11, 500)]:
        settled.add(after, last)

    assert [(0, 500)] == settled.ranges()


def test_ten_thousand_ids_after_a_stuck_one_are_two_ranges() -> None:
    """One unacknowledged message does not make the others cost memory."""
    settled = Settled(1)
    for message_id in range(3, 10_003):
        settled.add(message_id - 1, message_id)

    assert [(0, 1), (2, 10_002)] == settled.ranges()
    assert 1 == settled.floor


def test_progress_in_order_is_one_range() -> None:
    """Each range starts where the previous one ended."""
    progress = Progress()
    for after, message_id in [(1, 4), (4, 5), (5, 9)]:
        progress.settle(after, message_id)

    assert [(1, 9)] == progress.ranges


def test_progress_out_of_order_keeps_separate_ranges() -> None:
    """Nothing in between is settled by accident."""
    progress = Progress()
    progress.settle(4, 5)
    progress.settle(1, 2)

    assert [(4, 5), (1, 2)] == progress.ranges


def test_a_settled_message_drops_its_attempts() -> None:
    """The record does not also list it as redelivered."""
    progress = Progress()
    progress.attempts = {5: 2, 6: 3}
    progress.settle(4, 5)

    assert {6: 3} == progress.attempts


def test_refused_progress_is_merged_with_later_progress() -> None:
    """Later values win, and nothing earlier is lost."""
    earlier, later = Progress(), Progress()
    earlier.handed_id, later.handed_id = 7, 9
    earlier.ranges, later.ranges = [(1, 4)], [(4, 5), (7, 8)]
    earlier.attempts, later.attempts = {5: 2, 6: 2}, {6: 3}
    earlier.followed_by(later)

    assert 9 == earlier.handed_id
    assert [(1, 5), (7, 8)] == earlier.ranges
    assert {6: 3} == earlier.attempts


def test_merging_does_not_move_the_last_delivery_back() -> None:
    """Later progress without a delivery keeps the earlier one's."""
    earlier = Progress()
    earlier.handed_id = 7
    earlier.followed_by(Progress())

    assert 7 == earlier.handed_id


def test_progress_out_of_order_is_compacted() -> None:
    """Pairs settled in reverse order end up in one range."""
    progress = Progress()
    for number in range(1, 3 * COMPACT_RANGES, 2):
        progress.settle(number, number + 1)
        progress.settle(number - 1, number)
    progress.compact()

    assert [(0, 3 * COMPACT_RANGES)] == progress.ranges


def test_unwritten_progress_does_not_pile_up() -> None:
    """However much is settled out of order, the ranges are compacted automatically."""
    progress = Progress()
    for number in range(1, 20 * COMPACT_RANGES, 2):
        progress.settle(number, number + 1)
        progress.settle(number - 1, number)

    assert len(progress.ranges) <= COMPACT_RANGES


def settled_of(floor: int, added: list[tuple[int, int]]) -> tuple[Settled, set[int]]:
    """Return the ranges, and their ids as a set."""
    settled = Settled(floor)
    for after, last in added:
        settled.add(after, last)
    return settled, ids_of(settled.ranges())


@given(st.integers(0, 10), st.lists(spans, max_size=12), st.integers(0, 2 * ID_MAX))
def test_open_ranges_complement_the_settled_ones(
    floor: int, added: list[tuple[int, int]], up_to: int
) -> None:
    """Up to a given id, in order and disjoint."""
    settled, expected = settled_of(floor, added)
    found = settled.open_ranges(up_to)

    assert set(range(1, up_to + 1)) - expected == ids_of(found)
    assert all(after < last for after, last in found)
    assert all(left[1] < right[0] for left, right in pairwise(found))


@given(
    st.integers(0, 10),
    st.lists(spans, max_size=12),
    st.lists(st.integers(1, ID_MAX + 8), max_size=6),
    st.lists(spans, max_size=4),
)
def test_reopening_opens_exactly_the_given_ids(
    floor: int, added: list[tuple[int, int]], reopened: list[int], again: list[tuple[int, int]]
) -> None:
    """They may be settled again, and the first range still starts at 0."""
    settled, expected = settled_of(floor, added)
    for message_id in reopened:
        settled.reopen(message_id)
        expected.discard(message_id)
    between = ids_of(settled.ranges())
    for after, last in again:
        settled.add(after, last)

    assert expected == between
    assert expected | ids_of(again) == ids_of(settled.ranges())
    assert 0 == settled.ranges()[0][0]
    assert settled.contains(1) == (settled.floor > 0)


@given(st.integers(0, 10), st.lists(spans, max_size=12), st.lists(spans, max_size=4))
def test_a_copy_is_independent(
    floor: int, added: list[tuple[int, int]], later: list[tuple[int, int]]
) -> None:
    """Changing one does not affect the other."""
    settled, expected = settled_of(floor, added)
    copied = settled.copy()
    for after, last in later:
        copied.add(after, last)
        copied.reopen(last)
    settled.add(100, 101)

    assert expected | {101} == ids_of(settled.ranges())
    assert not copied.contains(101)


def test_progress_counts_messages_and_not_ids() -> None:
    """Ids of other topics lie in between; a purge passes its own count."""
    progress = Progress()
    progress.settle(1, 9)
    progress.settle_range(9, 100, 3)
    later = Progress()
    later.settle(100, 104)
    progress.followed_by(later)

    assert (5, [(1, 104)]) == (progress.settled_count, progress.ranges)
