"""JSON payloads of the Vibe strand."""

import base64
import json
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.vibe.messages import JSON_DEPTH_MAX, as_json, is_json

JSON = [
    b"null",
    b"true",
    b"false",
    b"0",
    b"-0",
    b"-1",
    b"10",
    b"1.5",
    b"-0.0",
    b"1e5",
    b"1E+5",
    b"1e-5",
    b"0e0",
    b'""',
    b'"a"',
    b"[]",
    b"{}",
    b"[1,2]",
    b'{"a":1}',
    b'{"":0}',
    b'[[],{},"",0,null]',
    b' \t\r\n{ "a" : [ 1 , 2 ] }\n',
    b'"\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9"',
    b'"\\ud83d\\ude00"',
    b'"\x7f"',
    b'"' + "é€😀\u2028\ufeff\uffff".encode() + b'"',
    '{"ключ":"значение"}'.encode(),
    b'"[[[[{{{{"',
    # Not checked: the size of numbers, repeated keys, lone surrogates
    b"1e999",
    b"-1e999",
    b"[1e-999]",
    b"1" * 5000,
    b"-" + b"9" * 5000,
    b"0." + b"1" * 5000,
    b'{"a":1,"a":2}',
    b'"\\ud800"',
    b'"\\udc00\\ud800"',
    b'["\\ud800abc",1e999]',
    b'{"\\udfff":1}',
]

NOT_JSON = [
    b"",
    b" ",
    b"NaN",
    b"[NaN]",
    b"Infinity",
    b"-Infinity",
    b"nan",
    b"True",
    b"nul",
    b"nulll",
    b"+1",
    b"01",
    b"-01",
    b"-",
    b"1.",
    b".5",
    b"1e",
    b"1e+",
    b"0x10",
    b"1_000",
    b"1 2",
    b"[1]]",
    b"{}x",
    b"null\x00",
    b"[1,]",
    b"[,1]",
    b"[1 2]",
    b"[1",
    b"]",
    b"{",
    b'{"a"}',
    b'{"a":}',
    b'{"a":1,}',
    b"{a:1}",
    b"{1:1}",
    b"{'a':1}",
    b'{"a":1 "b":2}',
    b"[}",
    b"'a'",
    b'"',
    b'"a',
    b'"\\',
    b'"\\"',
    b'"\\x41"',
    b'"\\u12"',
    b'"\\u12g4"',
    b'"\\u 123"',
    b'"\\U00000041"',
    b'"\x00"',
    b'"\x1f"',
    b'"a\nb"',
    b'"a\tb"',
    b"/* */1",
    b"1 // one",
    b"\xef\xbb\xbf1",
    b"\x0b1",
    b"\x0c1",
    b"\xa01",
    b"\xc2\xa01",
    b'"\xff"',
    b'"\xc3"',
    b'"\xc0\x80"',
    b'"\xed\xa0\x80"',
    b'"\xf4\x90\x80\x80"',
    b'{"\xff":1}',
    "1".encode("utf-16"),
    "1".encode("utf-32-le"),
    "\uff11".encode(),  # a digit, but not a JSON digit
    b"[" * 100_000,
    b'[{"":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'"' + b'\\"' * 100_000,
    # Refused by the fast decoder for reasons of its own, and invalid as well
    b'["\\ud800",]',
    b"[1e999,NaN]",
    b'["\\ud800","\x01"]',
    b'["\\ud800","\xff"]',
    b'["\\ud800"' + b"[" * 100_000,
]


def nested(depth: int, inner: bytes = b"1") -> bytes:
    """Nest *inner* in this many alternating arrays and objects."""
    opened = b"".join(b"[" if level % 2 else b'{"[":' for level in range(depth))
    closed = b"".join(b"]" if level % 2 else b"}" for level in reversed(range(depth)))
    return opened + inner + closed


def shown(payload: bytes) -> str:
    """Name a case after its first bytes."""
    return repr(payload[:24])


@pytest.mark.parametrize("payload", JSON, ids=shown)
def test_json_is_accepted(payload: bytes) -> None:
    """Everything that RFC 8259 allows, including what it leaves to implementations."""
    assert is_json(payload)


@pytest.mark.parametrize("payload", NOT_JSON, ids=shown)
def test_bytes_that_are_not_json_are_refused(payload: bytes) -> None:
    """No extension, other encoding, control character or trailing data is accepted."""
    assert not is_json(payload)


@pytest.mark.parametrize("inner", [b"1", b'"\\ud800"', b'"\\\\"', b'"\\"]]]]"', b"[],{},[]"])
def test_64_levels_are_the_maximum(inner: bytes) -> None:
    """Arrays and objects count, in either decoder; brackets in strings do not."""
    surplus = inner.count(b"{}")  # the last case has one more level
    row = b"[" + inner + b"]"

    assert 64 == JSON_DEPTH_MAX
    assert is_json(nested(63 - surplus, row))
    assert not is_json(nested(64 - surplus, row))


def test_many_brackets_side_by_side_are_not_deep() -> None:
    """Only nesting counts."""
    row = b"[" + b",".join([b"[]", b"{}", b'{"a":[[]]}'] * 100) + b"]"

    assert is_json(row)
    assert is_json(nested(60, row))
    assert not is_json(nested(61, row))


def test_json_is_passed_on_unchanged() -> None:
    """Byte for byte, including spaces; an empty payload stays empty."""
    assert (b' {"a": 1} ', False) == as_json(b' {"a": 1} ')
    assert (b"", False) == as_json(b"")


@pytest.mark.parametrize("payload", [b"\x00\xff", b"hello", b"NaN", nested(65)])
def test_other_bytes_become_a_string_of_base64(payload: bytes) -> None:
    """A client that reads JSON can read and decode it."""
    text, packed = as_json(payload)

    assert packed
    assert is_json(text)
    assert payload == base64.b64decode(json.loads(text))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(values, st.booleans())
def test_any_value_written_as_json_is_accepted(value: object, ensure_ascii: bool) -> None:
    """As the standard library writes it, escaped or not."""
    assert is_json(json.dumps(value, ensure_ascii=ensure_ascii).encode())


def refuse(name: str) -> NoReturn:
    """Refuse a constant that the standard library accepts beyond JSON."""
    raise ValueError(name)


@given(
    st.sampled_from(
        [b'{"a":[1,2.5e3,"x\\u00e9\\n\xc3\xa9",true,null]}', b'["\\ud83d\\ude00",{"k":{}}]']
    ),
    st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=2)), max_size=3),
)
def test_damaged_json_is_accepted_exactly_if_the_standard_library_does(
    payload: bytes, damages: list[tuple[int, bytes]]
) -> None:
    """Two independent decoders agree wherever bytes are replaced or lost."""
    for at, with_bytes in damages:
        payload = payload[:at] + with_bytes + payload[at + 1 :]
    try:
        json.loads(payload.decode(), parse_constant=refuse)
    except ValueError:
        expected = False
    else:
        expected = True

    assert expected == is_json(payload)
