"""Schemas in the client: payloads are validated before sealing and after opening.

A broker cannot look into sealed messages, so both ends validate them. The three schemas that
every broker knows are built in; the program may add others. A schema that only the broker knows
is left to the broker.
"""

from collections.abc import Mapping
from typing import Final

import jsonschema_rs

from braidmq.base.schemas import BUILT_IN, SCHEMA_ID_BYTES_MAX
from braidmq.base.strict_json import read_value
from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Schema

PROBLEM_CHARS_MAX: Final = 160
"""Problems are cut to this length: a path can be as long as the keys of a payload."""


class Schemas:
    """The schemas that this client knows: the built-in ones, and those *given*, by id.

    Raises:
        InvalidArgument: An id is invalid or in use, or a schema is not a self-contained JSON
            Schema.
    """

    def __init__(self, given: Mapping[str, Schema] | None = None) -> None:
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        for schema_id, schema in (*BUILT_IN.items(), *(given or {}).items()):
            check_schema_id(schema_id)
            if not schema_id or schema_id in self._validators:
                raise InvalidArgument(f"schema id {schema_id!r} is empty or already in use")
            try:
                validator = jsonschema_rs.validator_for(dict(schema), offline=True)
            except jsonschema_rs.ValidationError as error:
                problem = f"is not a JSON Schema: {error.message}"
                raise InvalidArgument(f"schema {schema_id!r} {problem}") from None
            except ValueError as error:
                problem = f"is not a JSON Schema: {error}"
                raise InvalidArgument(f"schema {schema_id!r} {problem}") from None
            self._validators[schema_id] = validator

    def problem(self, schema_id: str, payload: bytes) -> str:
        """Return where *payload* violates a schema, without repeating any value.

        Returns "" if it does not, or if the schema is not known here.
        """
        validator = self._validators.get(schema_id)
        if validator is None:
            return ""
        try:
            value = read_value(payload)
        except (ValueError, RecursionError):
            return "the payload is not JSON"
        try:
            validator.validate(value)
        except jsonschema_rs.ValidationError as error:
            return _where(error)
        except (ValueError, RecursionError):
            # It is nested too deeply for the validator, or has a number of thousands of digits.
            return "the payload cannot be validated"
        return ""


def check_schema_id(schema_id: str) -> None:
    """Raise InvalidArgument unless *schema_id* is a valid id, or empty for none."""
    try:
        size = len(schema_id.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("a schema id is text without lone surrogates") from None
    if size > SCHEMA_ID_BYTES_MAX:
        raise InvalidArgument(f"a schema id has at most {SCHEMA_ID_BYTES_MAX} bytes")


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
