"""Recognise schemas of sensor readings: a sensor, a moment, and one number.

sensor_id      string     the sensor
timestamp_ms   integer    when it measured, in milliseconds since 1970
...            number     the value: the only other number, or the one that the user names
"""

from typing import Final, NamedTuple

from braidmq.base.errors import ConfigError
from braidmq.columnar import TypedSchema

SENSOR: Final = "sensor_id"
EVENT_TIME: Final = "timestamp_ms"
_NUMBERS: Final = frozenset({"number", "integer"})


class Reading(NamedTuple):
    """A schema of readings: its id, and the field that holds what was measured."""

    schema_id: str
    value: str


def reading_of(schema: TypedSchema, value: str | None = None) -> Reading:
    """Return the reading in *schema*; *value* names the number, if there are several.

    Raises:
        ConfigError: Its payloads are not readings.
    """
    kinds = {field.name: field.kind for field in schema.fields}
    if kinds.get(SENSOR) != "string" or kinds.get(EVENT_TIME) != "integer":
        problem = (
            f"{schema.id!r} is not a schema of readings: it needs a string {SENSOR!r} and "
            f"an integer {EVENT_TIME!r}"
        )
        raise ConfigError("schema", problem)
    numbers = [name for name, kind in kinds.items() if kind in _NUMBERS and name != EVENT_TIME]
    if value is not None and value not in numbers:
        problem = f"{value!r} is not a number of {schema.id!r}; there are: {_listed(numbers)}"
        raise ConfigError("value", problem)
    if value is None and len(numbers) != 1:
        problem = (
            f"{schema.id!r} has {len(numbers)} numbers besides {EVENT_TIME!r}, and a reading "
            f"is one; name it with --value: {_listed(numbers)}"
        )
        raise ConfigError("schema", problem)
    return Reading(schema.id, value or numbers[0])


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"
