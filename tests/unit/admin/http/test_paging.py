"""Pages of a list: where each ends, and where the next begins."""

import pytest

from braidmq.admin.http.paging import (
    PAGE_BYTES_MAX,
    name_bytes,
    page_by_id,
    place_of,
    ranked_page,
    rows_on_page,
)
from braidmq.admin.http.refusals import BadCursorError
from braidmq.base.limits import TOPIC_BYTES_MAX

# The sizes of the rows, the limit, and the number of rows on the page.
PAGES = {
    "nothing": ([], 9, 0),
    "as many as there are": ([1, 1], 9, 2),
    "as many as the limit": ([1, 1, 1], 2, 2),
    "exactly the bytes of a page": ([PAGE_BYTES_MAX - 1, 1], 9, 2),
    "a byte too many": ([PAGE_BYTES_MAX, 1], 9, 1),
    "a row larger than a page": ([PAGE_BYTES_MAX + 1, 1], 9, 1),
    "the longest topics": (1_000 * [TOPIC_BYTES_MAX], 1_000, 16),
}


@pytest.mark.parametrize(("sizes", "limit", "expected"), PAGES.values(), ids=PAGES.keys())
def test_a_page_ends_by_rows_or_by_bytes(sizes: list[int], limit: int, expected: int) -> None:
    """Whichever comes first; a page has at least one row, so that every list ends."""
    assert expected == rows_on_page(sizes, limit)


def test_the_size_of_a_name_is_that_of_its_utf_8() -> None:
    """That is its size in a response."""
    assert 4 == name_bytes("a\N{EURO SIGN}")


ROWS = [(3, "c", "C"), (9, "b", "B"), (3, "a:1", "A"), (0, "d", "D")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_the_largest_rows_come_first_and_each_once(limit: int) -> None:
    """Equal numbers are ordered by name, and names may hold any character."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = ranked_page(ROWS, after=after, limit=limit)
        assert len(page) <= limit
        found += page

    assert ["B", "A", "C", "D"] == found


@pytest.mark.parametrize("after", ["x", "1", ":a", "-1:a", "\u0663:a", f"{10**20}:a"])
def test_a_ranked_page_continues_only_from_the_cursor_of_another(after: str) -> None:
    """Anything else is refused."""
    with pytest.raises(BadCursorError):
        ranked_page(ROWS, after=after, limit=1)


PLACES = [((3, 0), "C"), ((-2, 0), "A"), ((3, 7), "D"), ((1, 4), "B")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_rows_with_ids_come_in_order_and_each_once(limit: int) -> None:
    """Consumers of one queue share its id, and differ by their connections."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after, total = page_by_id(PLACES, place_of(after), limit, len)
        assert (True, 4) == (len(page) <= limit, total)
        found += page

    assert ["A", "B", "C", "D"] == found


@pytest.mark.parametrize("after", ["x", "1.", "1.2.3", "--1", 25 * "9", "\u0663"])
def test_a_page_by_id_continues_only_from_the_cursor_of_another(after: str) -> None:
    """Anything else is refused."""
    with pytest.raises(BadCursorError):
        place_of(after)
