"""How deep JSON is nested."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.strict_json import is_deeper


def depth_of(value: object) -> int:
    """Count the arrays and objects around the innermost value, by the letter."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


@pytest.mark.parametrize(
    ("payload", "depth"),
    [
        (b"1", 0),
        (b'"[[{{"', 0),
        (b"[]", 1),
        (b"{}", 1),
        (b"[[],[],[]]", 2),
        (b'{"[":"]","a":["{"]}', 2),
        (b'["\\"[[[[",["\\\\"],1]', 2),
        (b'[{"a":[{}]},[[]]]', 4),
    ],
)
def test_only_what_is_within_each_other_counts(payload: bytes, depth: int) -> None:
    """Arrays and objects count alike; brackets side by side or in strings do not add up."""
    assert not is_deeper(payload, depth)
    assert depth == 0 or is_deeper(payload, depth - 1)


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a,:'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[]{}"\\a'), inner),
    max_leaves=30,
)


@given(values, st.integers(0, 8))
def test_the_depth_is_that_of_the_value(value: object, depth_max: int) -> None:
    """Bytes are judged as the objects that would be made of them."""
    payload = json.dumps(value).encode()

    assert (depth_of(value) > depth_max) == is_deeper(payload, depth_max)


def test_a_mebibyte_of_brackets_has_an_answer() -> None:
    """Nothing recurses, however deep it goes."""
    half = 512 * 1024

    assert is_deeper(b"[" * half + b"]" * half, half - 1)
    assert not is_deeper(b"[" * half + b"]" * half, half)
