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


@pytest.mark.parametrize("payload", VALUES)
def test_what_is_json_has_a_value(payload: bytes) -> None:
    """Both decoders read it alike, lone surrogates and duplicate keys included."""
    assert is_json(payload)
    assert VALUES[payload] == read_value(payload)
    assert VALUES[payload] == read_value_exactly(payload)


@pytest.mark.parametrize("payload", REFUSED)
def test_what_is_not_json_has_none(payload: bytes) -> None:
    """Constants of JavaScript, trailing bytes and broken UTF-8 are not JSON."""
    assert not is_json(payload)
    for read in (read_value, read_value_exactly):
        with pytest.raises(ValueError, match=r"."):
            read(payload)


def test_deeper_than_the_stack_is_not_json() -> None:
    """Whichever decoder gives up first."""
    assert not is_json(b"[" * 100_000 + b"]" * 100_000)
    assert not is_json(b'["\\ud800",' + b"[" * 100_000 + b"]" * 100_001)


def test_a_number_of_a_million_digits_is_judged_at_once() -> None:
    """Digits are passed over, by the exact decoder too; only its value cannot be had."""
    payload = b'["\\ud800",' + b"1" * 1_000_000 + b"]"

    assert is_json(payload)
    with pytest.raises(ValueError, match="digits"):
        read_value(payload)


def test_a_constant_is_refused_by_its_name() -> None:
    """The text says which."""
    with pytest.raises(ValueError, match="NaN is not JSON"):
        refuse_constant("NaN")
