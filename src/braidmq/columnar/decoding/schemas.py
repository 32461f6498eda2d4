"""JSON Schemas of flat objects as columns, and one compiled decoder for each.

    string         string      minLength, maxLength, pattern, enum
    integer        int64       minimum, maximum, exclusiveMinimum, exclusiveMaximum, multipleOf
    number         double      the same
    boolean        bool
    object, array  string      its JSON text; the content is not checked

and of each, `["type", "null"]`. `required` and `additionalProperties: false` are enforced. A
schema with any other keyword is refused: rows would count as valid that the broker refuses. So
is one whose names differ by case only, because readers of tables do not distinguish them.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import pyarrow as pa

from braidmq.base.errors import ConfigError
from braidmq.base.schemas import BUILT_IN

SETTING: Final = "schema"

_TYPES: Final[dict[str, tuple[object, pa.DataType]]] = {
    "string": (str, pa.string()),
    "integer": (int, pa.int64()),
    "number": (float, pa.float64()),
    "boolean": (bool, pa.bool_()),
    "object": (msgspec.Raw, pa.string()),
    "array": (msgspec.Raw, pa.string()),
}
_BOUNDS: Final = {
    "minimum": "ge",
    "maximum": "le",
    "exclusiveMinimum": "gt",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
}
_LENGTHS: Final = {"minLength": "min_length", "maxLength": "max_length", "pattern": "pattern"}
_KEYWORDS: Final[dict[str, dict[str, str]]] = {
    "string": _LENGTHS,
    "integer": _BOUNDS,
    "number": _BOUNDS,
}
_SAYS_NOTHING: Final = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "examples", "default", "deprecated"}
)
_INT64: Final = {"ge": -(2**63), "le": 2**63 - 1}
_OPENS: Final = {"object": b"{", "array": b"["}


class Field:
    """One property: its name, its column, and how its values are checked.

    `bounds` are under msgspec's names. The field is plain if it has only bounds, and a double
    holds each of them exactly: such a field can also be checked as a whole column.
    """

    def __init__(self, name: str, schema: object, *, required: bool) -> None:
        if not isinstance(schema, dict):
            raise _refusal(f"the property {name!r} must be an object")
        self.name = name
        self.required = required
        self.kind, self.nullable = _kind(name, schema)
        self.type: pa.DataType = _TYPES[self.kind][1]
        self.opens = _OPENS.get(self.kind, b"")
        self.bounds: dict[str, Any] = {}
        self.python_type = self._judged(schema)

    def _judged(self, schema: dict[str, object]) -> Any:  # noqa: ANN401 - it is a type, made here
        keywords = _KEYWORDS.get(self.kind, {})
        found: Any = _TYPES[self.kind][0]
        given: dict[str, Any] = {}
        for keyword, value in schema.items():
            if keyword in keywords:
                given[keywords[keyword]] = value
            elif keyword == "enum" and self.kind == "string" and (texts := _texts(value)):
                found = Literal[texts]
            elif keyword != "type" and keyword not in _SAYS_NOTHING:
                raise _refusal(f"{keyword!r} of {self.name!r} cannot be checked in columns")
        simple = found in {str, int, float}
        if given and not simple:
            raise _refusal(f"'enum' of {self.name!r} cannot be checked together with bounds")
        try:
            bounds = _of_integers(given) if found is int else given
            if bounds:
                found = Annotated[found, msgspec.Meta(**bounds)]
            msgspec.json.Decoder(found)  # checks the bounds now, and not with the first payload
        except (TypeError, ValueError) as error:
            raise _refusal(f"{self.name!r}: {error}") from None
        self.bounds = {name: at for name, at in bounds.items() if at != _INT64.get(name)}
        self.is_plain = simple and all(map(_is_plain, self.bounds.items()))
        if self.nullable and not self.opens:  # raw JSON text may be `null` in any case
            found = found | None
        return found if self.required else found | msgspec.UnsetType


def _of_integers(given: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds as inclusive integers, including those of 64 bits."""
    if any(isinstance(bound, bool) for bound in given.values()):
        raise TypeError("a bound must be a number")
    least, most = [_INT64["ge"]], [_INT64["le"]]
    if "ge" in given:
        least.append(math.ceil(given["ge"]))
    if "gt" in given:
        least.append(math.floor(given["gt"]) + 1)
    if "le" in given:
        most.append(math.floor(given["le"]))
    if "lt" in given:
        most.append(math.ceil(given["lt"]) - 1)
    bounds = {"ge": max(least), "le": min(most)}
    if "multiple_of" in given:
        bounds["multiple_of"] = given["multiple_of"]
    return bounds


