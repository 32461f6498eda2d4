"""Payloads of one shape: rows that fit match the decoder's; unusual values do not fit."""

import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.columnar.decoding.decode import SHAPED_ROWS_MIN, SHAPES_MAX, Decoding, decode_rows
from braidmq.columnar.decoding.schemas import TypedSchema
from braidmq.columnar.decoding.shapes import (
    NUMBER_CHARS_MAX,
    QUOTES_FACTOR_MAX,
    SLOTS_MAX,
    Shape,
)

TEMPERATURE = TypedSchema.built_in("sensor.Temperature")
BOUNDED = TypedSchema(
    "bounded",
    {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": -5, "exclusiveMaximum": 1000.0},
            "x": {"type": ["number", "null"], "exclusiveMinimum": -50.5, "maximum": 50},
            "s": {"type": "string", "minLength": 2, "maxLength": 6},
        },
        "required": ["n"],
        "additionalProperties": False,
    },
)
OPEN = TypedSchema(
    "open",
    {"type": "object", "properties": {"n": {"type": "integer"}, "x": {"type": "number"}}},
)
GOOD = b'{"celsius":21.5,"timestamp_ms":17,"sensor_id":"a"}'

NOT_PLAIN = (
    *("-0", "01", "-01", "1.", ".5", "-", "", "+1", " 1", "1 ", "--1", "1-2", "1.2.3", "1/2"),
    *("1e3", "1.5E-7", "1.e5", "0x1F", "-0x1F", "nan", "inf", "null", "true", '"1"', "[1]"),
    *("9223372036854775808", "1" * (NUMBER_CHARS_MAX + 1), "1_000", "1,2", "٣"),
)
NUMBERS = (
    *("0", "7", "-3", "21.50", "-0.0", "-0.5", "0.25", "50", "50.5", "-50.5", "999", "1000"),
    *("-5", "-6", "9223372036854775807", "-9223372036854775808", "9007199254740993", "1.0"),
    *("0.1234567890123456789012", "123456789012345678901234"),
)
STRINGS = ("", "a", "ab", "abcdef", "abcdefg", "a,b", "{}", ':"', "\\n", "\\u00e9", "\x7f", "ü")


def row_of(schema: TypedSchema, payload: bytes) -> list[object] | None:
    """Return the decoder's values, bit for bit; None if it refuses the payload."""
    errors: list[str | None] = [None]
    found = decode_rows(schema, [payload], errors)[0]
    columns = Decoding(schema).decode_listed([payload], [None])
    return None if found is None else [bits(column[0].as_py()) for column in columns[:-1]]


def bits(value: object) -> object:
    return struct.pack("d", value) if isinstance(value, float) else value


def fitting(schema: TypedSchema, payloads: list[bytes]) -> dict[int, list[object]]:
    """Return the rows that fit the shape of the first payload."""
    shape = Shape.of(payloads[0], schema)
    if shape is None:
        return {}
    # A slice, as batches are: neither its offsets nor its bytes begin at zero.
    values = pa.array([b'"x', *payloads, b'"'], pa.binary()).slice(1, len(payloads))
    rows, columns = shape.fitting(values, schema.fields)
    for column, field in zip(columns, schema.fields, strict=True):
        column.validate(full=True)
        assert field.type == column.type
    return {
        int(row): [bits(column[at].as_py()) for column in columns]
        for at, row in enumerate(rows)
    }


def object_of(members: dict[str, str], marks: tuple[str, str, str, str]) -> bytes:
    before, colon, comma, after = marks
    inside = comma.join(f'"{name}"{colon}{value}' for name, value in members.items())
    return f"{before}{inside}{after}".encode()


@st.composite
def written_alike(draw: st.DrawFn) -> tuple[TypedSchema, list[bytes]]:
    """Payloads of one device, some of which are malformed."""
    schema = draw(st.sampled_from((TEMPERATURE, BOUNDED, OPEN)))
    kinds = {field.name: field.kind for field in schema.fields}
    if draw(st.booleans()):
        kinds["other"] = draw(st.sampled_from(("string", "number")))
    names = draw(st.permutations(list(kinds)))[: draw(st.integers(1, len(kinds)))]
    marks = draw(
        st.sampled_from(
            (("{", ":", ",", "}"), ("{", ": ", ", ", "}"), (" { ", " : ", " , ", " } "))
        )
    )
    payloads = []
    for _ in range(draw(st.integers(1, 12))):
        members = {}
        for name in names:
            text = draw(st.sampled_from(STRINGS)).replace(':"', ':\\"')
            number = draw(st.sampled_from(NUMBERS) | st.integers(0, 999).map(str))
            members[name] = f'"{text}"' if kinds[name] == "string" else number
        if draw(st.integers(0, 5)) == 5:
            members[draw(st.sampled_from(names))] = draw(st.sampled_from(NOT_PLAIN))
        payload = object_of(members, marks)
        if draw(st.integers(0, 9)) == 9:
            at = draw(st.integers(0, len(payload)))
            payload = payload[:at] + draw(st.binary(max_size=2)) + payload[at + 1 :]
        payloads.append(payload)
    return schema, payloads


