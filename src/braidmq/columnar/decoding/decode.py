"""Payloads as typed columns: unsealed, then decoded; an invalid row stays, with the reason.

A batch gets the fields of the schema and `_error` as further columns. `_error` is null for a
valid row. For any other the fields are null, and `value` is kept: as it was sent if it could
not be opened or had to be sealed, unsealed if it was opened but does not match its schema.
"""

import json
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from braidmq.base import strict_json
from braidmq.base.errors import ConfigError
from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.schemas import Field, TypedSchema
from braidmq.columnar.decoding.shapes import Fitting, Shape
from braidmq.columnar.decoding.unsealing import (
    SCHEMA_HEADER,
    SENDER_HEADER,
    NotUnsealedError,
    Unsealing,
)

ERROR_COLUMN: Final = "_error"
_OWN_NAMES: Final = frozenset(name.lower() for name in (*TYPES, ERROR_COLUMN))
PROBLEM_CHARS_MAX: Final = 160
NOT_UTF8: Final = "the payload is not UTF-8"
_NULL: Final = b"null"
SHAPES_MAX: Final = 4
"""Shapes to try in a batch; rows that fit none of them are decoded one by one."""

SHAPED_ROWS_MIN: Final = 256
"""With fewer rows, arrays cost more than they save."""

LONE_SURROGATES: Final = "a text holds lone surrogates"
OUT_OF_RANGE: Final = "a number is out of range"


class Source(Protocol):
    """What decoding needs of the columns that a batch was made from."""

    def value(self) -> pa.Array:
        """Return the payloads."""

    def topic(self) -> pa.Array:
        """Return the topic names."""

    def named_header(self, name: bytes) -> pa.Array:
        """Return the value of one header for each row, null where there is none; as binary."""