def _kind(name: str, schema: dict[str, object]) -> tuple[str, bool]:
    given = schema.get("type")
    kinds = given if isinstance(given, list) else [given]
    named = [kind for kind in kinds if kind != "null"]
    if len(named) != 1 or named[0] not in _TYPES:
        raise _refusal(f"the type of {name!r} must be one of {', '.join(_TYPES)}")
    return str(named[0]), len(named) != len(kinds)


def _is_plain(bound: tuple[str, Any]) -> bool:
    name, value = bound
    return name not in {"multiple_of", "pattern"} and -(2**53) <= value <= 2**53


def _texts(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(text, str) for text in value):
        return tuple(value)
    return ()


def _check_names(fields: list[Field]) -> None:
    """Refuse names that Spark, among others, would treat as one column."""
    seen: dict[str, str] = {}
    for field in fields:
        other = seen.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise _refusal(f"{other!r} and {field.name!r} differ by case only")


def _refusal(problem: str) -> ConfigError:
    return ConfigError(SETTING, problem)


class TypedSchema:
    """The fields of a JSON Schema, in order, with a decoder for its payloads.

    Raises:
        ConfigError: It does not describe a flat object.
    """

    def __init__(self, schema_id: str, json_schema: dict[str, object]) -> None:
        self.id = schema_id
        self._content = json_schema
        properties = json_schema.get("properties")
        required = json_schema.get("required", [])
        if json_schema.get("type") != "object" or not isinstance(properties, dict):
            raise _refusal(f"{schema_id!r} does not describe an object with properties")
        for keyword in json_schema.keys() - _SAYS_NOTHING:
            if keyword not in {"type", "properties", "required", "additionalProperties"}:
                raise _refusal(f"{keyword!r} of {schema_id!r} cannot be checked in columns")
        open_ended = json_schema.get("additionalProperties", True)
        if not isinstance(open_ended, bool) or not isinstance(required, list):
            problem = f"'additionalProperties' of {schema_id!r} must be a boolean"
            raise _refusal(f"{problem}, 'required' a list")
        if not properties.keys() >= set(required):
            raise _refusal(f"{schema_id!r} requires properties that it does not describe")
        self.fields = [
            Field(name, schema, required=name in required)
            for name, schema in properties.items()
        ]
        _check_names(self.fields)
        self.is_strict = not open_ended
        self.row: type[msgspec.Struct] = msgspec.defstruct(
            "Row",
            [_definition(i, field) for i, field in enumerate(self.fields)],
            rename={f"f{i}": field.name for i, field in enumerate(self.fields)},
            forbid_unknown_fields=self.is_strict,
            kw_only=True,
            gc=False,  # rows hold no references to each other; tracking a million costs time
        )
        self.decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.row)

    def __reduce__(self) -> tuple[type["TypedSchema"], tuple[str, dict[str, object]]]:
        """Pickle the schema, not the types made from it: those cannot be pickled."""
        return TypedSchema, (self.id, self._content)

    @classmethod
    def built_in(cls, schema_id: str) -> "TypedSchema":
        """Return one of the built-in schemas.

        Raises:
            ConfigError: There is no built-in schema of that id.
        """
        if schema_id not in BUILT_IN:
            known = ", ".join(sorted(BUILT_IN))
            raise _refusal(f"there is no built-in schema {schema_id!r}; there are: {known}")
        return cls(schema_id, BUILT_IN[schema_id])

    @classmethod
    def from_file(cls, path: Path | str) -> "TypedSchema":
        """Return the schema in a file; its id is its `$id`, or the file's name without `.json`.

        Raises:
            ConfigError: It cannot be read, or does not describe a flat object.
        """
        try:
            content = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise _refusal(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise _refusal(f"{path} is not a JSON object: {error}") from None
        return cls(str(content.get("$id", Path(path).stem)), content)


def _definition(number: int, field: Field) -> Any:  # noqa: ANN401 - one of two forms of a tuple
    if field.required:
        return (f"f{number}", field.python_type)
    return (f"f{number}", field.python_type, msgspec.UNSET)
