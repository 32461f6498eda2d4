"""Strict JSON: syntax, depth and values."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.strict_json import (
    is_deeper,
    is_json,
    read_value,
    read_value_exactly,
    refuse_constant,
)

VALUES: dict[bytes, object] = {
    b"null": None,
    b" [1, 2.5] ": [1, 2.5],
    b'{"a":1,"a":2}': {"a": 2},
    b'"\\ud800"': "\ud800",
    b'"\xc3\xa9"': "\u00e9",
}
REFUSED = [b"", b"NaN", b"[-Infinity]", b"1 2", b"[1,]", b'"\xff"', b'["\\ud800","\xff"]']


def depth_of(value: object) -> int:
    """Count the arrays and objects around the innermost value, by recursion."""
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
def test_only_nesting_counts(payload: bytes, depth: int) -> None:
    """Arrays and objects count alike; brackets side by side or in strings do not count."""
    assert not is_deeper(payload, depth)
    assert depth == 0 or is_deeper(payload, depth - 1)


values = st.recursive(
    st.none() | st.integers() | st.text(alphabet='[]{}"\\a,:'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(alphabet='[]{}"\\a'), inner),
    max_leaves=30,
)


@given(values, st.integers(0, 8))
def test_the_depth_of_the_bytes_is_that_of_the_value(value: object, depth_max: int) -> None:
    """It matches the depth of the decoded value."""
    payload = json.dumps(value).encode()

    assert (depth_of(value) > depth_max) == is_deeper(payload, depth_max)


def test_a_mebibyte_of_brackets_is_measured() -> None:
    """Nothing recurses, however deep the nesting is."""
    half = 512 * 1024

    assert is_deeper(b"[" * half + b"]" * half, half - 1)
    assert not is_deeper(b"[" * half + b"]" * half, half)


@pytest.mark.parametrize("payload", VALUES)
def test_valid_json_has_a_value(payload: bytes) -> None:
    """Both decoders agree on it, lone surrogates and duplicate keys included."""
    assert is_json(payload)
    assert VALUES[payload] == read_value(payload)
    assert VALUES[payload] == read_value_exactly(payload)


@pytest.mark.parametrize("payload", REFUSED)
def test_invalid_json_has_no_value(payload: bytes) -> None:
    """JavaScript constants, trailing bytes and invalid UTF-8 are not JSON."""
    assert not is_json(payload)
    for read in (read_value, read_value_exactly):
        with pytest.raises(ValueError, match=r"."):
            read(payload)


def test_nesting_deeper_than_the_stack_is_not_json() -> None:
    """Whichever of the two decoders fails first."""
    assert not is_json(b"[" * 100_000 + b"]" * 100_000)
    assert not is_json(b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001)


def test_a_number_with_a_million_digits_is_validated_at_once() -> None:
    """Both decoders skip the digits; only the value cannot be read."""
    payload = b'["\\ud800",' + b"1" * 1_000_000 + b"]"

    assert is_json(payload)
    with pytest.raises(ValueError, match="digits"):
        read_value(payload)


def test_a_refused_constant_is_named() -> None:
    """The error says which one it was."""
    with pytest.raises(ValueError, match="NaN is not JSON"):
        refuse_constant("NaN")
