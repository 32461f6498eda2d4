"""Rows on their way into a stage: which columns and which rows are valid."""

from typing import Any

import pyarrow as pa
import pytest

from braidmq.base.errors import ConfigError, NotAllowedError, RefusedRowError
from braidmq.broker.topics import encode_headers
from braidmq.server.sink.staged_rows import ROW_BYTES_MAX, SCHEMA, TOPICS_JUDGED_MAX, RowJudge
from braidmq.wire.vibe.messages import HEADERS_MAX

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TEXT_HEADERS = pa.large_list(pa.struct([("key", pa.string()), ("value", pa.string())]))
MAP_HEADERS = pa.map_(pa.string(), pa.binary())


def batch_of(types: dict[str, pa.DataType], *rows: tuple[Any, ...]) -> pa.RecordBatch:
    columns = list(zip(*rows, strict=True)) or [()] * len(types)
    arrays = [pa.array(list(c), t) for c, t in zip(columns, types.values(), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=list(types))


def staged(
    types: dict[str, pa.DataType], *rows: tuple[Any, ...], topic: str | None = None
) -> list[tuple[Any, ...]]:
    batch = batch_of(types, *rows)
    found = RowJudge(batch.schema, topic, lambda _: True).staged(batch)
    assert SCHEMA == found.schema
    return [tuple(row.values()) for row in found.to_pylist()]


def test_rows_need_only_a_value_and_a_topic() -> None:
    """Without headers the block is empty, and without a priority it is normal."""
    types = {"topic": pa.string(), "value": pa.binary()}

    assert [("a", b"1", b"", 1), ("ä", b"", b"", 1)] == staged(types, ("a", b"1"), ("ä", b""))


def test_the_topic_option_wins_over_the_column() -> None:
    """As in Kafka's sink, even where the column is null."""
    types = {"topic": pa.string(), "value": pa.binary()}

    assert [("t", b"1", b"", 1), ("t", b"2", b"", 1)] == staged(
        types, ("a", b"1"), (None, b"2"), topic="t"
    )


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.binary(), b"\xff"),
        (pa.large_binary(), b"\xff"),
        (pa.string(), "ä"),
        (pa.large_string(), "ä"),
    ],
)
def test_values_are_bytes_or_text(kind: pa.DataType, value: bytes | str) -> None:
    """Text is stored as UTF-8."""
    raw = value if isinstance(value, bytes) else value.encode()

    assert [("t", raw, b"", 1)] == staged({"value": kind}, (value,), topic="t")


def test_other_columns_are_ignored() -> None:
    """So that rows read from the source can be written as they are."""
    types = {"value": pa.binary(), "partition": pa.int32(), "timestamp": pa.timestamp("us")}

    assert [("t", b"1", b"", 1)] == staged(types, (b"1", 0, None), topic="t")


@pytest.mark.parametrize("kind", [HEADERS, TEXT_HEADERS, MAP_HEADERS])
def test_key_and_headers_become_one_block(kind: pa.DataType) -> None:
    """A key becomes the header `key`; rows with neither have no block."""
    types = {"value": pa.binary(), "key": pa.binary(), "headers": kind}
    found = staged(
        types,
        (b"", b"k", [("a", "1"), ("b", "2")] if kind == MAP_HEADERS else pairs(a="1", b="2")),
        (b"", None, None),
        (b"", b"k", None),
        (b"", None, []),
        topic="t",
    )
    blocks = [
        encode_headers({"a": "1", "b": "2", "key": "k"}),
        b"",
        encode_headers({"key": "k"}),
    ]

    assert [*blocks, b""] == [block for _, _, block, _ in found]


def pairs(**given: str) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in given.items()]


def test_the_key_column_wins_over_a_header_of_that_name() -> None:
    """The source shows the same header in both places."""
    types = {"value": pa.binary(), "key": pa.string(), "headers": HEADERS}
    found = staged(types, (b"", "new", pairs(key="old")), topic="t")

    assert encode_headers({"key": "new"}) == found[0][2]


def test_headers_that_only_the_broker_sets_are_left_out() -> None:
    """So that dead letters and messages from Vibe can be published again."""
    given = pairs(kept="1", deathReason="expired", deliveryAttempts="3")
    given.append({"key": "", "value": "id"})
    found = staged({"value": pa.binary(), "headers": HEADERS}, (b"", given), topic="t")

    assert encode_headers({"kept": "1"}) == found[0][2]


@pytest.mark.parametrize(
    ("kind", "given", "number"),
    [
        (pa.string(), "low", 0),
        (pa.string(), "Critical", 3),
        (pa.string(), None, 1),
        (pa.int32(), 2, 2),
        (pa.int64(), None, 1),
    ],
)
def test_priorities_are_words_or_numbers(
    kind: pa.DataType, given: str | int | None, number: int
) -> None:
    """Null means normal."""
    types = {"value": pa.binary(), "priority": kind}

    assert number == staged(types, (b"", given), topic="t")[0][3]


