"""Which schemas are of readings."""

import pytest

from braidmq.base.errors import ConfigError
from braidmq.base.schemas import BUILT_IN
from braidmq.columnar import TypedSchema
from braidmq.spark.pipelines.readings import Reading, reading_of

NUMBER = {"type": "number"}
FIELDS = {"sensor_id": {"type": "string"}, "timestamp_ms": {"type": "integer"}}


def schema(**more: object) -> TypedSchema:
    return TypedSchema("mine", {"type": "object", "properties": {**FIELDS, **more}})


def test_the_built_in_sensor_schemas_are() -> None:
    """Their one number is what was measured."""
    found = {
        schema_id: reading_of(TypedSchema.built_in(schema_id)).value
        for schema_id in BUILT_IN
        if schema_id.startswith("sensor.")
    }

    assert {"sensor.Temperature": "celsius", "sensor.Humidity": "percent"} == found


def test_one_of_several_numbers_is_named() -> None:
    """Integers are numbers too, but for the time."""
    found = schema(volts=NUMBER, count={"type": "integer"})

    assert Reading("mine", "volts") == reading_of(found, "volts")
    assert Reading("mine", "count") == reading_of(found, "count")


REFUSED = {
    "no sensor": (TypedSchema.built_in("control.Command"), None, "needs a string 'sensor_id'"),
    "no number": (schema(place={"type": "string"}), None, "has 0 numbers .* --value: none"),
    "two numbers": (schema(a=NUMBER, b=NUMBER), None, "has 2 numbers .* --value: a, b"),
    "not its number": (schema(a=NUMBER), "b", "'b' is not a number of 'mine'; there are: a"),
    "the time": (schema(a=NUMBER), "timestamp_ms", "is not a number of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_others_are_refused_with_what_is_missing(case: str) -> None:
    """The text names the schema, the field and the way out."""
    found, value, problem = REFUSED[case]

    with pytest.raises(ConfigError, match=problem):
        reading_of(found, value)


def test_a_time_that_is_a_text_is_no_reading() -> None:
    """The fields need their types, not their names alone."""
    fields = {**FIELDS, "timestamp_ms": {"type": "string"}, "a": NUMBER}
    found = TypedSchema("mine", {"type": "object", "properties": fields})

    with pytest.raises(ConfigError, match="an integer 'timestamp_ms'"):
        reading_of(found)
