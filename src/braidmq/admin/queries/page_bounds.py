"""Where a page of a list ends: after so many rows, or so many bytes of them.

It makes no rows and knows no order; whoever makes a page asks how many of its rows are on it.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final

from braidmq.base.limits import MIB, TOPIC_BYTES_MAX

PAGE_BYTES_MAX: Final = MIB
"""What the names in one page have together. An answer becomes JSON on the event loop, which
does nothing else meanwhile: this much takes less than some milliseconds, and a thousand of the
longest names a tenth of a second. One row is always on a page, whatever its size."""

assert TOPIC_BYTES_MAX < PAGE_BYTES_MAX  # so a page of topics keeps to it


def rows_on_page(sizes: Iterable[int], limit: int) -> int:
    """Return how many rows of these sizes are on a page of *limit* rows at most."""
    rows = page_bytes = 0
    for size in islice(sizes, limit):
        page_bytes += size
        if rows and page_bytes > PAGE_BYTES_MAX:
            break
        rows += 1
    return rows


def name_bytes(name: str) -> int:
    """Return the size of a name as an answer has it."""
    return len(name.encode())
