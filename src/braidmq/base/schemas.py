"""JSON Schemas: those that are built in, and how broker and clients validate payloads."""

from typing import Final

import jsonschema_rs

from braidmq.base.strict_json import is_json, read_value

SCHEMA_ID_BYTES_MAX: Final = 65_535
"""A schema's id travels as a header, whose length is a u16."""

PROBLEM_CHARS_MAX: Final = 160
"""Problems are cut to this length: a path can be as long as the keys of a payload."""

_NUMBER: Final[dict[str, object]] = {"type": "number"}
_INTEGER: Final[dict[str, object]] = {"type": "integer"}
_STRING: Final[dict[str, object]] = {"type": "string"}

BUILT_IN: Final[dict[str, dict[str, object]]] = {
    "sensor.Temperature": {
        "type": "object",
        "properties": {"celsius": _NUMBER, "timestamp_ms": _INTEGER, "sensor_id": _STRING},
        "required": ["celsius", "timestamp_ms", "sensor_id"],
    },
    "sensor.Humidity": {
        "type": "object",
        "properties": {"percent": _NUMBER, "timestamp_ms": _INTEGER, "sensor_id": _STRING},
        "required": ["percent", "timestamp_ms", "sensor_id"],
    },
    "control.Command": {
        "type": "object",
        "properties": {
            "action": {"type": "string", "minLength": 1},
            "params": {"type": "object"},
        },
        "required": ["action"],
    },
}


def compiled(json_schema: dict[str, object]) -> jsonschema_rs.Validator:
    """Return a validator for a self-contained JSON Schema; it never fetches anything.

    Raises:
        ValueError: It is not one; the text says why.
    """
    try:
        return jsonschema_rs.validator_for(json_schema, offline=True)
    except jsonschema_rs.ValidationError as error:
        raise ValueError(f"is not a JSON Schema: {error.message}") from None
    except ValueError as error:  # for example a reference to another document
        raise ValueError(f"is not a JSON Schema: {error}") from None


def problem_with(payload: bytes, validator: jsonschema_rs.Validator) -> str:
    """Return where *payload* violates a schema, without repeating any value; "" if valid."""
    if not is_json(payload):
        return "the payload is not JSON"
    try:
        validator.validate(read_value(payload))
    except jsonschema_rs.ValidationError as error:
        return _where(error)
    except (ValueError, RecursionError):
        # It is nested too deeply for the validator, or has a number of thousands of digits.
        return "the payload cannot be validated"
    return ""


def _where(error: jsonschema_rs.ValidationError) -> str:
    path = "$" + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in error.instance_path
    )
    kind = error.kind
    if isinstance(kind, jsonschema_rs.ValidationErrorKind.Required):
        text = f"{path}.{kind.property} is missing"
    else:
        text = f"{path} breaks {kind.name!r}"
    return text if len(text) <= PROBLEM_CHARS_MAX else text[: PROBLEM_CHARS_MAX - 1] + "…"
