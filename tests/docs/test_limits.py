"""The page of limits is complete: every limit and quota is on it, with its default."""

import re
from typing import Final

import pytest

from braidmq.server.config.loading import known_keys
from tests.docs.test_snippets import read

PAGE: Final = "docs/limits.md"
ROW: Final = re.compile(r"^\| `((?:limits|quotas)\.\w+)` \| (\d+)\b(.*)\|$", re.MULTILINE)
SECTIONS: Final = ("limits.", "quotas.")
CELLS: Final = {"limits": 5, "quotas": 6}
"""Behind the default: what it protects, and each way in; a quota also has its unit."""


def bounds() -> dict[str, object]:
    """Return the keys of the two sections, with their defaults."""
    return {key: value for key, value in known_keys().items() if key.startswith(SECTIONS)}


@pytest.mark.parametrize("key", bounds())
def test_every_limit_and_quota_is_on_the_page_with_its_default(key: str) -> None:
    """A new one has to say what it protects and what a peer sees."""
    rows = {name: (default, rest) for name, default, rest in ROW.findall(read(PAGE))}
    default, rest = rows[key]
    cells = rest.split("|")[1:]

    assert f"{float(str(bounds()[key])):.0f}" == default
    assert CELLS[key.partition(".")[0]] == len(cells)
    assert all(cell.strip() for cell in cells[:1])
