"""Typed columns: valid payloads are typed, others are kept with the reason."""

import base64
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq import columnar
from braidmq.base.errors import ConfigError
from braidmq.broker.schemas import Schemas
from braidmq.client.qumbed.boxes import KeyPair
from braidmq.client.qumbed.envelope import Sealer
from braidmq.columnar.decoding.decode import Decoding, decode_rows
from braidmq.columnar.decoding.schemas import TypedSchema
from braidmq.columnar.decoding.unsealing import NOT_SEALED, Unsealing
from tests.unit.columnar.logs import message, write_log

TEMPERATURE = "sensor.Temperature"
GOOD = b'{"celsius":21.5,"timestamp_ms":17,"sensor_id":"a"}'
PAYLOADS: dict[bytes, tuple[float, int, str] | str] = {
    GOOD: (21.5, 17, "a"),
    b' {"celsius": -1, "timestamp_ms": 1.0, "sensor_id": "\xc3\xbc", "x": []}\n': (
        -1.0,
        1,
        "ü",
    ),
    b'{"celsius":1,"timestamp_ms":17}': "sensor_id",
    b'{"celsius":"1","timestamp_ms":17,"sensor_id":"a"}': "celsius",
    b'{"celsius":1,"timestamp_ms":1.5,"sensor_id":"a"}': "timestamp_ms",
    b'{"celsius":1,"timestamp_ms":9223372036854775808,"sensor_id":"a"}': "timestamp_ms",
    b'{"celsius":1,"timestamp_ms":1e300,"sensor_id":"a"}': "timestamp_ms",
    b'{"celsius":null,"timestamp_ms":1,"sensor_id":"a"}': "celsius",
    b'{"celsius":1,"timestamp_ms":1,"sensor_id":"\\ud800"}': "surrogate",
    b'{"celsius":1,"timestamp_ms":1,"sensor_id":"a","x":"\\ud800"}': (1.0, 1, "a"),
    b'{"celsius":NaN,"timestamp_ms":1,"sensor_id":"a"}': "malformed",
    b'{"celsius":1,"timestamp_ms":1,"sensor_id":"a","x":"\xff"}': "UTF-8",
    GOOD + GOOD: "malformed",
    b"": "truncated",
    b"\x00\x01": "malformed",
    b'{"x":' + b"[" * 100_000: "recursion",
}


def typed(schema: str = TEMPERATURE) -> Decoding:
    return Decoding(TypedSchema.built_in(schema))


NULLABLE = {
    "v": {"type": ["number", "null"]},
    "n": {"type": "integer"},
    "o": {"type": ["object", "null"]},
}
NUMBERS: dict[bytes, tuple[object, ...]] = {
    b'{"v":1e308,"n":1.0}': (1e308, 1, None, None),
    b'{"v":1e999}': (None, None, None, "a number is out of range"),
    b'{"v":-1e400}': (None, None, None, "a number is out of range"),
    b'{"n":1.0,"o":{"x":1e999}}': (None, None, None, "a number is out of range"),
    b'{"n":1.0,"o":{"x":[1.5,"\xc3\xbc"]},"z":1e999}': (None, 1, '{"x":[1.5,"ü"]}', None),
}


NESTED: dict[bytes, tuple[object, ...]] = {
    b'{"o": {"x": null} }': ('{"x": null}', None),
    b'{"o": null }': (None, None),
    b'{"o" :null,"n":1.0}': (None, None),
    b"{}": (None, None),
    b'{"o": [null]}': (None, "Expected `object` - at `$.o`"),
    b'{"o": "null"}': (None, "Expected `object` - at `$.o`"),
}


@pytest.mark.parametrize(("payload", "expected"), NESTED.items())
def test_an_object_is_its_text_or_null_where_allowed(
    payload: bytes, expected: tuple[object, ...]
) -> None:
    """Anything else is an error."""
    decoding = Decoding(TypedSchema("s", {"type": "object", "properties": NULLABLE}))
    columns = decoding.decode_array(pa.array([payload]))

    assert expected == tuple(column[0].as_py() for column in columns[2:])


