"""Pages of a list: where a page ends, and where the next one begins.

A page ends after `limit` rows or PAGE_BYTES_MAX bytes of names, whichever comes first. Lists
are ordered in one of three ways, each with its own form of `next`:

    by name     NAME             the last row of the page
    by number   NUMBER:NAME      the same, with the number that ranked it; or NUMBER:ID
    by id       ID or ID.NUMBER  a subscription, or a consumer of a queue on one connection
"""

import heapq
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from operator import itemgetter
from typing import Final, TypeVar

from braidmq.admin.http.refusals import BadCursorError
from braidmq.base.limits import MIB, TOPIC_BYTES_MAX

PAGE_BYTES_MAX: Final = MIB
"""Total size of the names on one page. The event loop encodes the answer as JSON and serves
nothing else meanwhile: this much takes a few milliseconds, a thousand of the longest names
would take a tenth of a second. A page holds at least one row, whatever its size."""

assert TOPIC_BYTES_MAX < PAGE_BYTES_MAX  # so no page of topics exceeds it

_DIGITS_MAX: Final = 20  # of a 64-bit number
_PLACE: Final = re.compile(r"(-?[0-9]{1,20})(?:\.([0-9]{1,20}))?")
_FIRST: Final = (-(2**64), 0)

Place = tuple[int, int]
"""The position of a row in a list ordered by id: the id, and a connection's number or 0."""

Key = TypeVar("Key", str, tuple[int, int], tuple[int, str])
Row = TypeVar("Row")


def rows_on_page(sizes: Iterable[int], limit: int) -> int:
    """Return how many rows of these sizes fit on a page of at most *limit* rows."""
    rows = page_bytes = 0
    for size in islice(sizes, limit):
        page_bytes += size
        if rows and page_bytes > PAGE_BYTES_MAX:
            break
        rows += 1
    return rows


def name_bytes(name: str) -> int:
    """Return the size of a name in an answer."""
    return len(name.encode())


def page_after(
    rows: Iterable[tuple[Key, Row]],
    after: Key | None,
    limit: int,
    size: Callable[[Key, Row], int],
) -> tuple[list[Row], Key | None]:
    """Return up to *limit* rows after *after* by their keys, and the last key if more follow.

    *size* is the size of the names in a row.
    """
    behind = rows if after is None else (pair for pair in rows if pair[0] > after)
    # One row more than a page holds tells whether another page follows.
    first = heapq.nsmallest(limit + 1, behind, key=itemgetter(0))
    on_page = rows_on_page((size(key, row) for key, row in first), limit)
    following = first[on_page - 1][0] if len(first) > on_page else None
    return [row for _, row in first[:on_page]], following


def ranked_page(
    rows: Iterable[tuple[int, str, Row]],
    *,
    after: str,
    limit: int,
    size: Callable[[Row], int] | None = None,
) -> tuple[list[Row], str | None]:
    """Return up to *limit* rows after *after*, largest number first, and the next *after*.

    *size* is the size of the names in a row, None if it has only the one that orders it.
    Numbers change between pages: a row that has overtaken the last page is skipped, and one
    that has fallen behind it appears twice.

    Raises:
        BadCursorError: *after* is not the `next` of such a page.
    """
    ranked = (((-number, name), row) for number, name, row in rows)
    last = _rank(after) if after else None

    def size_of(key: tuple[int, str], row: Row) -> int:
        return name_bytes(key[1]) if size is None else size(row)

    page, following = page_after(ranked, last, limit, size_of)
    return page, None if following is None else f"{-following[0]}:{following[1]}"


def page_by_id(
    rows: Iterable[tuple[Place, Row]], after: Place, limit: int, size: Callable[[Row], int]
) -> tuple[list[Row], str | None, int]:
    """Return up to *limit* rows after *after*, the next `after`, and the number of all rows."""
    total = 0

    def counted() -> Iterator[tuple[Place, Row]]:
        nonlocal total
        for pair in rows:
            total += 1
            yield pair

    page, last = page_after(counted(), after, limit, lambda _, row: size(row))
    following = None
    if last is not None:
        following = f"{last[0]}.{last[1]}" if last[1] else str(last[0])
    return page, following, total


def place_of(after: str) -> Place:
    """Return the place that *after* names in a list ordered by id.

    Raises:
        BadCursorError: *after* is not the `next` of such a page.
    """
    if not after:
        return _FIRST
    found = _PLACE.fullmatch(after)
    if found is None:
        raise BadCursorError
    return int(found[1]), int(found[2] or 0)


def _rank(after: str) -> tuple[int, str]:
    number, colon, name = after.partition(":")
    if not (colon and number.isascii() and number.isdigit() and len(number) <= _DIGITS_MAX):
        raise BadCursorError
    return -int(number), name
