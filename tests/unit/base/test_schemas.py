"""The built-in schemas, as the protocol page describes them, and validation by any schema."""

import pytest

from braidmq.base.schemas import BUILT_IN, PROBLEM_CHARS_MAX, compiled, problem_with

READING = b'{"celsius": 21.5, "timestamp_ms": 1, "sensor_id": "a"}'
DEEP = 300 * b"[" + 300 * b"]"


def test_the_built_in_schemas_require_the_documented_fields() -> None:
    """Every field of a reading, but only the action of a command."""
    assert {
        "sensor.Temperature": ["celsius", "timestamp_ms", "sensor_id"],
        "sensor.Humidity": ["percent", "timestamp_ms", "sensor_id"],
        "control.Command": ["action"],
    } == {name: schema["required"] for name, schema in BUILT_IN.items()}


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (READING, ""),
        (READING.replace(b"21.5", b'"hot"'), "$.celsius breaks 'type'"),
        (b'{"celsius": 1, "timestamp_ms": 1}', "$.sensor_id is missing"),
        (b"[]", "$ breaks 'type'"),
        (b"\xff", "the payload is not JSON"),
        (DEEP, "the payload cannot be validated"),
    ],
)
def test_a_problem_names_the_path_and_no_value(payload: bytes, problem: str) -> None:
    """Payloads may be confidential, and errors are logged."""
    validator = compiled(BUILT_IN["sensor.Temperature"])

    assert problem == problem_with(payload, validator)


def test_paths_into_arrays_have_indexes() -> None:
    """They are written as in JSONPath."""
    numbers = compiled({"items": {"type": "integer"}})

    assert "$[1] breaks 'type'" == problem_with(b'[1, "x"]', numbers)


def test_a_long_path_is_truncated() -> None:
    """A path can be as long as a payload's keys."""
    texts = compiled({"additionalProperties": {"type": "string"}})
    problem = problem_with(b'{"' + 1000 * b"k" + b'": 1}', texts)

    assert PROBLEM_CHARS_MAX == len(problem)
    assert problem.endswith("…")


@pytest.mark.parametrize(
    "json_schema",
    [{"type": "nonsense"}, {"pattern": "("}, {"$ref": "http://127.0.0.1:1/other"}],
)
def test_an_invalid_schema_is_an_error(json_schema: dict[str, object]) -> None:
    """So is one that refers to a remote schema."""
    with pytest.raises(ValueError, match="is not a JSON Schema: "):
        compiled(json_schema)