@pytest.mark.parametrize(("payload", "expected"), NUMBERS.items())
def test_a_number_that_no_column_can_hold_is_an_error(
    payload: bytes, expected: tuple[object, ...]
) -> None:
    """Even where null is allowed: a null would hide the reason."""
    decoding = Decoding(TypedSchema("s", {"type": "object", "properties": NULLABLE}))

    assert expected == tuple(
        column[0].as_py() for column in decoding.decode_array(pa.array([payload]))
    )


def test_every_row_is_typed_or_quarantined(tmp_path: Path) -> None:
    """A quarantined row has its bytes and a reason; none is missing."""
    write_log(tmp_path, [message("t", payload) for payload in PAYLOADS], segment_bytes=2**20)
    found = columnar.read(tmp_path, decoding=typed(), batch_rows=4).to_pylist()

    assert list(PAYLOADS) == [row["value"] for row in found]
    for row, expected in zip(found, PAYLOADS.values(), strict=True):
        fields = row["celsius"], row["timestamp_ms"], row["sensor_id"]
        if isinstance(expected, tuple):
            assert (expected, None) == (fields, row["_error"])
        else:
            assert (None, None, None) == fields
            assert expected.lower() in row["_error"].lower()
    assert 3 == sum(row["_error"] is None for row in found)


def test_typed_columns_follow_the_others(tmp_path: Path) -> None:
    """In the schema's order, with the reason last; the payload need not be requested."""
    write_log(tmp_path, [message("t", GOOD)])
    found = columnar.read(tmp_path, columns=["offset"], decoding=typed())

    assert [
        ("offset", pa.int64()),
        ("celsius", pa.float64()),
        ("timestamp_ms", pa.int64()),
        ("sensor_id", pa.string()),
        ("_error", pa.string()),
    ] == [(field.name, field.type) for field in found.schema]
    assert (1, 21.5, 17, "a", None) == tuple(found.to_pylist()[0].values())


def test_a_nested_object_is_json_text(tmp_path: Path) -> None:
    """The text is kept as it was; anything else in its place is an error."""
    payloads = [
        b'{"action":"go","params": {"a": [1, "\xc3\xbc"]}}',
        b'{"action":"go"}',
        b'{"action":"go","params":[1]}',
        b'{"action":"","params":{}}',
    ]
    write_log(tmp_path, [message("t", payload) for payload in payloads])
    found = columnar.read(tmp_path, decoding=typed("control.Command")).to_pylist()

    assert ['{"a": [1, "ü"]}', None, None, None] == [row["params"] for row in found]
    assert [None, None, "Expected `object` - at `$.params`"] == [
        row["_error"] for row in found[:3]
    ]
    assert found[3]["_error"] is not None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=4,
)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        name: JSON | st.sampled_from(["a", 1, 1.0, {}, {"b": 2.0}])
        for name in ("celsius", "timestamp_ms", "sensor_id", "action", "params", "z")
    },
)


@given(FIELDS | JSON, st.sampled_from(Schemas().ids()))
def test_what_the_decoder_accepts_is_what_the_broker_calls_valid(
    value: object, schema_id: str
) -> None:
    """The compiled decoder and the broker's validator agree."""
    payload = json.dumps(value).encode()
    errors: list[str | None] = [None]
    rows = decode_rows(TypedSchema.built_in(schema_id), [payload], errors)

    assert (Schemas().problem(schema_id, payload) == "") == (errors[0] is None)
    assert (rows[0] is None) == (errors[0] is not None)