@pytest.mark.parametrize(
    ("types", "rows", "reason"),
    [
        ({"value": pa.binary()}, [(b"",), (None,)], "value is null"),
        ({"value": pa.binary(), "topic": pa.string()}, [(b"", "a"), (b"", None)], "is null"),
        ({"value": pa.binary(), "topic": pa.string()}, [(b"", "a"), (b"", "")], "65535 bytes"),
        (
            {"value": pa.binary(), "key": pa.binary()},
            [(b"", b""), (b"", b"\xff")],
            "key is not",
        ),
        (
            {"value": pa.binary(), "headers": HEADERS},
            [(b"", None), (b"", [{"key": "a", "value": b"\xff"}])],
            "header is not UTF-8",
        ),
        (
            {"value": pa.binary(), "headers": HEADERS},
            [(b"", None), (b"", [{"key": "a", "value": None}])],
            "no key or no value",
        ),
        ({"value": pa.binary(), "headers": HEADERS}, [(b"", []), (b"", [None])], "is null"),
        (
            {"value": pa.binary(), "headers": HEADERS},
            [(b"", None), (b"", 2 * pairs(a="1"))],
            "'a' is there twice",
        ),
        (
            {"value": pa.binary(), "headers": HEADERS},
            [(b"", None), (b"", pairs(**{f"h{n}": "" for n in range(HEADERS_MAX + 1)}))],
            f"at most {HEADERS_MAX}",
        ),
        (
            {"value": pa.binary(), "headers": HEADERS},
            [(b"", None), (b"", pairs(a=65_536 * "x"))],
            "longer than 65535",
        ),
        (
            {"value": pa.binary(), "priority": pa.string()},
            [(b"", "low"), (b"", "urgent")],
            "'urgent' is not one of low, normal",
        ),
        ({"value": pa.binary(), "priority": pa.int32()}, [(b"", 0), (b"", 4)], "4 is not one"),
        ({"value": pa.binary()}, [(b"",), (ROW_BYTES_MAX * b"x",)], f"most {ROW_BYTES_MAX}"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_refused_by_its_number(
    types: dict[str, pa.DataType], rows: list[tuple[Any, ...]], reason: str
) -> None:
    """The number counts over all batches of the stage."""
    batch = batch_of(types, *rows)
    topic = None if "topic" in types else "t"
    judge = RowJudge(batch.schema, topic, lambda _: True)
    judge.staged(batch.slice(0, 1))

    with pytest.raises(RefusedRowError, match=reason) as refused:
        judge.staged(batch.slice(0, 2))
    assert 2 == refused.value.row


def test_a_row_at_the_limit_passes() -> None:
    """Topic, value and headers count together."""
    value = (ROW_BYTES_MAX - 1) * b"x"

    assert [("t", value, b"", 1)] == staged({"value": pa.binary()}, (value,), topic="t")


def test_invalid_arrow_data_is_refused() -> None:
    """It comes from outside, and its text may hold any bytes."""
    raw = [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    batch = pa.RecordBatch.from_arrays(
        [pa.Array.from_buffers(pa.string(), 1, raw)], names=["value"]
    )

    with pytest.raises(RefusedRowError, match="not valid"):
        RowJudge(batch.schema, "t", lambda _: True).staged(batch)


def test_the_error_names_a_topic_that_may_not_be_published_to() -> None:
    """Each topic is checked once, however many rows it has."""
    checked: list[str] = []

    def may_publish(name: str) -> bool:
        checked.append(name)
        return name != "secret"

    batch = batch_of({"value": pa.binary(), "topic": pa.string()}, (b"", "a"), (b"", "b"))
    judge = RowJudge(batch.schema, None, may_publish)
    judge.staged(batch)
    judge.staged(batch)
    assert ["a", "b"] == checked
    secret = batch_of({"value": pa.binary(), "topic": pa.string()}, (b"", "secret"))
    with pytest.raises(NotAllowedError, match="publish 'secret'"):
        judge.staged(secret)


def test_topics_beyond_the_cache_are_checked_again() -> None:
    """The cache is bounded; the rows are staged all the same."""
    checked: list[str] = []

    def may_publish(name: str) -> bool:
        checked.append(name)
        return True

    rows = [(b"", str(number)) for number in range(TOPICS_JUDGED_MAX + 1)]
    batch = batch_of({"value": pa.binary(), "topic": pa.string()}, *rows)
    judge = RowJudge(batch.schema, None, may_publish)
    judge.staged(batch)
    judge.staged(batch.slice(0, 1))

    assert [*(topic for _, topic in rows), "0"] == checked


def test_an_empty_batch_yields_no_rows() -> None:
    """Such batches come from empty partitions."""
    assert [] == staged({"value": pa.binary(), "key": pa.binary()}, topic="t")


@pytest.mark.parametrize(
    ("types", "key", "problem"),
    [
        ({"topic": pa.string()}, "value", "there is no such column"),
        ({"value": pa.int64()}, "value", "must be binary or string"),
        ({"value": pa.binary()}, "topic", "neither an option nor a column"),
        ({"value": pa.binary(), "topic": pa.binary()}, "topic", "must be string"),
        ({"value": pa.binary(), "key": pa.int8()}, "key", "must be binary or string"),
        ({"value": pa.binary(), "headers": pa.string()}, "headers", "array<struct"),
        ({"value": pa.binary(), "headers": pa.list_(pa.string())}, "headers", "array<struct"),
        (
            {"value": pa.binary(), "headers": pa.map_(pa.string(), pa.int32())},
            "headers",
            "array<struct",
        ),
        ({"value": pa.binary(), "priority": pa.float64()}, "priority", "string or int"),
    ],
)
def test_the_error_names_an_unusable_column(
    types: dict[str, pa.DataType], key: str, problem: str
) -> None:
    """Before any row arrives."""
    with pytest.raises(ConfigError, match=problem) as refused:
        RowJudge(pa.schema(list(types.items())), None, lambda _: True)
    assert key == refused.value.key


def test_a_duplicate_column_is_refused() -> None:
    """It is unclear which one is meant."""
    schema = pa.schema([("value", pa.binary()), ("value", pa.binary())])

    with pytest.raises(ConfigError, match="two columns"):
        RowJudge(schema, "t", lambda _: True)
