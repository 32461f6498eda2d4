"""Schemas on the client's side."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from braidmq.base.schemas import BUILT_IN
from braidmq.broker import schemas as broker
from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Schema
from braidmq.client.qumbed.schemas import Schemas

READING = b'{"celsius": 21.5, "timestamp_ms": 1, "sensor_id": "a"}'

ours, theirs = Schemas(), broker.Schemas()


@pytest.mark.parametrize(
    ("schema_id", "payload", "problem"),
    [
        ("sensor.Temperature", READING, ""),
        ("sensor.Temperature", b'{"celsius": 1, "timestamp_ms": 1}', "$.sensor_id is missing"),
        ("sensor.Humidity", READING, "$.percent is missing"),
        ("sensor.Temperature", READING.replace(b"21.5", b'"hot"'), "$.celsius breaks 'type'"),
        ("control.Command", b'{"action": "on", "params": {"a": [1]}}', ""),
        ("control.Command", b'{"action": ""}', "$.action breaks 'minLength'"),
        ("control.Command", b'{"action": "\\ud800"}', ""),
        ("control.Command", b'{"action": "on"', "the payload is not JSON"),
        ("control.Command", b'{"action": NaN}', "the payload is not JSON"),
        ("control.Command", b"\xff", "the payload is not JSON"),
        ("control.Command", b"", "the payload is not JSON"),
        ("control.Command", 300 * b"[" + 300 * b"]", "the payload cannot be validated"),
        ("unknown.Schema", b"\xff", ""),
    ],
)
def test_a_payload_is_validated_against_its_schema(
    schema_id: str, payload: bytes, problem: str
) -> None:
    """The error names the place, never a value; unknown schemas are not checked."""
    assert problem == ours.problem(schema_id, payload)


def test_client_and_broker_have_the_same_built_in_schemas() -> None:
    """They have the same ids."""
    assert theirs.ids() == sorted(BUILT_IN)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=2),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["celsius", "percent", "timestamp_ms", "sensor_id", "action", "params"]
            ),
            inner,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(sorted(BUILT_IN)), values.map(lambda value: repr(value).encode()))
@example("control.Command", 70 * b"[" + 70 * b"]")
@example("control.Command", b'{"action": ' + 5000 * b"9" + b"}")
def test_client_and_broker_validate_alike(schema_id: str, text: bytes) -> None:
    """A broker accepts exactly the payloads that the client accepts."""
    payload = text.replace(b"'", b'"').replace(b"None", b"null").replace(b"True", b"true")

    assert bool(theirs.problem(schema_id, payload)) == bool(ours.problem(schema_id, payload))


def test_custom_schemas() -> None:
    """They are validated like the built-in ones."""
    schemas = Schemas({"our.Number": {"type": "integer", "maximum": 7}})

    assert "" == schemas.problem("our.Number", b"7")
    assert "$ breaks 'maximum'" == schemas.problem("our.Number", b"8")
    assert "$.celsius is missing" == schemas.problem("sensor.Temperature", b"{}")


@pytest.mark.parametrize(
    ("schema_id", "schema", "text"),
    [
        ("", {}, "empty or already in use"),
        ("control.Command", {}, "empty or already in use"),
        ("a", {"type": "nonsense"}, "'a' is not a JSON Schema"),
        ("a", {"$ref": "http://127.0.0.1:1/other"}, "'a' is not a JSON Schema"),
        ("a", {"pattern": "("}, "'a' is not a JSON Schema"),
        ("a", {"\ud800": 5}, "'a' is not a JSON Schema"),
        ("x" * 65_536, {}, "at most 65535 bytes"),
        ("\ud800", {}, "lone surrogates"),
    ],
)
def test_an_invalid_schema_is_refused(schema_id: str, schema: Schema, text: str) -> None:
    """At construction; references are never fetched."""
    with pytest.raises(InvalidArgument, match=text):
        Schemas({schema_id: schema})


def test_a_long_path_is_cut() -> None:
    """Problems are meant for human readers."""
    schemas = Schemas({"a": {"additionalProperties": {"type": "string"}}})
    problem = schemas.problem("a", b'{"' + 1000 * b"k" + b'": 1}')

    assert 160 == len(problem)
    assert problem.endswith("…")
