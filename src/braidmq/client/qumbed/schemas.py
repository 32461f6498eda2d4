"""Schemas in the client: payloads are validated before sealing and after opening.

A broker cannot look into sealed messages, so both ends validate them. The three schemas that
every broker knows are built in; the program may add others. A schema that only the broker knows
is left to the broker.
"""

from collections.abc import Mapping

import jsonschema_rs

from braidmq.base.schemas import BUILT_IN, SCHEMA_ID_BYTES_MAX, compiled, problem_with
from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Schema
from braidmq.client.publishing import utf8


class Schemas:
    """The schemas that this client knows: the built-in ones, and those *given*, by id.

    Raises:
        InvalidArgument: An id is invalid or in use, or a schema is not a self-contained JSON
            Schema.
    """

    def __init__(self, given: Mapping[str, Schema] | None = None) -> None:
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        for schema_id, schema in (*BUILT_IN.items(), *(given or {}).items()):
            utf8("a schema id", schema_id, SCHEMA_ID_BYTES_MAX)
            if not schema_id or schema_id in self._validators:
                raise InvalidArgument(f"schema id {schema_id!r} is empty or already in use")
            try:
                self._validators[schema_id] = compiled(dict(schema))
            except ValueError as error:
                raise InvalidArgument(f"schema {schema_id!r} {error}") from None

    def problem(self, schema_id: str, payload: bytes) -> str:
        """Return where *payload* violates a schema, without repeating any value.

        Returns "" if it does not, or if the schema is not known here.
        """
        validator = self._validators.get(schema_id)
        return "" if validator is None else problem_with(payload, validator)
