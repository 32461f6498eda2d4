"""Schemas: what a typed topic's payloads look like, and what kind of payload bytes are.

Three schemas are built in; more are added at start. A schema is JSON Schema, compiled once; it
never fetches anything. The broker cannot look into sealed payloads, and does not try.
"""

from typing import Final

import jsonschema_rs

from braidmq.base.errors import BraidError
from braidmq.base.schemas import BUILT_IN, SCHEMA_ID_BYTES_MAX, compiled, problem_with
from braidmq.base.strict_json import is_json

PLAIN: Final = 0
"""JSON text; valid, when a schema was named."""

SEALED: Final = 1
"""A box between two keys, which only its recipient can look into."""

OPAQUE: Final = 2
"""Any other bytes; no schema was named."""

SCHEMA_INVALID: Final = 3
SCHEMA_UNKNOWN: Final = 4

SEALED_BYTES_MIN: Final = 40
"""Nonce and tag of an empty payload."""

SENDER_KEY_BYTES: Final = 32


class SchemaError(BraidError):
    """A schema cannot be added; the text says why."""


class Schemas:
    """The schemas by their ids."""

    def __init__(self) -> None:
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        for schema_id, json_schema in BUILT_IN.items():
            self.add(schema_id, json_schema)

    def add(self, schema_id: str, json_schema: dict[str, object]) -> None:
        """Compile a schema and keep it; ids are given once, the built-in ones included.

        Raises:
            SchemaError: The id is taken or invalid, or it is not a self-contained JSON
                Schema.
        """
        if not 0 < len(schema_id.encode(errors="replace")) <= SCHEMA_ID_BYTES_MAX:
            raise SchemaError(f"a schema id has 1 to {SCHEMA_ID_BYTES_MAX} bytes")
        if schema_id in self._validators:
            raise SchemaError("there is already a schema of that id")
        try:
            self._validators[schema_id] = compiled(json_schema)
        except ValueError as error:
            raise SchemaError(str(error)) from None

    def ids(self) -> list[str]:
        """Return the ids of all schemas, sorted."""
        return sorted(self._validators)

    def is_known(self, schema_id: str) -> bool:
        """Tell whether there is a schema of that id."""
        return schema_id in self._validators

    def problem(self, schema_id: str, payload: bytes) -> str:
        """Say where *payload* breaks a known schema, never repeating a value; "" when valid."""
        return problem_with(payload, self._validators[schema_id])

    def judge(self, payload: bytes, schema_id: str, sender_key: bytes) -> int:
        """Say what a payload is, or why it is refused; no schema is an empty id.

        payload                                  known schema          no schema
        JSON text                                PLAIN or _INVALID     PLAIN
        else 40 bytes or more with a sender key  SEALED                SEALED
        else                                     _INVALID              OPAQUE
        """
        if schema_id and schema_id not in self._validators:
            return SCHEMA_UNKNOWN
        if is_json(payload):
            return SCHEMA_INVALID if schema_id and self.problem(schema_id, payload) else PLAIN
        if len(payload) >= SEALED_BYTES_MIN and len(sender_key) == SENDER_KEY_BYTES:
            return SEALED
        return SCHEMA_INVALID if schema_id else OPAQUE