@given(written_alike())
def test_rows_that_fit_match_the_decoder(given_: tuple[TypedSchema, list[bytes]]) -> None:
    """Bit for bit, whatever else is among the payloads."""
    schema, payloads = given_
    for row, values in fitting(schema, payloads).items():
        assert row_of(schema, payloads[row]) == values


@pytest.mark.parametrize("number", NOT_PLAIN)
def test_a_number_that_is_not_plain_is_left_to_the_decoder(number: str) -> None:
    """As a number and as an integer, among good payloads, which still fit."""
    for name in ("celsius", "timestamp_ms"):
        other = {"celsius": "1.5", "timestamp_ms": "2", "sensor_id": '"a"', name: number}
        odd = object_of(other, ("{", ":", ",", "}"))
        found = fitting(TEMPERATURE, [GOOD, odd, GOOD])
        if name == "celsius" and number == "9223372036854775808":
            assert row_of(TEMPERATURE, odd) == found.pop(1)
        assert [0, 2] == list(found)


@pytest.mark.parametrize(
    "odd",
    [
        GOOD[:-1],
        GOOD + b" ",
        b" " + GOOD,
        GOOD.replace(b"celsius", b"Celsius"),
        GOOD.replace(b'"a"', b'"a","b":"c"'),
        GOOD.replace(b'"a"', b'"a\\"'),
        GOOD.replace(b'"a"', b'"\\u0061"'),
        GOOD.replace(b'"a"', b'"\xff"'),
        GOOD.replace(b'"a"', b'"\n"'),
        GOOD.replace(b'"a"', b"1"),
        GOOD.replace(b'"a"', b'"a'),
        GOOD.replace(b'"sensor_id":"a"', b'"sensor_id":"'),
        b'{"timestamp_ms":17,"celsius":21.5,"sensor_id":"a"}',
        b'""""""""',
        b'"' * 40,
        b"",
        b"\x00",
    ],
)
def test_a_payload_of_another_shape_does_not_fit(odd: bytes) -> None:
    """Nor does it keep the others, before and after it, from fitting."""
    assert [0, 2] == list(fitting(TEMPERATURE, [GOOD, odd, GOOD]))
    assert [0, 1] == list(fitting(TEMPERATURE, [GOOD, GOOD, odd]))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[]",
        GOOD[:-1],
        GOOD + b"x",
        GOOD.replace(b"17", b"17.0"),
        GOOD.replace(b"17", b"true"),
        GOOD.replace(b'"a"', b'"\\n"'),
        GOOD.replace(b'"sensor_id"', b'"sensor\\u005fid"'),
        GOOD.replace(b"}", b',"celsius":2}'),
        b'{"celsius":21.5,"timestamp_ms":17}',
        b"{" + b",".join(b'"n%d":1' % n for n in range(SLOTS_MAX + 1)) + b"," + GOOD[1:],
    ],
)
def test_a_payload_that_is_not_plain_shows_no_shape(payload: bytes) -> None:
    """It may still be valid, and other payloads may show one."""
    assert Shape.of(payload, TEMPERATURE) is None


@pytest.mark.parametrize(
    "rules",
    [
        {"type": "string", "pattern": "^a"},
        {"type": "string", "enum": ["a"]},
        {"type": "integer", "multipleOf": 2},
        {"type": "integer", "maximum": 2**53 + 2},
    ],
)
def test_a_field_that_arrays_cannot_validate_shows_no_shape(rules: dict[str, object]) -> None:
    """Its payloads are decoded and validated one by one."""
    schema = TypedSchema("t", {"type": "object", "properties": {"f": rules}})
    payload = b'{"f":"a"}' if rules["type"] == "string" else b'{"f":4}'
    assert Shape.of(payload, schema) is None
    assert row_of(schema, payload) is not None


