"""Rows that a client sends for a sink, checked as publishes are, in the columns of a stage.

    the client sends                                        a stage stores
    value     binary or string, required                    value     binary
    topic     string; required unless the topic is given    topic     string
    key       binary or string: becomes the header `key`  \
    headers   list of (key, value), or a map              /  headers   binary, a block
    priority  a word or a number from 0 to 3                priority  int8

Other columns are ignored, as Kafka's sink does, and so are headers that only the broker sets.
Unusable columns are a ConfigError, an unusable row is a RefusedRowError.
"""

from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from braidmq.base.errors import ConfigError, NotAllowedError, RefusedRowError
from braidmq.base.limits import KIB, MESSAGE_BYTES_MAX, TOPIC_BYTES_MAX
from braidmq.broker.authorize import PUBLISH
from braidmq.broker.topics import (
    HEADER_BYTES_MAX,
    MESSAGE_ID_HEADER,
    PRIORITY_CRITICAL,
    PRIORITY_LOW,
    PRIORITY_NORMAL,
    encode_headers,
    is_brokers_header,
)
from braidmq.server.strands.vibe.deliveries import PRIORITIES
from braidmq.wire.vibe.messages import HEADERS_MAX

ROW_BYTES_MAX: Final = MESSAGE_BYTES_MAX - KIB
"""Topic, value and headers of a row; the frame that carries them needs some more bytes."""

TOPICS_JUDGED_MAX: Final = 10_000
"""Topics that are remembered as allowed while a stage is written."""

KEY_HEADER: Final = "key"

SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("value", pa.binary()),
        ("headers", pa.binary()),
        ("priority", pa.int8()),
    ]
)
"""The columns of a stage; no value is null, and a row without headers has an empty block."""


