"""Where a page of a list ends."""

import pytest

from braidmq.admin.queries.page_bounds import PAGE_BYTES_MAX, name_bytes, rows_on_page
from braidmq.base.limits import TOPIC_BYTES_MAX

# The sizes of rows, how many were asked for, and how many are on the page.
PAGES = {
    "nothing": ([], 9, 0),
    "as many as there are": ([1, 1], 9, 2),
    "as many as were asked for": ([1, 1, 1], 2, 2),
    "exactly the bytes of a page": ([PAGE_BYTES_MAX - 1, 1], 9, 2),
    "a byte too many": ([PAGE_BYTES_MAX, 1], 9, 1),
    "one that is larger than a page": ([PAGE_BYTES_MAX + 1, 1], 9, 1),
    "the longest topics": (1_000 * [TOPIC_BYTES_MAX], 1_000, 16),
}


@pytest.mark.parametrize(("sizes", "limit", "expected"), PAGES.values(), ids=PAGES.keys())
def test_a_page_ends_by_rows_or_by_bytes(sizes: list[int], limit: int, expected: int) -> None:
    """Whichever comes first; and where there is a row, one is shown, so that pages go on."""
    assert expected == rows_on_page(sizes, limit)


def test_a_name_is_as_large_as_its_utf_8() -> None:
    """That is what an answer has of it."""
    assert 4 == name_bytes("a\N{EURO SIGN}")