class Decoding:
    """How payloads are decoded: by *unsealing*, a *schema*, or both.

    Raises:
        ConfigError: Neither was given, or a field has the name of a column.
    """

    def __init__(
        self, schema: TypedSchema | None = None, unsealing: Unsealing | None = None
    ) -> None:
        if schema is None and unsealing is None:
            raise ConfigError("decoding", "needs a schema, or a key to unseal with")
        self._schema = schema
        self._unsealing = unsealing
        self._fields: list[Field] = [] if schema is None else schema.fields
        for field in self._fields:
            if field.name.lower() in _OWN_NAMES:
                problem = f"the field {field.name!r} has the name of a column"
                raise ConfigError("schema", f"{problem}; case does not tell them apart")

    @property
    def unseals(self) -> bool:
        """Whether payloads are unsealed, which needs their headers."""
        return self._unsealing is not None

    def schema_behind(self, columns: pa.Schema) -> pa.Schema:
        """Return the schema of decoded batches whose own columns are *columns*."""
        added = [pa.field(field.name, field.type) for field in self._fields]
        return pa.schema([*columns, *added, pa.field(ERROR_COLUMN, pa.string())])

    def decode(self, batch: pa.RecordBatch, columns: Source) -> pa.RecordBatch:
        """Return *batch*, which was made from *columns*, with its payloads decoded."""
        names = batch.schema.names
        values = batch.column("value") if "value" in names else columns.value()
        opened = None if self._unsealing is None else self._unseal(columns, values)
        arrays = list(batch.columns)
        if opened is None:
            arrays += self.decode_array(values)
        else:
            payloads, errors = opened
            if "value" in names:
                arrays[names.index("value")] = pa.array(payloads, pa.binary())
            arrays += self.decode_listed(payloads, errors)
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema_behind(batch.schema))

    def _unseal(
        self, columns: Source, values: pa.Array
    ) -> tuple[list[bytes], list[str | None]] | None:
        """Return the opened payloads and their errors; None if all are taken as they are."""
        assert self._unsealing is not None
        senders = columns.named_header(SENDER_HEADER)
        if senders.null_count == len(senders) and self._unsealing.trusts_all:
            return None
        payloads: list[bytes] = values.to_pylist()
        errors: list[str | None] = [None] * len(payloads)
        schema_ids = columns.named_header(SCHEMA_HEADER).to_pylist()
        topics = columns.topic().to_pylist()
        for row, sender in enumerate(senders.to_pylist()):
            try:
                payloads[row] = self._unsealing.open(
                    payloads[row], sender, topic=topics[row], schema_id=schema_ids[row] or b""
                )
            except NotUnsealedError as error:
                errors[row] = str(error)
        return payloads, errors

    def decode_array(self, values: pa.Array) -> list[pa.Array]:
        """Return the columns of fields and errors for payloads that are not sealed.

        Payloads of one shape are decoded together, the others one by one.
        """
        if self._schema is None:
            return [pa.nulls(len(values), pa.string())]
        found: list[Fitting] = []
        left = np.arange(len(values))
        for attempt in range(SHAPES_MAX):
            if len(left) < SHAPED_ROWS_MIN:
                break
            # Sample at different depths: the first payload may be the only one of its shape.
            shown = values[int(left[len(left) * attempt // SHAPES_MAX])].as_py()
            shape = Shape.of(shown, self._schema)
            if shape is not None:
                rest = values if len(left) == len(values) else values.take(pa.array(left))
                rows, columns = shape.fitting(rest, self._fields)
                found.append(Fitting(left[rows], [*columns, pa.nulls(len(rows), pa.string())]))
                left = np.delete(left, rows)
        if len(left) or not found:
            payloads = values.take(pa.array(left)).to_pylist()
            found.append(Fitting(left, self.decode_listed(payloads, [None] * len(payloads))))
        return _in_order(found)

    def decode_listed(
        self, payloads: Sequence[bytes], errors: list[str | None]
    ) -> list[pa.Array]:
        """Return the columns of fields and errors, decoding payloads one by one."""
        arrays: list[pa.Array] = []
        if self._schema is not None:
            rows = decode_rows(self._schema, payloads, errors)
            arrays = [_column(rows, number, field) for number, field in enumerate(self._fields)]
        return [*arrays, pa.array(errors, pa.string())]


def _in_order(parts: Sequence[Fitting]) -> list[pa.Array]:
    """Return the columns of all rows, in their original order; each row is in one part."""
    if len(parts) == 1:
        return parts[0].columns
    # `places` is the inverse of the permutation `order`: where each row is in the parts.
    order = np.concatenate([part.rows for part in parts])
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    taken = pa.array(places)
    columns = zip(*(part.columns for part in parts), strict=True)
    return [pa.concat_arrays(pieces).take(taken) for pieces in columns]


def decode_rows(
    schema: TypedSchema, payloads: Sequence[bytes], errors: list[str | None]
) -> list[Any]:
    """Return a row for each payload, or None if it is invalid; the reason goes to *errors*.

    A payload that already has an error is not decoded.
    """
    decode = schema.decoder.decode
    nested = [(f"f{i}", field) for i, field in enumerate(schema.fields) if field.opens]
    if not nested and all(map(bytes.isascii, payloads)) and not any(errors):
        # The usual case: all payloads of a batch are valid.
        with suppress(ValueError, RecursionError):
            return list(map(decode, payloads))
    rows: list[Any] = []
    for number, payload in enumerate(payloads):
        row = None
        if errors[number] is None:
            try:
                row = decode(payload)
                if nested:
                    _check_nested(row, nested)
                if not payload.isascii():
                    payload.decode()  # the decoder does not check the texts that it skips
            except UnicodeDecodeError:
                row, errors[number] = None, NOT_UTF8
            except (ValueError, RecursionError) as error:
                row, problem = _second_look(schema, payload, nested)
                if row is None:
                    errors[number] = problem or _text_of(error)
        rows.append(row)
    return rows


def _check_nested(row: Any, nested: list[tuple[str, Field]]) -> None:  # noqa: ANN401 - made types
    # A Raw field takes any JSON value. It was parsed, so its first byte tells its type.
    for attribute, field in nested:
        value = getattr(row, attribute)
        if isinstance(value, msgspec.Raw) and not _is_of(field, bytes(value).lstrip()):
            raise msgspec.ValidationError(f"Expected `{field.kind}` - at `$.{field.name}`")


def _is_of(field: Field, text: bytes) -> bool:
    return text.startswith(field.opens) or (field.nullable and text == _NULL)


def _second_look(
    schema: TypedSchema, payload: bytes, nested: list[tuple[str, Field]]
) -> tuple[Any, str]:
    """Return the row of a payload that only the decoder refuses, else None and the reason.

    msgspec refuses two kinds of valid payload: JSON Schema calls 1.0 an integer, and texts that
    no column shows may hold lone surrogates. A reason of "" leaves it to the decoder's text.
    """
    try:
        values = strict_json.read_value_exactly(payload)
        if not isinstance(values, dict):
            return None, ""
        for field in schema.fields:
            value = values.get(field.name)
            if field.kind == "integer" and isinstance(value, float) and value.is_integer():
                values[field.name] = int(value)
        if not schema.is_strict:
            shown = {field.name for field in schema.fields}
            values = {name: value for name, value in values.items() if name in shown}
        if (text := _finite_text(values)) is None:
            return None, OUT_OF_RANGE
        row = schema.decoder.decode(text.encode())
        _check_nested(row, nested)
    except UnicodeEncodeError:
        return None, LONE_SURROGATES
    except (ValueError, RecursionError):
        return None, ""
    return row, ""


def _finite_text(values: dict[str, Any]) -> str | None:
    """Return the JSON of values; None if a number is infinite, which JSON cannot express."""
    try:
        return _plain.encode(values)
    except ValueError:
        return None


_plain: Final = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), check_circular=False
)


def _text_of(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text if len(text) <= PROBLEM_CHARS_MAX else text[: PROBLEM_CHARS_MAX - 1] + "…"


def _column(rows: list[Any], number: int, field: Field) -> pa.Array:
    attribute = f"f{number}"
    # The fast way, without a test per row; it fails if an invalid row is None.
    try:
        found = list(map(attrgetter(attribute), rows))
    except AttributeError:
        found = [None if row is None else getattr(row, attribute) for row in rows]
    if not field.required:
        found = [None if value is msgspec.UNSET else value for value in found]
    if field.opens:
        texts = [_NULL if value is None else bytes(value) for value in found]
        found = [None if text == _NULL else text.decode() for text in texts]
    return pa.array(found, field.type)