def test_sealed_rows_are_opened_with_the_right_key_only(tmp_path: Path) -> None:
    """They are typed with it; without it their bytes stay as they are, with the reason."""
    sender, reader, other = (KeyPair.generate() for _ in range(3))
    sealer = Sealer(sender, now_ms=1)

    def seal(recipient: KeyPair) -> bytes:
        return sealer.seal(
            GOOD, recipient.public_key, topic="t", schema_id=TEMPERATURE, now_ms=1
        )

    kept = {
        "senderPublicKey": base64.b64encode(sender.public_key).decode(),
        "schemaId": TEMPERATURE,
    }
    boxes = [seal(reader), seal(other)]
    bodies = [message("t", box, origin=3, kept=kept) for box in boxes]
    write_log(tmp_path, [*bodies, message("t", GOOD), message("t", b"not sealed")])

    opening = Unsealing(reader.reveal_private_key())
    found = columnar.read(
        tmp_path, decoding=Decoding(TypedSchema.built_in(TEMPERATURE), opening)
    ).to_pylist()
    assert [GOOD, boxes[1], GOOD, b"not sealed"] == [row["value"] for row in found]
    assert [21.5, None, 21.5, None] == [row["celsius"] for row in found]
    assert [None, "the box does not open", None] == [row["_error"] for row in found[:3]]
    assert found[3]["_error"] is not None

    opened = columnar.read(tmp_path, decoding=Decoding(unsealing=opening)).to_pylist()
    assert [GOOD, boxes[1], GOOD, b"not sealed"] == [row["value"] for row in opened]
    assert [None, "the box does not open", None, None] == [row["_error"] for row in opened]
    only = columnar.read(tmp_path, columns=["offset"], decoding=Decoding(unsealing=opening))
    assert ["offset", "_error"] == only.schema.names

    trusting = Unsealing(reader.reveal_private_key(), trusted=[sender.public_key])
    found = columnar.read(
        tmp_path, decoding=Decoding(TypedSchema.built_in(TEMPERATURE), trusting)
    ).to_pylist()
    assert [GOOD, boxes[1], GOOD, b"not sealed"] == [row["value"] for row in found]
    assert [21.5, None, None, None] == [row["celsius"] for row in found]
    assert [None, "the box does not open", NOT_SEALED, NOT_SEALED] == [
        row["_error"] for row in found
    ]


def test_a_log_without_sealed_rows_has_no_trusted_row(tmp_path: Path) -> None:
    """Each row says so, with a schema and without."""
    write_log(tmp_path, [message("t", GOOD), message("t", GOOD, kept={"key": "k"})])
    opening = Unsealing(
        KeyPair.generate().reveal_private_key(), trusted=[KeyPair.generate().public_key]
    )
    for schema in (None, TypedSchema.built_in(TEMPERATURE)):
        found = columnar.read(tmp_path, decoding=Decoding(schema, opening))

        assert [NOT_SEALED] * 2 == found["_error"].to_pylist()


def test_a_log_without_sealed_rows_reads_the_same_with_a_key(tmp_path: Path) -> None:
    """Only the column of errors is added."""
    write_log(tmp_path, [message("t", b"x" * 50), message("t", b"", kept={"key": "k"})])
    opening = Unsealing(KeyPair.generate().reveal_private_key())
    found = columnar.read(tmp_path, decoding=Decoding(unsealing=opening))

    assert columnar.read(tmp_path) == found.drop_columns(["_error"])
    assert 2 == found["_error"].null_count


@pytest.mark.parametrize("name", ["topic", "Topic", "TIMESTAMPTYPE", "headers", "_Error"])
def test_a_field_with_the_name_of_a_column_is_refused(name: str) -> None:
    """Upper or lower case: Spark, among others, does not tell them apart."""
    schema = TypedSchema("s", {"type": "object", "properties": {name: {"type": "string"}}})

    with pytest.raises(ConfigError, match=f"the field '{name}' has the name of a column"):
        Decoding(schema)


def test_a_decoding_needs_a_schema_or_a_key() -> None:
    """With neither there is nothing to do."""
    with pytest.raises(ConfigError, match="needs a schema"):
        Decoding()