class RowJudge:
    """Turns the batches of one stage into rows that can be messages; counts them.

    Raises:
        ConfigError: A column is missing, or of a type that cannot be used.
    """

    def __init__(
        self, schema: pa.Schema, topic: str | None, may_publish: Callable[[str], bool]
    ) -> None:
        self.rows = 0
        self.topics = 0  # names so far; one that was judged again counts twice
        self.name_bytes = 0
        self._may_publish = may_publish
        self._topic = topic
        self._judged: set[str] = set()
        for name, is_right, wanted in _COLUMNS:
            found = schema.get_all_field_indices(name)
            if len(found) > 1:
                raise ConfigError(name, "there are two columns of that name")
            if found and not is_right(schema.field(name).type):
                raise ConfigError(name, f"a {schema.field(name).type} column: must be {wanted}")
        self._has = {name for name, _, _ in _COLUMNS if name in schema.names}
        if "value" not in self._has:
            raise ConfigError("value", "there is no such column; it holds the payload")
        if topic is None and "topic" not in self._has:
            raise ConfigError("topic", "neither an option nor a column names it")

    def staged(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the next rows as a stage stores them.

        Raises:
            RefusedRowError: One cannot be a message.
            NotAllowedError: The principal may not publish to a row's topic.
        """
        try:
            batch.validate(full=True)  # a client may send anything
        except pa.ArrowInvalid as error:
            raise RefusedRowError(self.rows, f"its batch is not valid: {error}") from None
        columns = {name: batch.column(name) for name in self._has}
        topics = self._topics(columns.get("topic"), len(batch))
        values = self._values(columns["value"])
        headers = self._headers(columns.get("key"), columns.get("headers"), len(batch))
        priorities = self._priorities(columns.get("priority"), len(batch))
        staged = pa.RecordBatch.from_arrays(
            [topics, values, headers, priorities], schema=SCHEMA
        )
        self._check_sizes(staged)
        self.rows += len(batch)
        return staged

    def _refused(self, row: int, reason: str) -> RefusedRowError:
        return RefusedRowError(self.rows + row, reason)

    def _topics(self, column: pa.Array | None, count: int) -> pa.Array:
        if self._topic is not None:
            column = pa.repeat(pa.scalar(self._topic, pa.string()), count)
        assert column is not None
        column = column.cast(pa.string())
        if column.null_count:
            raise self._refused(pc.index(column.is_null(), value=True).as_py(), "topic is null")
        # By distinct name: a stage has many rows and few topics.
        for name in column.unique().to_pylist():
            if name not in self._judged:
                self._judge_topic(name, column)
        return column

    def _judge_topic(self, name: str, column: pa.Array) -> None:
        if not 1 <= len(name.encode()) <= TOPIC_BYTES_MAX:
            rule = f"a topic has 1 to {TOPIC_BYTES_MAX} bytes"
            raise self._refused(pc.index(column, value=name).as_py(), rule)
        if not self._may_publish(name):
            raise NotAllowedError(PUBLISH, name)
        if len(self._judged) >= TOPICS_JUDGED_MAX:
            self._judged.clear()
        self._judged.add(name)
        self.topics += 1
        self.name_bytes += len(name.encode())

    def _values(self, column: pa.Array) -> pa.Array:
        if column.null_count:
            raise self._refused(pc.index(column.is_null(), value=True).as_py(), "value is null")
        return column.cast(pa.binary())

    def _priorities(self, column: pa.Array | None, count: int) -> pa.Array:
        if column is None:
            return pa.repeat(pa.scalar(PRIORITY_NORMAL, pa.int8()), count)
        found: list[int] = []
        for row, said in enumerate(column.to_pylist()):
            number = PRIORITIES.get(said.lower(), -1) if isinstance(said, str) else said
            if number is None:
                number = PRIORITY_NORMAL
            if not PRIORITY_LOW <= number <= PRIORITY_CRITICAL:
                words = ", ".join(PRIORITIES)
                raise self._refused(row, f"priority {said!r:.64} is not one of {words}")
            found.append(number)
        return pa.array(found, pa.int8())

    def _headers(self, keys: pa.Array | None, lists: pa.Array | None, count: int) -> pa.Array:
        key_list = _given(keys)
        header_lists = _given(lists)
        if not (key_list or header_lists):
            return pa.repeat(pa.scalar(b"", pa.binary()), count)
        nothing = [None] * count
        found = [
            self._block(row, key, given)
            for row, (key, given) in enumerate(
                zip(key_list or nothing, header_lists or nothing, strict=True)
            )
        ]
        return pa.array(found, pa.binary())

    def _block(self, row: int, key: bytes | str | None, given: list[Any] | None) -> bytes:
        if key is None and not given:
            return b""
        kept: dict[str, str] = {}
        for item in given or ():
            if item is None:
                raise self._refused(row, "a header is null")
            name, value = item.values() if isinstance(item, dict) else item
            if name is None or value is None:
                raise self._refused(row, "a header has no key or no value")
            if name in kept:
                raise self._refused(row, f"header {name!r:.64} is there twice")
            if name != MESSAGE_ID_HEADER and not is_brokers_header(name):
                kept[name] = self._text(row, "header", value)
        if key is not None:
            kept[KEY_HEADER] = self._text(row, "key", key)  # overrides a header of that name
        if len(kept) > HEADERS_MAX:
            raise self._refused(row, f"it has {len(kept)} headers, at most {HEADERS_MAX}")
        for text in (*kept, *kept.values()):
            if len(text.encode()) > HEADER_BYTES_MAX:
                rule = f"is longer than {HEADER_BYTES_MAX} bytes"
                raise self._refused(row, f"a header's key or value {rule}")
        return encode_headers(kept)

    def _text(self, row: int, what: str, value: bytes | str) -> str:
        if isinstance(value, str):
            return value
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise self._refused(row, f"a {what} is not UTF-8 text") from None

    def _check_sizes(self, staged: pa.RecordBatch) -> None:
        sizes = pc.add(
            pc.binary_length(staged.column("value")), pc.binary_length(staged.column("headers"))
        )
        sizes = pc.add(sizes, pc.binary_length(staged.column("topic")))
        largest = pc.max(sizes).as_py() if len(staged) else 0
        if largest > ROW_BYTES_MAX:
            row = pc.index(sizes, value=largest).as_py()
            raise self._refused(row, f"it has {largest} bytes, at most {ROW_BYTES_MAX}")


def _given(column: pa.Array | None) -> list[Any]:
    """Return the values of a column, an empty list if all are null."""
    if column is None or column.null_count == len(column):
        return []
    found: list[Any] = column.to_pylist()
    return found


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or _is_text(kind)


def _is_priority(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or _is_text(kind)


def _is_headers(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and _is_bytes(kind.item_type)
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    item = kind.value_type
    if not pa.types.is_struct(item) or [field.name for field in item] != ["key", "value"]:
        return False
    return _is_text(item.field("key").type) and _is_bytes(item.field("value").type)


_COLUMNS: Final[list[tuple[str, Callable[[pa.DataType], bool], str]]] = [
    ("value", _is_bytes, "binary or string"),
    ("topic", _is_text, "string"),
    ("key", _is_bytes, "binary or string"),
    ("headers", _is_headers, "array<struct<key: string, value: binary>>"),
    ("priority", _is_priority, "string or int"),
]
