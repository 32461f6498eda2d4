"""JSON Schemas of flat objects as columns."""

from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from braidmq.base.errors import ConfigError
from braidmq.broker.schemas import Schemas
from braidmq.columnar.decoding.schemas import TypedSchema


def schema_with(**properties: object) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def test_every_built_in_schema_has_columns() -> None:
    """The three that the broker knows, with their types."""
    assert {
        "control.Command": [("action", pa.string()), ("params", pa.string())],
        "sensor.Humidity": [
            ("percent", pa.float64()),
            ("timestamp_ms", pa.int64()),
            ("sensor_id", pa.string()),
        ],
        "sensor.Temperature": [
            ("celsius", pa.float64()),
            ("timestamp_ms", pa.int64()),
            ("sensor_id", pa.string()),
        ],
    } == {
        schema_id: [(f.name, f.type) for f in TypedSchema.built_in(schema_id).fields]
        for schema_id in Schemas().ids()
    }
    with pytest.raises(ConfigError, match="no schema 'x'"):
        TypedSchema.built_in("x")


def test_a_schema_is_read_from_its_file(tmp_path: Path) -> None:
    """Its id is its $id, or else the file's name."""
    path = tmp_path / "door.json"
    path.write_bytes(msgspec.json.encode(schema_with(open={"type": "boolean"})))
    assert "door" == TypedSchema.from_file(path).id
    path.write_bytes(msgspec.json.encode({"$id": "house.Door", **schema_with()}))
    assert "house.Door" == TypedSchema.from_file(path).id
    for content in (b"[]", b"{", b"{}"):
        path.write_bytes(content)
        with pytest.raises(ConfigError):
            TypedSchema.from_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        TypedSchema.from_file(tmp_path / "none.json")


FIELDS = [
    ({"type": "string", "minLength": 2}, '"ab"', '"a"'),
    ({"type": "string", "maxLength": 1}, '"a"', '"ab"'),
    ({"type": "string", "pattern": "b"}, '"abc"', '"ac"'),
    ({"type": "string", "enum": ["on", "off"]}, '"on"', '"up"'),
    ({"type": "integer"}, "-5", "1.5"),
    ({"type": "integer", "minimum": 3}, "3", "2"),
    ({"type": "integer", "multipleOf": 3}, "9", "10"),
    ({"type": "integer", "minimum": 2.5}, "3", "2"),
    ({"type": "integer", "maximum": 3.0}, "3", "4"),
    ({"type": "integer", "exclusiveMinimum": 3}, "4", "3"),
    ({"type": "integer", "exclusiveMaximum": 3.5}, "3", "4"),
    ({"type": "integer", "minimum": -(2**70)}, "3", '"3"'),
    ({"type": "number", "maximum": 3}, "3", "3.1"),
    ({"type": "number", "exclusiveMinimum": 3}, "3.1", "3"),
    ({"type": "number", "exclusiveMaximum": 3}, "2.9", "3"),
    ({"type": "boolean"}, "true", "1"),
    ({"type": "string"}, '"x"', "null"),
    ({"type": ["string", "null"]}, "null", "1"),
    ({"type": ["null", "integer"], "title": "says nothing"}, "null", '"1"'),
]


@pytest.mark.parametrize(("field", "fits", "fails"), FIELDS)
@pytest.mark.parametrize("required", [True, False])
def test_a_field_is_validated_as_the_broker_validates_it(
    field: dict[str, object], fits: str, fails: str, required: bool
) -> None:
    """What the decoder accepts is valid, and what it refuses is not."""
    content = schema_with(x=field) | ({"required": ["x"]} if required else {})
    typed = TypedSchema("s", content)
    broker = Schemas()
    broker.add("s", content)

    for value, valid in ((fits, True), (fails, False)):
        payload = b'{"x":%s,"other":[]}' % value.encode()
        assert valid == (broker.problem("s", payload) == "")
        if valid:
            typed.decoder.decode(payload)
        else:
            with pytest.raises(msgspec.ValidationError):
                typed.decoder.decode(payload)
    if required:
        with pytest.raises(msgspec.ValidationError):
            typed.decoder.decode(b"{}")
    else:
        typed.decoder.decode(b"{}")


def test_additional_properties_may_be_forbidden() -> None:
    """A strict schema is enforced."""
    strict = schema_with(x={"type": "string"}) | {"additionalProperties": False}

    TypedSchema("s", strict).decoder.decode(b'{"x":"a"}')
    with pytest.raises(msgspec.ValidationError):
        TypedSchema("s", strict).decoder.decode(b'{"y":"a"}')


@pytest.mark.parametrize(
    "content",
    [
        {"type": "array"},
        {"type": "object"},
        {**schema_with(), "oneOf": []},
        {**schema_with(), "required": ["x"]},
        {**schema_with(), "additionalProperties": {"type": "string"}},
        schema_with(x=True),
        schema_with(x={}),
        schema_with(x={"type": "null"}),
        schema_with(x={"type": ["string", "integer"]}),
        schema_with(x={"type": "string", "format": "date"}),
        schema_with(x={"type": "object", "properties": {}}),
        schema_with(x={"type": "integer", "enum": [1]}),
        schema_with(x={"type": "string", "enum": ["a", 1]}),
        schema_with(x={"type": "string", "enum": ["a", "bc"], "minLength": 2}),
        schema_with(x={"type": "string", "minLength": "long"}),
        schema_with(x={"type": "integer", "minimum": "low"}),
        schema_with(x={"type": "integer", "minimum": True}),
        schema_with(x={"type": "integer", "minimum": 2**70}),
        schema_with(x={"$ref": "#/x"}),
        schema_with(Größe={"type": "string"}, GRÖßE={"type": "string"}),
    ],
)
def test_a_schema_that_columns_cannot_represent_is_refused(content: dict[str, Any]) -> None:
    """Otherwise invalid rows would pass for valid."""
    with pytest.raises(ConfigError):
        TypedSchema("s", content)
