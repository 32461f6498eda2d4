"""Schemas, and the kinds of payload."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.schemas import PROBLEM_CHARS_MAX
from braidmq.base.strict_json import is_json
from braidmq.broker.schemas import (
    OPAQUE,
    PLAIN,
    SCHEMA_INVALID,
    SCHEMA_UNKNOWN,
    SEALED,
    SchemaError,
    Schemas,
)

TEMPERATURE, HUMIDITY, COMMAND = "sensor.Temperature", "sensor.Humidity", "control.Command"
KEY = bytes(range(32))
VALID_TEMPERATURE = b'{"celsius":22.5,"timestamp_ms":1700000000000,"sensor_id":"node-1"}'

VALID: list[tuple[str, bytes]] = [
    (TEMPERATURE, VALID_TEMPERATURE),
    (TEMPERATURE, b'{"celsius":-40,"timestamp_ms":0,"sensor_id":""}'),
    (TEMPERATURE, b' {"sensor_id":"\xc3\xa9","celsius":1e3,"timestamp_ms":1,"more":[1]} '),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":-1,"sensor_id":"\\ud800"}'),
    (TEMPERATURE, b'{"celsius":"x","celsius":1,"timestamp_ms":1,"sensor_id":"a"}'),
    (HUMIDITY, b'{"percent":55.5,"timestamp_ms":1,"sensor_id":"a"}'),
    (HUMIDITY, b'{"percent":900,"timestamp_ms":1,"sensor_id":"a"}'),
    (COMMAND, b'{"action":"open"}'),
    (COMMAND, b'{"action":"open","params":{}}'),
    (COMMAND, b'{"action":"open","params":{"speed":3,"why":null}}'),
]

INVALID: list[tuple[str, bytes, str]] = [
    (TEMPERATURE, b"{}", "$.celsius is missing"),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":1}', "$.sensor_id is missing"),
    (TEMPERATURE, b'{"celsius":1,"sensor_id":"a"}', "$.timestamp_ms is missing"),
    (TEMPERATURE, b'{"Celsius":1,"timestamp_ms":1,"sensor_id":"a"}', "$.celsius is missing"),
    (TEMPERATURE, b'{"celsius":"s3cret","timestamp_ms":1,"sensor_id":"a"}', "$.celsius"),
    (TEMPERATURE, b'{"celsius":null,"timestamp_ms":1,"sensor_id":"a"}', "$.celsius"),
    (TEMPERATURE, b'{"celsius":true,"timestamp_ms":1,"sensor_id":"a"}', "$.celsius"),
    (TEMPERATURE, b'{"celsius":1e999,"timestamp_ms":1,"sensor_id":"a"}', "$.celsius"),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":1.5,"sensor_id":"a"}', "$.timestamp_ms"),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":"1","sensor_id":"a"}', "$.timestamp_ms"),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":1,"sensor_id":7}', "$.sensor_id"),
    (TEMPERATURE, b"null", "$ breaks 'type'"),
    (TEMPERATURE, b'["s3cret"]', "$ breaks 'type'"),
    (TEMPERATURE, b'"s3cret"', "$ breaks 'type'"),
    (TEMPERATURE, b"", "the payload is not JSON"),
    (TEMPERATURE, b"s3cret", "the payload is not JSON"),
    (TEMPERATURE, b'{"celsius":NaN,"timestamp_ms":1,"sensor_id":"a"}', "is not JSON"),
    (TEMPERATURE, b'{"celsius":1,"timestamp_ms":1,"sensor_id":"\xff"}', "is not JSON"),
    (TEMPERATURE, b"[" * 300 + b"]" * 300, "cannot be validated"),
    (HUMIDITY, VALID_TEMPERATURE, "$.percent is missing"),
    (HUMIDITY, b'{"percent":"wet","timestamp_ms":1,"sensor_id":"a"}', "$.percent"),
    (COMMAND, b"{}", "$.action is missing"),
    (COMMAND, b'{"action":""}', "$.action breaks 'minLength'"),
    (COMMAND, b'{"action":5}', "$.action breaks 'type'"),
    (COMMAND, b'{"action":"open","params":["s3cret"]}', "$.params breaks 'type'"),
    (COMMAND, b'{"action":"open","params":null}', "$.params breaks 'type'"),
]


@pytest.mark.parametrize(("schema_id", "payload"), VALID)
def test_valid_payloads_have_no_problem(schema_id: str, payload: bytes) -> None:
    """Extra fields pass, ranges are not checked, and the last of repeated names counts."""
    schemas = Schemas()

    assert "" == schemas.problem(schema_id, payload)
    assert PLAIN == schemas.judge(payload, schema_id, b"")
    assert PLAIN == schemas.judge(payload, schema_id, KEY)


@pytest.mark.parametrize(("schema_id", "payload", "where"), INVALID)
def test_a_problem_names_the_path_and_never_the_value(
    schema_id: str, payload: bytes, where: str
) -> None:
    """A log that shows it does not reveal the payload."""
    schemas = Schemas()
    problem = schemas.problem(schema_id, payload)

    assert where in problem
    assert "s3cret" not in problem
    assert SCHEMA_INVALID == schemas.judge(payload, schema_id, b"")


def test_three_schemas_are_built_in() -> None:
    """No other id is known, not even the empty one."""
    schemas = Schemas()

    assert [COMMAND, HUMIDITY, TEMPERATURE] == schemas.ids()
    assert all(map(schemas.is_known, schemas.ids()))
    assert not schemas.is_known("")
    assert not schemas.is_known("sensor.temperature")


JSON_OF_39 = b'"' + b"x" * 37 + b'"'
BOX = b"\xff" * 40


@pytest.mark.parametrize(
    ("payload", "sender_key", "with_schema", "without"),
    [
        (VALID_TEMPERATURE, b"", PLAIN, PLAIN),
        (VALID_TEMPERATURE, KEY, PLAIN, PLAIN),
        (b"1", KEY, SCHEMA_INVALID, PLAIN),
        (JSON_OF_39, KEY, SCHEMA_INVALID, PLAIN),
        (b'"' + b"x" * 60 + b'"', KEY, SCHEMA_INVALID, PLAIN),
        (b'"\\ud800' + b"x" * 60 + b'"', KEY, SCHEMA_INVALID, PLAIN),
        (BOX, KEY, SEALED, SEALED),
        (BOX + b"more", KEY, SEALED, SEALED),
        (b"not JSON, but at least forty bytes of text", KEY, SEALED, SEALED),
        (BOX[:39], KEY, SCHEMA_INVALID, OPAQUE),
        (BOX, b"", SCHEMA_INVALID, OPAQUE),
        (BOX, KEY[:31], SCHEMA_INVALID, OPAQUE),
        (b"", KEY, SCHEMA_INVALID, OPAQUE),
        (b"", b"", SCHEMA_INVALID, OPAQUE),
        (b'"\xff"', b"", SCHEMA_INVALID, OPAQUE),
        (b"[" * 100_000 + b"]" * 100_000, b"", SCHEMA_INVALID, OPAQUE),  # too deep to read
    ],
)
def test_a_payload_is_plain_sealed_or_opaque(
    payload: bytes, sender_key: bytes, with_schema: int, without: int
) -> None:
    """JSON first, then a box, then anything; a payload that breaks its schema is refused."""
    schemas = Schemas()

    assert with_schema == schemas.judge(payload, TEMPERATURE, sender_key)
    assert without == schemas.judge(payload, "", sender_key)
    assert SCHEMA_UNKNOWN == schemas.judge(payload, "foo.Bar", sender_key)


def test_a_schema_can_be_added() -> None:
    """Payloads are validated against it from then on."""
    schemas = Schemas()
    schemas.add("my.Flag", {"type": "array", "items": {"type": "boolean"}})

    assert schemas.is_known("my.Flag")
    assert PLAIN == schemas.judge(b"[true]", "my.Flag", b"")
    assert "$[1] breaks 'type'" == schemas.problem("my.Flag", b"[true,0]")


@pytest.mark.parametrize(
    ("json_schema", "text"),
    [
        ({"type": "nonsense"}, "is not a JSON Schema"),
        ({"properties": 5}, "is not a JSON Schema"),
        ({"pattern": "("}, "is not a JSON Schema"),
        ({"$ref": "#/nowhere"}, "is not a JSON Schema"),
        ({"$ref": "http://127.0.0.1:9/x.json"}, "is not a JSON Schema"),
        ({"$ref": "file:///etc/hostname"}, "is not a JSON Schema"),
        ({"$schema": "http://127.0.0.1:9/x.json"}, "is not a JSON Schema"),
        ({"\ud800": 5}, "is not a JSON Schema"),
    ],
)
def test_an_invalid_schema_is_refused(json_schema: dict[str, object], text: str) -> None:
    """Nothing is fetched from the network or from a file, and nothing is added."""
    schemas = Schemas()
    with pytest.raises(SchemaError, match=text):
        schemas.add("my.Schema", json_schema)

    assert not schemas.is_known("my.Schema")


@pytest.mark.parametrize("schema_id", ["", "x" * 65_536, TEMPERATURE, "taken"])
def test_a_schema_id_is_unique_and_fits_a_header(schema_id: str) -> None:
    """The built-in schemas cannot be replaced."""
    schemas = Schemas()
    schemas.add("taken", {})
    with pytest.raises(SchemaError):
        schemas.add(schema_id, {})

    assert SCHEMA_INVALID == schemas.judge(b"{}", TEMPERATURE, b"")


def test_a_long_path_is_truncated() -> None:
    """A payload's own keys can make a path as long as the payload."""
    schemas = Schemas()
    schemas.add("my.Map", {"additionalProperties": {"type": "number"}})
    problem = schemas.problem("my.Map", json.dumps({"k" * 10_000: "x"}).encode())

    assert PROBLEM_CHARS_MAX == len(problem)
    assert problem.startswith("$.kkk")


def test_a_number_with_a_hundred_thousand_digits_is_not_parsed() -> None:
    """It is JSON, but it fails validation."""
    payload = b'{"celsius":' + b"1" * 100_000 + b',"timestamp_ms":1,"sensor_id":"a"}'
    schemas = Schemas()

    assert PLAIN == schemas.judge(payload, "", b"")
    assert SCHEMA_INVALID == schemas.judge(payload, TEMPERATURE, b"")


@given(st.binary(max_size=60) | st.text(max_size=30).map(str.encode), st.booleans())
def test_any_bytes_get_a_verdict(payload: bytes, keyed: bool) -> None:
    """Nothing raises, and JSON is whatever the standard library can read."""
    try:
        json.loads(payload.decode(), parse_constant=int)
    except ValueError:
        expected = False
    else:
        expected = True
    verdict = Schemas().judge(payload, "", KEY if keyed else b"")

    assert expected == is_json(payload)
    assert expected == (verdict == PLAIN)
