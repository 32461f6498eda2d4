"""Pages of names that are sorted by a number."""

import pytest

from braidmq.admin.http.refusals import BadCursorError
from braidmq.admin.queries.ranking import ranked_page

ROWS = [(3, "c", "C"), (9, "b", "B"), (3, "a:1", "A"), (0, "d", "D")]


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_the_largest_come_first_and_each_once(limit: int) -> None:
    """Of equals the names decide, which may hold anything."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page, after = ranked_page(ROWS, after=after, limit=limit)
        assert len(page) <= limit
        found += page

    assert ["B", "A", "C", "D"] == found


@pytest.mark.parametrize("after", ["x", "1", ":a", "-1:a", "\u0663:a", f"{10**20}:a"])
def test_a_page_goes_on_only_from_the_end_of_another(after: str) -> None:
    """Anything else is refused."""
    with pytest.raises(BadCursorError):
        ranked_page(ROWS, after=after, limit=1)
