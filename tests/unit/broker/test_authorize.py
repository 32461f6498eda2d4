"""Permissions: patterns against a regular expression, and one decision for each operation."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.authorize import ADMIN, PUBLISH, SUBSCRIBE, Principal, authorize, matches

names = st.text(alphabet="ab.", max_size=8)
patterns = st.text(alphabet="ab.**", max_size=8)


def matches_by_regex(pattern: str, name: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, name, re.DOTALL) is not None


@given(patterns, names)
def test_a_star_is_any_run_of_characters(pattern: str, name: str) -> None:
    """A pattern matches the same names as the regular expression that says the same."""
    assert matches_by_regex(pattern, name) == matches(pattern, name)


@given(st.text(max_size=6), st.text(max_size=6))
def test_nothing_but_the_star_is_special(pattern: str, name: str) -> None:
    """Any characters at all, line ends and brackets too."""
    assert matches_by_regex(pattern, name) == matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("orders.*", "Orders.eu", False),
        ("a*a", "a", False),
        ("a*b*c", "a-c-b", False),
        ("a*b*c", "a-c", False),
        ("*b*", "abc", True),
        ("a?c", "abc", False),
    ],
)
def test_patterns_by_example(pattern: str, name: str, *, expected: bool) -> None:
    """Case counts, a star may be empty, and each part needs characters of its own."""
    assert expected == matches(pattern, name)


def test_each_operation_has_its_own_patterns() -> None:
    """Publishing somewhere is no permission to read there."""
    principal = Principal("ada", publish=["x", "in.*"], subscribe=["out.*"])

    assert authorize(principal, PUBLISH, "in.eu")
    assert not authorize(principal, SUBSCRIBE, "in.eu")
    assert authorize(principal, SUBSCRIBE, "out.eu")
    assert not authorize(principal, PUBLISH, "out.eu")


def test_no_permission_is_the_default() -> None:
    """Without patterns nothing is allowed, and nobody administers by accident."""
    nobody = Principal("nobody", publish=[], subscribe=[])

    assert [False, False, False] == [
        authorize(nobody, operation, "a") for operation in (PUBLISH, SUBSCRIBE, ADMIN)
    ]


def test_an_administrator_is_named_as_one() -> None:
    """Administration is a flag, and no pattern of topics stands for it."""
    assert authorize(Principal("ops", publish=[], subscribe=[], admin=True), ADMIN, "")
    assert not authorize(Principal("ada", publish=["*"], subscribe=["*"]), ADMIN, "")


def test_an_unknown_operation_is_our_own_mistake() -> None:
    """A word that is not an operation stops the process rather than deciding."""
    with pytest.raises(AssertionError):
        authorize(Principal("ada", publish=["*"], subscribe=["*"]), "delete", "a")
