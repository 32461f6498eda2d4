"""Pages of names that are sorted by a number, the largest first.

A page goes on from `NUMBER:NAME`, the last row of the one before. Numbers change meanwhile: a
row that has grown past that place is left out, and one that fell behind it comes twice.
"""

import heapq
from collections.abc import Iterable
from typing import Final, TypeVar

from braidmq.admin.http.refusals import BadCursorError
from braidmq.admin.queries.page_bounds import name_bytes, rows_on_page

_DIGITS_MAX: Final = 20  # of a 64-bit number

Row = TypeVar("Row")


def ranked_page(
    rows: Iterable[tuple[int, str, Row]], *, after: str, limit: int
) -> tuple[list[Row], str | None]:
    """Return up to *limit* rows behind *after*, given with number and name, and where to go on.

    Raises:
        BadCursorError: *after* is not the end of such a page.
    """
    ranked = (((-number, name), row) for number, name, row in rows)
    if after:
        last = _place(after)
        ranked = (pair for pair in ranked if pair[0] > last)
    first = heapq.nsmallest(limit + 1, ranked, key=lambda pair: pair[0])
    shown = rows_on_page((name_bytes(name) for (_, name), _ in first), limit)
    following = None
    if len(first) > shown:
        (negative, name), _ = first[shown - 1]
        following = f"{-negative}:{name}"
    return [row for _, row in first[:shown]], following


def _place(after: str) -> tuple[int, str]:
    number, colon, name = after.partition(":")
    if not (colon and number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
        raise BadCursorError
    return -int(number), name
