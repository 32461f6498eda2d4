"""Schemas on the client's side: what a payload must be before it is sealed, and when opened.

A broker cannot look into sealed messages, so the two ends hold them against their schemas. The
three that every broker knows are built in; others are given by the program. A schema that only
the broker knows is left to the broker.
"""

from collections.abc import Mapping
from typing import Final

import jsonschema_rs

from braidmq.base.schemas import BUILT_IN, SCHEMA_ID_BYTES_MAX
from braidmq.base.strict_json import read_value
from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Schema

PROBLEM_CHARS_MAX: Final = 160
"""A path can be as long as a payload's keys are."""


class Schemas:
    """The schemas that this client knows: the built-in ones, and *given* by their ids.

    Raises:
        InvalidArgument: An id cannot be one, or is taken, or it is no JSON Schema that stands
            by itself.
    """

    def __init__(self, given: Mapping[str, Schema] | None = None) -> None:
        self._validators: dict[str, jsonschema_rs.Validator] = {}
        for schema_id, schema in (*BUILT_IN.items(), *(given or {}).items()):
            check_schema_id(schema_id)
            if not schema_id or schema_id in self._validators:
                raise InvalidArgument(f"schema {schema_id!r} cannot be given: no such new id")
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
        """Say where *payload* breaks a schema, never repeating a value.

        "" when it does not, or when the schema is not known here.
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
            # It is deeper than the validator goes, or has a number of thousands of digits.
            return "the payload cannot be validated"
        return ""


def check_schema_id(schema_id: str) -> None:
    """Raise InvalidArgument unless *schema_id* can be a schema's, or is empty for none."""
    try:
        size = len(schema_id.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("a schema id is a text without lone surrogates") from None
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
