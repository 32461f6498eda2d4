"""`typed` without a JVM: the schemas of topics, the columns of tables, the rows of batches."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs.runs import Plan, Run, Stream
from braidmq.spark.pipelines.tables.batches import Batch
from braidmq.spark.pipelines.typed import (
    TypedTopics,
    messages_of,
    parse_typed,
    schema_of,
    table_of,
    typed,
)
from braidmq.spark.reading.offsets import LostOffsetsError
from braidmq.wal.wal import Wal
from tests.unit.columnar.logs import NOTE, log_of, message, plain_rows, retain_from

TEMPERATURE = "sensor.Temperature"


def test_topics_of_one_schema_are_grouped() -> None:
    """In the order given; a topic may contain an =, and may be repeated."""
    texts = [f"a={TEMPERATURE}", "b=x.json", f"c=d={TEMPERATURE}", f"a={TEMPERATURE}"]

    assert [
        TypedTopics(TEMPERATURE, ("a", "c=d")),
        TypedTopics("x.json", ("b",)),
    ] == parse_typed(texts)


@pytest.mark.parametrize("text", ["", "a", "=a", "a=", "a,b=c"])
def test_a_malformed_pair_is_refused(text: str) -> None:
    """The source would take a comma for a list of topics."""
    with pytest.raises(ConfigError, match=r"--typed: .* is not TOPIC=SCHEMA"):
        parse_typed([text])


def test_a_topic_has_one_schema() -> None:
    """Otherwise each message would be in two tables, and invalid in one of them."""
    with pytest.raises(ConfigError, match="the topic 'a' cannot be both 'x' and 'y'"):
        parse_typed(["a=x", "a=y"])


def schema_file(path: Path, *fields: str, **more: object) -> str:
    properties = {field: {"type": "string"} for field in fields}
    path.write_text(json.dumps({"type": "object", "properties": properties, **more}))
    return str(path)


def test_a_schema_is_built_in_or_in_a_file(tmp_path: Path) -> None:
    """A file states its own id."""
    named = schema_file(tmp_path / "order.json", "a", **{"$id": "shop/Order"})

    assert TEMPERATURE == schema_of(TEMPERATURE).id
    assert "shop/Order" == schema_of(named).id
    with pytest.raises(ConfigError, match="no built-in schema 'nope'"):
        schema_of("nope")


@pytest.mark.parametrize(
    "name", ["date", "Date", "DATE", "Topic", "oFFset", "timestamptype", "_Table", "_ERROR"]
)
def test_a_field_with_the_name_of_a_column_is_refused(tmp_path: Path, name: str) -> None:
    """Upper or lower case: Spark would replace the field by the column."""
    bad = schema_file(tmp_path / "bad.json", "a", name)

    with pytest.raises(ConfigError, match=f"the field '{name}' of .* has the name of a column"):
        schema_of(bad)


def test_a_schema_has_a_table_of_fields_and_a_quarantine() -> None:
    """Fields follow the columns that identify a message; the other has bytes and a reason."""
    layout = table_of(Path("out"), "parquet", schema_of(TEMPERATURE), Lock()).layout
    fields = ["celsius", "timestamp_ms", "sensor_id"]

    assert ["date"] == [key.name for key in layout.keys]
    assert ["topic", "offset", "timestamp", "key", *fields] == list(
        layout.branches[TEMPERATURE]
    )
    assert ["topic", "offset", "timestamp", "key", "value", "reason", "schema"] == list(
        layout.branches["quarantine"]
    )


def test_each_query_of_a_group_has_its_own_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a shared cursor, retention would wait for the fastest of them only."""
    calls: list[dict[str, str]] = []

    def go(_run: Run, *streams: Stream) -> None:
        for stream in streams:
            with suppress(NotImplementedError):
                stream.frame()

    def messages(_run: Run, **options: str) -> None:
        calls.append(options)
        raise NotImplementedError

    monkeypatch.setattr(Run, "go", go)
    monkeypatch.setattr(Run, "messages", messages)
    wanted = [TypedTopics(TEMPERATURE, ("a",)), TypedTopics("sensor.Humidity", ("b",))]
    typed(Plan({"groupId": "g"}, tmp_path), wanted, print)
    typed(Plan({}, tmp_path), wanted, print)

    groups = [options.get("groupId") for options in calls]
    assert [f"g.{TEMPERATURE}", "g.sensor.Humidity", None, None] == groups


