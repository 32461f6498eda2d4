"""`typed`, as far as it needs no JVM: which topics have which schema, and what tables have."""

import json
from contextlib import suppress
from pathlib import Path
from threading import Lock

import pytest

from braidmq.base.errors import ConfigError
from braidmq.spark.pipelines.runs.runs import Plan, Run, Stream
from braidmq.spark.pipelines.typed import Wish, schema_of, table_of, typed, wishes

TEMPERATURE = "sensor.Temperature"


def test_topics_of_one_schema_are_one_wish() -> None:
    """In the order that they were given; a topic may have an = in it, and come twice."""
    texts = [f"a={TEMPERATURE}", "b=x.json", f"c=d={TEMPERATURE}", f"a={TEMPERATURE}"]

    assert [Wish(TEMPERATURE, ("a", "c=d")), Wish("x.json", ("b",))] == wishes(texts)


@pytest.mark.parametrize("text", ["", "a", "=a", "a=", "a,b=c"])
def test_a_text_that_is_no_pair_is_refused(text: str) -> None:
    """A comma would be two topics to the source."""
    with pytest.raises(ConfigError, match=r"--typed: .* is not TOPIC=SCHEMA"):
        wishes([text])


def test_a_topic_has_one_schema() -> None:
    """Else each of its messages would be in two tables, and a misfit in one of them."""
    with pytest.raises(ConfigError, match="the topic 'a' cannot be both 'x' and 'y'"):
        wishes(["a=x", "a=y"])


def schema_file(path: Path, *fields: str, **more: object) -> str:
    properties = {field: {"type": "string"} for field in fields}
    path.write_text(json.dumps({"type": "object", "properties": properties, **more}))
    return str(path)


def test_a_schema_is_built_in_or_in_a_file(tmp_path: Path) -> None:
    """A file says its own id."""
    named = schema_file(tmp_path / "order.json", "a", **{"$id": "shop/Order"})

    assert TEMPERATURE == schema_of(TEMPERATURE).id
    assert "shop/Order" == schema_of(named).id
    with pytest.raises(ConfigError, match="no schema 'nope'"):
        schema_of("nope")


@pytest.mark.parametrize(
    "name", ["date", "Date", "DATE", "Topic", "oFFset", "timestamptype", "_Table", "_ERROR"]
)
def test_a_field_with_the_name_of_a_column_is_refused(tmp_path: Path, name: str) -> None:
    """In whatever case: Spark would put the column in the place of the field."""
    bad = schema_file(tmp_path / "bad.json", "a", name)

    with pytest.raises(ConfigError, match=f"the field '{name}' of .* has the name of a column"):
        schema_of(bad)


def test_the_tables_of_a_schema() -> None:
    """Fields behind what tells a message; raw bytes and the reason in quarantine."""
    layout = table_of(Path("out"), "parquet", schema_of(TEMPERATURE), Lock()).layout
    fields = ["celsius", "timestamp_ms", "sensor_id"]

    assert ["date"] == [key.name for key in layout.keys]
    assert ["topic", "offset", "timestamp", "key", *fields] == list(
        layout.branches[TEMPERATURE]
    )
    assert ["topic", "offset", "timestamp", "key", "value", "reason", "schema"] == list(
        layout.branches["quarantine"]
    )


def test_each_query_of_a_group_has_a_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention would wait for the fastest of them if they had one together."""
    asked: list[dict[str, str]] = []

    def go(_run: Run, *streams: Stream, behind: object) -> None:
        assert behind is None
        for stream in streams:
            with suppress(NotImplementedError):
                stream.frame()

    def messages(_run: Run, **options: str) -> None:
        asked.append(options)
        raise NotImplementedError

    monkeypatch.setattr(Run, "go", go)
    monkeypatch.setattr(Run, "messages", messages)
    wanted = [Wish(TEMPERATURE, ("a",)), Wish("sensor.Humidity", ("b",))]
    typed(Plan({"groupId": "g"}, tmp_path), wanted, print)
    typed(Plan({}, tmp_path), wanted, print)

    groups = [options.get("groupId") for options in asked]
    assert [f"g.{TEMPERATURE}", "g.sensor.Humidity", None, None] == groups


def test_two_schemas_of_one_id_are_refused(tmp_path: Path) -> None:
    """Their tables would be one."""
    one = schema_file(tmp_path / "one.json", "a", **{"$id": TEMPERATURE})

    with pytest.raises(ConfigError, match="two schemas have the same id"):
        typed(Plan({}, tmp_path), [Wish(one), Wish(TEMPERATURE)], lambda _line: None)