def test_a_batch_of_several_shapes_stays_in_order() -> None:
    """With devices that write differently, and rows of no shape in between."""
    swapped = b'{"sensor_id":"b","timestamp_ms":%d,"celsius":%d.5}'
    spaced = b'{"celsius": %d, "timestamp_ms": %d, "sensor_id": "c"}'
    payloads = [
        (swapped % (n, n), spaced % (n, n), b"no", GOOD)[(n * n + n // 7) % 4]
        for n in range(SHAPED_ROWS_MIN * 3 * SHAPES_MAX)
    ]
    decoding = Decoding(TEMPERATURE)
    together = decoding.decode_array(pa.array(payloads, pa.binary()))
    one_by_one = decoding.decode_listed(payloads, [None] * len(payloads))
    assert one_by_one == together
    assert 0 < together[-1].null_count < len(payloads)


def test_a_string_never_has_the_quotes_of_its_neighbour() -> None:
    """Even where together they have the right number."""
    schema = TypedSchema("t", {"type": "object", "properties": {"s": {"type": "string"}}})
    payloads = [b'{"s":"a"}', b'{"s":"a}', b'{"s":"a"b"}', b'{"s":"c"}']
    assert {0: ["a"], 3: ["c"]} == fitting(schema, payloads)


EVEN = [
    b'{"celsius":%d.5,"timestamp_ms":%d,"sensor_id":"a%d"}' % (n, n, n) for n in range(10, 40)
]


@pytest.mark.parametrize(
    ("usual", "odd"),
    [
        (b"celsius", b"Celsius"),
        (b":20.5", b':"0."'),
        (b":20.5", b":2,.5"),
        (b":20.5", b":020."),
        (b":20,", b":20 "),
        (b'"a20"', b'"a"0"'),
        (b'"a20"', b'"a\\n"'),
        (b'"a20"', b'"a2\n"'),
        (b'"a20"', b'"a\xc3\xbc"'),
        (b'"a20"', b'"a2"}'),
        (b'"a20"}', b'"a"}  '),
    ],
)
def test_the_odd_one_among_payloads_of_one_length_does_not_fit(
    usual: bytes, odd: bytes
) -> None:
    """All the others do, and match the decoder."""
    payloads = list(EVEN)
    payloads[10] = EVEN[10].replace(usual, odd)
    assert len(EVEN[10]) == len(payloads[10])
    assert payloads[10] != EVEN[10]
    expected = {row: row_of(TEMPERATURE, payload) for row, payload in enumerate(EVEN)}
    expected.pop(10)
    assert expected == fitting(TEMPERATURE, payloads)


def test_payloads_of_one_length_and_layout_all_fit() -> None:
    """Each row has its own values."""
    found = fitting(TEMPERATURE, EVEN)
    assert {row: row_of(TEMPERATURE, payload) for row, payload in enumerate(EVEN)} == found


def test_an_extra_quote_is_not_made_up_for_by_a_missing_one() -> None:
    """In rows of one length that together have the right number of quotes."""
    schema = TypedSchema("t", {"type": "object", "properties": {"s": {"type": "string"}}})
    payloads = [b'{"s":"abc"}', b'{"s":"a"c"}', b'{"s":"abc }', b'{"s":"xyz"}']
    assert {0: ["abc"], 3: ["xyz"]} == fitting(schema, payloads)


def test_a_member_that_is_forbidden_shows_no_shape() -> None:
    """One that the schema does not describe is checked but not kept."""
    payloads = [b'{"n":1,"other":2.5}', b'{"n":1,"other":02}', b'{"n":3,"other":4}']
    assert Shape.of(payloads[0], BOUNDED) is None
    assert {0: [1, None], 2: [3, None]} == fitting(OPEN, payloads)


def test_payloads_with_many_quotes_are_left_to_the_decoder() -> None:
    """The positions of their quotes would need eight times their memory."""
    quotes = b'"' * 8 * (QUOTES_FACTOR_MAX + 1)
    assert {} == fitting(TEMPERATURE, [GOOD, *[quotes] * 4])
    assert [0] == list(fitting(TEMPERATURE, [GOOD, *[quotes[:8]] * 4]))


def test_no_row_may_fit() -> None:
    """Not even the one that shows the shape, if it is not plain."""
    odd = GOOD.replace(b'"a"', b'"\xc3\xbc"')
    assert Shape.of(odd, TEMPERATURE) is not None
    assert {} == fitting(TEMPERATURE, [odd])