def test_two_schemas_with_one_id_are_refused(tmp_path: Path) -> None:
    """They would share a table."""
    one = schema_file(tmp_path / "one.json", "a", **{"$id": TEMPERATURE})

    with pytest.raises(ConfigError, match="two schemas have the same id"):
        typed(
            Plan({}, tmp_path), [TypedTopics(one), TypedTopics(TEMPERATURE)], lambda _line: None
        )


TOPICS = ("a", "b", "a", "c")


@pytest.fixture
def wal(tmp_path: Path) -> Iterator[Wal]:
    """A log with ids 1 to 200, some of which are not messages."""
    bodies = [NOTE if n % 10 == 9 else message(TOPICS[n % 4], b"x" * 60) for n in range(200)]
    with log_of(tmp_path, bodies) as found:
        yield found


def batch(end: dict[str, Any], before: dict[str, Any] | None = None) -> Batch:
    return Batch("query", 1, json.dumps(end), "" if before is None else json.dumps(before))


def plain_count(path: Path, first: int, end: int, *topics: str) -> int:
    found = [row for row in plain_rows(path) if first <= row["offset"] < end]
    return sum(row["topic"] in topics for row in found)


@pytest.mark.usefixtures("wal")
def test_a_batch_has_all_messages_of_its_topics(tmp_path: Path) -> None:
    """From the end of the batch before it; the first one from where the query began."""
    source = {"path": str(tmp_path), "startingOffsets": "earliest"}
    later = batch({"offset": 150}, {"offset": 20})
    first = batch({"offset": 90, "begin": 30})

    for topics in (("a",), ("b", "c")):
        wanted = {**source, "subscribe": ",".join(topics)}
        assert plain_count(tmp_path, 20, 150, *topics) == messages_of(wanted, later)
        assert plain_count(tmp_path, 30, 90, *topics) == messages_of(wanted, first)
    pattern = {**source, "subscribePattern": "[ab]"}
    assert plain_count(tmp_path, 20, 150, "a", "b") == messages_of(pattern, later)
    assert 0 == messages_of(pattern, batch({"offset": 20}, {"offset": 20}))
    assert messages_of(source, batch({"offset": 20})) is None


@pytest.mark.usefixtures("wal")
def test_messages_before_a_topics_own_start_are_not_counted(tmp_path: Path) -> None:
    """The checkpoint has those starts; topics outside the subscription do not count."""
    source = {"path": str(tmp_path), "startingOffsets": "earliest", "subscribe": "a,b"}
    floors = {"b": 60, "c": 70}
    begun = batch({"offset": 100, "begin": 10, "floors": floors})
    expected = plain_count(tmp_path, 10, 100, "a") + plain_count(tmp_path, 60, 100, "b")
    assert expected == messages_of(source, begun)

    still = batch({"offset": 50, "begin": 10, "floors": floors})
    assert plain_count(tmp_path, 10, 50, "a") == messages_of(source, still)


def test_lost_messages_are_an_error_or_not_counted(wal: Wal, tmp_path: Path) -> None:
    """As they are for the read itself."""
    retain_from(wal, 100)
    source = {"path": str(tmp_path), "startingOffsets": "earliest", "subscribe": "a"}
    lost = batch({"offset": 150}, {"offset": 5})
    left = plain_count(tmp_path, 5, 150, "a")

    with pytest.raises(LostOffsetsError):
        messages_of(source, lost)
    assert left == messages_of({**source, "failOnDataLoss": "false"}, lost)
    assert 0 < left < 50
