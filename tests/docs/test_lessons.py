"""The page of lessons names tests that exist, for every lesson."""

import ast
import re
from functools import cache
from typing import Final

import pytest

from tests.docs.test_snippets import ROOT, read

PAGE: Final = "docs/lessons.md"
LESSONS: Final = 48
ROW: Final = re.compile(r"^\| (\d+) \|(.*)\|(.*)\|(.*)\|$", re.MULTILINE)
TEST: Final = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


@cache
def defined_in(path: str) -> frozenset[str]:
    """Return the names of the tests in a file."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, kinds))


def test_every_lesson_is_on_the_page_once() -> None:
    """Numbered from the first to the last, each with what went wrong and how we stand."""
    rows = [[cell.strip() for cell in row] for row in ROW.findall(read(PAGE))]

    assert [str(number) for number in range(1, LESSONS + 1)] == [row[0] for row in rows]
    assert [] == [row for row in rows if "" in row]


@pytest.mark.parametrize("lesson", range(1, LESSONS + 1))
def test_every_lesson_is_held_by_tests_that_exist(lesson: int) -> None:
    """A test that is renamed or removed takes its place on the page along."""
    held_by = {number: cell for number, _, _, cell in ROW.findall(read(PAGE))}[str(lesson)]
    named = TEST.findall(held_by)

    assert named
    assert held_by.count("`") == 2 * len(named)
    assert [] == [(path, name) for path, name in named if name not in defined_in(path)]
