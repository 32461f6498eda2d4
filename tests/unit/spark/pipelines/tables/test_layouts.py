"""Where the rows of a table are stored."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import date
from urllib.parse import unquote

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.spark.pipelines.tables.layouts import (
    MARK,
    NAME_CHARS_MAX,
    NULL_NAME,
    Key,
    Layout,
    hashed_name,
    plain_name,
)

KEYS = (Key("date"), Key("topic", "topic_dir", kept=True))
days = st.sampled_from([None, date(2026, 1, 1), date(2026, 1, 2)])
topics = st.sampled_from(["a", "b/c", "ß"])


def table(found: Sequence[tuple[date | None, str]], chunks: int = 1) -> pa.Table:
    whole = pa.table(
        {
            "n": range(len(found)),
            "date": pa.array([day for day, _ in found], pa.date32()),
            "topic": [topic for _, topic in found],
        }
    )
    size = max(1, len(found) // chunks)
    return pa.concat_tables(whole.slice(at, size) for at in range(0, max(1, len(found)), size))


@given(st.lists(st.tuples(days, topics), max_size=60), st.integers(1, 5))
def test_each_row_is_in_its_directory_once_in_order(
    found: list[tuple[date | None, str]], chunks: int
) -> None:
    """As a plain loop would place them."""
    expected = defaultdict(list)
    for n, (day, topic) in enumerate(found):
        shown = NULL_NAME if day is None else day.isoformat()
        expected[f"date={shown}/topic_dir={hashed_name(topic)}"].append((n, topic))
    partitions = list(Layout(KEYS).partitions(table(found, chunks)))

    assert len(partitions) == len(expected)
    for partition in partitions:
        rows = zip(*partition.rows.to_pydict().values(), strict=True)
        assert ["n", "topic"] == partition.rows.column_names
        assert expected[partition.directory] == list(rows)
        assert ["date"] == list(partition.values)


def test_partition_values_are_of_columns_that_only_the_directory_has() -> None:
    """As a reader parses them from its name."""
    (partition,) = Layout(KEYS).partitions(table([(date(2026, 1, 1), "a")]))

    assert {"date": "2026-01-01"} == partition.values
    assert "1" == Key("n").spelled(1)


def test_a_table_without_keys_is_one_directory() -> None:
    """The root itself, with every column."""
    (partition,) = Layout().partitions(table([(None, "a"), (None, "b")]))

    assert ("", {}, ["n", "date", "topic"]) == (
        partition.directory,
        partition.values,
        partition.rows.column_names,
    )


def test_a_branch_has_its_own_columns_under_its_own_names() -> None:
    """A column names the branch of each row, and is not stored."""
    layout = Layout((Key("date"),), "topic", {"a": {"number": "n"}, "b/c": {}})
    found = [(date(2026, 1, 1), "a"), (date(2026, 1, 1), "b/c"), (date(2026, 1, 1), "a")]
    partitions = {partition.branch: partition for partition in layout.partitions(table(found))}

    assert "a/date=2026-01-01" == partitions["a"].directory
    assert [{"number": 0}, {"number": 2}] == partitions["a"].rows.to_pylist()
    assert [] == partitions["b/c"].rows.column_names


def test_a_row_of_an_unknown_branch_stops_the_batch() -> None:
    """It is our own mistake, and must not lose the row silently."""
    layout = Layout((), "topic", {"a": {}})

    with pytest.raises(KeyError):
        list(layout.partitions(table([(None, "b")])))


def test_a_layout_survives_a_round_trip_through_json() -> None:
    """It is an option of the staging data source."""
    layout = Layout(KEYS, "topic", {"a": {"number": "n"}})

    assert layout == Layout.from_json(layout.to_json())


def test_a_column_and_its_directory_do_not_share_a_name() -> None:
    """Readers that find both fail, or trust the directory."""
    with pytest.raises(AssertionError):
        Key("topic", "topic", kept=True)
    with pytest.raises(AssertionError):
        Key("topic", kept=True)
    with pytest.raises(AssertionError):
        Key("topic", "topic_dir")


GOLDEN = {
    "sensors/temp": "sensors%2Ftemp~",
    "": "~",
    "..": "..~",
    "a=b/c": "a%3Db%2Fc~",
    "ß": "%C3%9F~",
    "x~y": "x%7Ey~",
    "\x00\n": "%00%0A~",
}
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)


def test_unsafe_characters_are_escaped() -> None:
    """In the readable part of the name."""
    found = {text: hashed_name(text)[: -len("0123456789abcdef")] for text in GOLDEN}

    assert GOLDEN == found


@given(texts)
def test_a_name_is_bounded_and_begins_as_the_text_does(text: str) -> None:
    """However it is cut, only whole characters are left."""
    name = hashed_name(text)
    readable, _, digest = name.rpartition(MARK)

    assert len(name) <= NAME_CHARS_MAX
    assert name.isascii()
    assert "/" not in name
    assert text.startswith(unquote(readable, errors="strict"))
    assert len(digest) == 16


def test_the_longest_topics_are_told_apart_by_their_ends() -> None:
    """The name is cut, but its hash covers the whole topic."""
    longest = "t" * (TOPIC_BYTES_MAX - 1)

    assert hashed_name(longest + "a") != hashed_name(longest + "b")


@given(texts, texts)
def test_two_texts_have_two_names(one: str, other: str) -> None:
    """Plain, hashed, or one of each."""
    ones, others = ({plain_name(text), hashed_name(text)} for text in (one, other))

    assert (one == other) == bool(ones & others)


def test_a_name_that_can_be_a_directory_is_kept() -> None:
    """Unless the table uses that name itself, or readers would treat it as hidden."""
    kept = ["sensor.Temperature", "a-b_c", "7"]

    assert kept == list(map(plain_name, kept))
    for text in ("quarantine", "_x", ".x", "a b", "http://x/y", "x" * 121):
        assert MARK in plain_name(text)
