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
    # Not judged: the size of numbers, repeated keys, lone surrogates
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
    "\uff11".encode(),  # a digit, but not one of JSON's
    b"[" * 100_000,
    b'[{"":' * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'"' + b'\\"' * 100_000,
    # What the fast decoder refuses for its own reasons, and is wrong besides
    b'["\\ud800",]',
    b"[1e999,NaN]",
    b'["\\ud800","\x01"]',
    b'["\\ud800","\xff"]',
    b'["\\ud800"' + b"[" * 100_000,
]


def nested(depth: int, inner: bytes = b"1") -> bytes:
    """Nest *inner* in so many arrays and objects in turn."""
    opened = b"".join(b"[" if level % 2 else b'{"[":' for level in range(depth))
    closed = b"".join(b"]" if level % 2 else b"}" for level in reversed(range(depth)))
    return opened + inner + closed


def shown(payload: bytes) -> str:
    """Name a case after its beginning."""
    return repr(payload[:24])


@pytest.mark.parametrize("payload", JSON, ids=shown)
def test_json_is_json(payload: bytes) -> None:
    """RFC 8259 to the letter, and nothing judged that it leaves to the reader."""
    assert is_json(payload)


@pytest.mark.parametrize("payload", NOT_JSON, ids=shown)
def test_what_is_not_json_is_refused(payload: bytes) -> None:
    """No extension, no other encoding, no control character, nothing behind the end."""
    assert not is_json(payload)


@pytest.mark.parametrize("inner", [b"1", b'"\\ud800"', b'"\\\\"', b'"\\"]]]]"', b"[],{},[]"])
def test_the_64th_level_is_the_last(inner: bytes) -> None:
    """Arrays and objects count alike, whichever decoder looks, and brackets in strings not."""
    surplus = inner.count(b"{}")  # the last case holds a level of its own
    row = b"[" + inner + b"]"

    assert 64 == JSON_DEPTH_MAX
    assert is_json(nested(63 - surplus, row))
    assert not is_json(nested(64 - surplus, row))


def test_many_brackets_side_by_side_are_not_deep() -> None:
    """Only what is within each other counts."""
    row = b"[" + b",".join([b"[]", b"{}", b'{"a":[[]]}'] * 100) + b"]"

    assert is_json(row)
    assert is_json(nested(60, row))
    assert not is_json(nested(61, row))


def test_json_stays_as_it_is() -> None:
    """Byte for byte, spaces included; nothing stays nothing."""
    assert (b' {"a": 1} ', False) == as_json(b' {"a": 1} ')
    assert (b"", False) == as_json(b"")


@pytest.mark.parametrize("payload", [b"\x00\xff", b"hello", b"NaN", nested(65)])
def test_other_bytes_become_a_string_of_base64(payload: bytes) -> None:
    """A client that reads JSON can read it, and undo it."""
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
def test_whatever_can_be_written_as_json_is_json(value: object, ensure_ascii: bool) -> None:
    """The standard library writes what we read, escaped or not."""
    assert is_json(json.dumps(value, ensure_ascii=ensure_ascii).encode())


def refuse(name: str) -> NoReturn:
    """Refuse what the standard library accepts beyond JSON."""
    raise ValueError(name)


@given(
    st.sampled_from(
        [b'{"a":[1,2.5e3,"x\\u00e9\\n\xc3\xa9",true,null]}', b'["\\ud83d\\ude00",{"k":{}}]']
    ),
    st.lists(st.tuples(st.integers(0, 60), st.binary(max_size=2)), max_size=3),
)
def test_damaged_json_is_judged_as_the_standard_library_judges(
    payload: bytes, damages: list[tuple[int, bytes]]
) -> None:
    """Two decoders of different origin agree, wherever bytes are replaced or lost."""
    for at, with_bytes in damages:
        payload = payload[:at] + with_bytes + payload[at + 1 :]
    try:
        json.loads(payload.decode(), parse_constant=refuse)
    except ValueError:
        expected = False
    else:
        expected = True

    assert expected == is_json(payload)
