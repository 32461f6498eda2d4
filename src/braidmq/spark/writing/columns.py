"""The columns that a write takes: those of Spark's Kafka sink, and a priority.

They are checked when the write is planned, so a wrong type fails before any task runs. Other
columns are ignored, as in Kafka's sink, so rows that were read can be written unchanged.
"""

from typing import Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructType,
)

from braidmq.base.errors import ConfigError
from braidmq.spark.options import WriteOptions

VALUE: Final = "value"
TOPIC: Final = "topic"

_TEXTS: Final = (BinaryType, StringType)
_PLAIN: Final[dict[str, tuple[tuple[type[DataType], ...], str]]] = {
    VALUE: (_TEXTS, "binary or string"),
    TOPIC: ((StringType,), "string"),
    "key": (_TEXTS, "binary or string"),
    "priority": (
        (StringType, ByteType, ShortType, IntegerType, LongType),
        "string, as in a read, or a whole number from 0 to 3",
    ),
}
_HEADERS: Final = "headers"
_HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


class UnusableColumnError(ConfigError):
    """A column cannot be written, or is missing; the error says why and what to do."""

    def __init__(self, column: str, problem: str, fix: str) -> None:
        super().__init__(f"column {column}", f"{problem}; {fix}")
        self.column = column


def sink_columns(schema: StructType, options: WriteOptions) -> list[str]:
    """Return the names of the columns that are written.

    Raises:
        UnusableColumnError: A required column is missing, or one has a wrong type.
    """
    names = schema.fieldNames()
    if VALUE not in names:
        fix = f"name the payload so, with `AS {VALUE}`; it is binary or string"
        raise UnusableColumnError(VALUE, "is missing", fix)
    if TOPIC not in names and options.topic is None:
        fix = "add it, or give the option topic"
        raise UnusableColumnError(TOPIC, "is missing", fix)
    chosen = [name for name in (*_PLAIN, _HEADERS) if name in names]
    if options.topic is not None and TOPIC in chosen:
        chosen.remove(TOPIC)  # the option wins
    for name in chosen:
        if names.count(name) > 1:
            raise UnusableColumnError(name, "appears twice", "select it once")
        _check(name, schema[name].dataType)
    return chosen


def _check(name: str, found: DataType) -> None:
    if name == _HEADERS:
        fits, wanted = _is_headers(found), _HEADERS_TYPE
    else:
        types, wanted = _PLAIN[name]
        fits = isinstance(found, types)
    if not fits:
        raise UnusableColumnError(name, f"is {found.simpleString()}", f"cast it: {wanted}")


def _is_headers(found: DataType) -> bool:
    if not isinstance(found, ArrayType) or not isinstance(found.elementType, StructType):
        return False
    entry = found.elementType
    if entry.fieldNames() != ["key", "value"]:
        return False
    return isinstance(entry["key"].dataType, StringType) and isinstance(
        entry["value"].dataType, _TEXTS
    )
