"""JSON as commands read it and write it unchanged."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.cli.exact_json import (
    DEEP_FRAMES_MAX,
    json_text,
    payload_as_json,
    read_json,
    room_for_depth,
)

EXACT = [
    '{"a": [1, -2.5, true, null], "\u00fc": "\u2713"}',
    '"\\ud800"',
    '{"\\udc80": ["\\udfff"]}',
    "1e999",
    '{"x": [-1e999, "\\ud800", {"y": 1e400}]}',
    5_000 * "1",
    "-" + 5_000 * "1",
]


@pytest.mark.parametrize("text", EXACT)
def test_json_survives_a_round_trip(text: str) -> None:
    """Including numbers that Python cannot represent, and lone surrogates."""
    assert text == json_text(read_json(text), encoding="utf-8")


SHOWN: dict[bytes, dict[str, object]] = {
    b'{"n": 1}': {"payload": {"n": 1}},
    b" [] ": {"payload": []},
    b'"\\ud800"': {"payload": "\ud800"},
    b"1e999": {"payload": float("inf")},
    b"text": {"payload": "text"},
    b"": {"payload": ""},
    b"NaN": {"payload": "NaN"},
    b"[-Infinity]": {"payload": "[-Infinity]"},
    b"\xef\xbb\xbf[]": {"payload": "\ufeff[]"},
    b"\xff": {"payload_base64": "/w=="},
    b'"\xed\xa0\x80"': {"payload_base64": "Iu2ggCI="},
    b"[\x00]\x00": {"payload": "[\x00]\x00"},
}


@pytest.mark.parametrize(("payload", "shown"), SHOWN.items())
def test_a_payload_is_json_or_text_or_base64(payload: bytes, shown: dict[str, object]) -> None:
    """As over HTTP: JSON is in UTF-8, and has neither NaN nor Infinity."""
    assert shown == payload_as_json(payload)


def test_json_that_is_too_deep_to_be_read_is_text() -> None:
    """A program that reads our lines could not read it either."""
    text = 1_000_000 * "[" + 1_000_000 * "]"

    assert {"payload": text} == payload_as_json(text.encode())


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
        max_leaves=10,
    ),
    st.sampled_from(["utf-8", "ascii", "latin-1"]),
)
def test_every_value_is_one_line_of_json(value: object, encoding: str) -> None:
    """Whatever it holds, a strict reader accepts it, in the given encoding."""
    line = json_text(value, encoding=encoding)
    line.encode(encoding)

    assert "\n" not in line
    read_json(line)


@pytest.mark.parametrize(
    ("value", "written"),
    [(float("inf"), '"inf"'), ([float("nan"), 1], '["nan", 1]'), ((1, "a"), '[1, "a"]')],
)
def test_an_infinity_of_our_own_is_text(value: object, written: str) -> None:
    """It was not read from a number that could be written again."""
    assert written == json_text(value, encoding="utf-8")


def test_what_the_encoding_cannot_represent_is_escaped() -> None:
    """Everything else is left as it is."""
    assert '"\u00fc"' == json_text("\u00fc", encoding="latin-1")
    assert '"\\u2713"' == json_text("\u2713", encoding="latin-1")
    assert '{"\\u2713": 1e999}' == json_text(read_json('{"\u2713": 1e999}'), encoding="ascii")


@pytest.mark.parametrize("inside", ["", "1e999"])
def test_json_may_be_deeper_than_pythons_limit(inside: str) -> None:
    """Twice as deep; afterwards Python's own limit applies again."""
    limit = sys.getrecursionlimit()
    text = 2 * limit * "[" + inside + 2 * limit * "]"
    with room_for_depth():
        value = read_json(text)
        assert DEEP_FRAMES_MAX == sys.getrecursionlimit()

    assert text == json_text(value, encoding="utf-8")
    assert limit == sys.getrecursionlimit()
