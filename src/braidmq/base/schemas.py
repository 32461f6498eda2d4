"""The built-in JSON Schemas, for broker, clients and readers of the log. Only data."""

from typing import Final

SCHEMA_ID_BYTES_MAX: Final = 65_535
"""A schema's id travels as a header, whose length is a u16."""

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
