"""Filters that are pushed down: fewer rows are read, but never too few."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from braidmq.columnar.logs import DirectoryLog
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.filters import Narrowing
from braidmq.spark.reading.offsets import Range
from tests.unit.columnar.logs import Row, message, plain_rows, write_log
from tests.unit.spark.sources import TOPICS, batch_reader, read_parts, varied

COMPARED: dict[type[Filter], Callable[[object, object], bool]] = {
    EqualTo: lambda a, b: a == b,
    EqualNullSafe: lambda a, b: a == b,
    GreaterThan: lambda a, b: a > b,  # type: ignore[operator] # of one type, by construction
    GreaterThanOrEqual: lambda a, b: a >= b,  # type: ignore[operator] # as above, of one type
    LessThan: lambda a, b: a < b,  # type: ignore[operator] # as above, of one type
    LessThanOrEqual: lambda a, b: a <= b,  # type: ignore[operator] # as above, of one type
    In: lambda a, b: a in b,  # type: ignore[operator] # a tuple of one type
    StringStartsWith: lambda a, b: str(a).startswith(str(b)),
    StringContains: lambda a, b: str(b) in str(a),
}


def moment(number: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=number)


def holds(row: Row, wanted: Filter) -> bool:
    """Decide about a row as Spark does."""
    if isinstance(wanted, Not):
        return not holds(row, wanted.child)
    value = row[wanted.attribute[0]]  # type: ignore[attr-defined] # all others have one
    if isinstance(wanted, IsNotNull | IsNull):
        return (value is None) == isinstance(wanted, IsNull)
    return COMPARED[type(wanted)](value, wanted.value)  # type: ignore[attr-defined] # as above


numbers = st.integers(-5, 320)
comparisons = st.sampled_from(
    [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
)
texts = st.sampled_from([*TOPICS, "", "s", "d", "nowhere"])
FILTERS = st.one_of(
    st.builds(lambda kind, n: kind(("offset",), n), comparisons, numbers),
    st.builds(lambda kind, n: kind(("timestamp",), moment(n)), comparisons, numbers),
    st.builds(lambda kind, t: kind(("topic",), t), comparisons, texts),
    st.builds(lambda t: In(("topic",), tuple(t)), st.lists(texts, max_size=3)),
    st.builds(lambda n: In(("offset",), tuple(n)), st.lists(numbers, max_size=3)),
    st.builds(lambda t: StringStartsWith(("topic",), t), texts),
    st.builds(lambda t: StringContains(("topic",), t), texts),
    st.builds(lambda t: Not(EqualTo(("topic",), t)), texts),
    st.builds(lambda n: EqualTo(("qos",), n), st.integers(0, 1)),
    st.sampled_from([IsNotNull(("topic",)), IsNotNull(("key",)), IsNull(("key",))]),
)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_log(tmp_path_factory.mktemp("log"), varied(300))


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(filters=st.lists(FILTERS, max_size=4), pattern=st.sampled_from([None, "[ab]|dlq.*"]))
def test_pushed_and_remaining_filters_give_the_rows_of_brute_force(
    log: Path, filters: list[Filter], pattern: str | None
) -> None:
    """The reader applies exactly what it takes; for the others it may still read less."""
    options: dict[str, str] = {} if pattern is None else {"subscribePattern": pattern}
    reader = batch_reader(log, None, includeHeaders=True, **options)
    left = list(reader.pushFilters(filters))
    rows = read_parts(reader, reader.partitions())
    plain = batch_reader(log, None, includeHeaders=True, **options)
    whole = read_parts(plain, plain.partitions())

    assert [row for row in whole if all(holds(row, f) for f in filters)] == [
        row for row in rows if all(holds(row, f) for f in left)
    ]


def test_filters_that_are_applied_exactly_are_taken_from_spark() -> None:
    """So that no row is checked twice; times are left to Spark, as many rows may share one."""
    taken: list[Filter] = [
        EqualTo(("topic",), "a"),
        In(("topic",), ("a", "b")),
        StringStartsWith(("topic",), "a"),
        GreaterThan(("offset",), 3),
        LessThanOrEqual(("offset",), 30),
        IsNotNull(("offset",)),
    ]
    left: list[Filter] = [
        GreaterThan(("timestamp",), moment(3)),
        IsNotNull(("key",)),
        Not(EqualTo(("topic",), "b")),
        EqualTo(("headers", "key"), "x"),
        EqualTo(("offset",), None),
        StringContains(("topic",), "a"),
    ]

    assert left == Narrowing(ReadOptions()).take([*taken, *left])


def test_a_filter_on_topics_narrows_the_topics_that_are_read() -> None:
    """Those of the subscription by name, or all topics by a pattern for the index."""
    named = Narrowing(ReadOptions(topics=("a", "ab", "c")))
    named.take([StringStartsWith(("topic",), "a"), In(("topic",), ("ab", "c", None))])
    free = Narrowing(ReadOptions())
    free.take([StringStartsWith(("topic",), "a.b")])

    assert frozenset({"ab"}) == named.topics
    assert r"a\.b(?s:.*)" == free.pattern


def test_a_prefix_over_the_network_only_helps() -> None:
    """There may be too many names for a request, so Spark filters as well."""
    prefix: Filter = StringStartsWith(("topic",), "a.b")
    remote = Narrowing(ReadOptions(endpoint="grpc://h:1"))

    assert [prefix] == remote.take([prefix])
    assert r"a\.b(?s:.*)" == remote.pattern
    assert remote.pattern_only_helps
    assert not Narrowing(ReadOptions()).take([prefix])


def test_a_range_is_narrowed_by_offsets_and_times(tmp_path: Path) -> None:
    """Before anything is read; an empty range stays empty."""
    path = write_log(tmp_path, [message("t", b"", n * 1000) for n in range(1, 101)])
    options = ReadOptions(path=path)
    narrowing = Narrowing(options)
    narrowing.take([GreaterThanOrEqual(("offset",), 10), LessThan(("timestamp",), moment(20))])
    empty = Narrowing(options)
    empty.take([GreaterThan(("offset",), 90), LessThan(("offset",), 10)])

    assert Range(10, 20) == narrowing.range(Range(1, 101), DirectoryLog(path))
    assert Range(91, 91) == empty.range(Range(1, 101), DirectoryLog(path))


def test_a_reader_without_filters_gives_the_whole_log(log: Path) -> None:
    """The property above relies on it: it compares the reader with itself."""
    reader = batch_reader(log, includeHeaders=True)

    assert plain_rows(log) == read_parts(reader, reader.partitions())
