"""The options of the source: what they mean, and how they are refused."""

import re
from pathlib import Path

import pytest

from braidmq.spark.options import (
    EARLIEST,
    LATEST,
    OptionError,
    ReadOptions,
    for_batch,
    for_stream,
    parse,
    wants,
)

KEY = "11" * 32
PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


def refusal(options: dict[str, str], kind: str = "any") -> str:
    read = {"any": parse, "batch": for_batch, "stream": for_stream}[kind]
    with pytest.raises(OptionError) as found:
        read({"path": "data"} | options)
    return str(found.value)


def test_only_the_path_is_needed() -> None:
    """Everything else has a default; the path does not depend on where it is read."""
    assert ReadOptions(path=Path.cwd() / "data") == parse({"path": "data"})


def test_names_are_told_apart_without_their_case() -> None:
    """Spark hands them over in small letters, people write them as they like."""
    expected = parse({"path": "/d", "includeHeaders": "true"})

    assert expected == parse({"PATH": "/d", "includeheaders": "TRUE"})


def test_the_page_has_every_option_and_no_other() -> None:
    """What is refused as unknown is not promised, and the other way round."""
    text = PAGE.read_text("utf-8")
    section = text[text.index("## Options") : text.index("## What is promised")]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    known = refusal({"zzz": "x"}).partition("there are: ")[2].split(", ")

    assert known == told


MEANINGS = [
    ("subscribe", "a, b ,a", "topics", ("a", "b")),
    ("subscribePattern", "s.*", "pattern", "s.*"),
    ("startingOffsets", "earliest", "start", EARLIEST),
    ("startingOffsets", "17", "start", 17),
    ("startingOffsets", '{"a":{"0":5},"b":{"0":-2}}', "start", {"a": 5, "b": EARLIEST}),
    ("endingOffsets", "Latest", "end", LATEST),
    ("startingTimestamp", "1700000000123", "start_us", 1_700_000_000_123_000),
    ("endingTimestamp", "0", "end_us", 0),
    ("maxOffsetsPerTrigger", "10", "trigger_messages", 10),
    ("maxBytesPerTrigger", "1", "trigger_bytes", 1),
    ("minPartitions", "4", "partitions_min", 4),
    ("targetPartitionBytes", "1000", "partition_bytes", 1000),
    ("failOnDataLoss", "false", "fail_on_data_loss", False),
    ("includeHeaders", "true", "headers", True),
    ("schemaId", "sensor.Temperature", "schema_id", "sensor.Temperature"),
    ("schemaId", "/etc/x.json", "schema_id", "/etc/x.json"),
    ("privateKeyFile", "/etc/key", "key_file", Path("/etc/key")),
]


@pytest.mark.parametrize(("option", "text", "field", "value"), MEANINGS)
def test_each_option_has_its_meaning(option: str, text: str, field: str, value: object) -> None:
    """As the table of the documentation says."""
    assert value == getattr(parse({"path": "data", option: text}), field)


def test_trusted_keys_are_public_keys_in_hex() -> None:
    """As keygen prints them, with commas between."""
    options = parse({"path": "d", "privateKeyFile": "k", "trustedKeys": f"{KEY}, {KEY}"})

    assert (bytes.fromhex(KEY),) * 2 == options.trusted


def test_what_belongs_to_spark_is_let_through() -> None:
    """A query's own options reach its source, too."""
    options = {"path": "d", "checkpointLocation": "c", "queryName": "q"}

    assert parse({"path": "d"}) == parse(options)


BAD = [
    ("path", ""),
    ("path", "hdfs://x/y"),
    ("subscribe", "a,,b"),
    ("subscribe", " "),
    ("subscribePattern", "("),
    ("startingOffsets", "newest"),
    ("startingOffsets", "-1"),
    ("startingOffsets", "9" * 30),
    ("startingOffsets", "[1]"),
    ("startingOffsets", "{}"),
    ("startingOffsets", '{"a":{"1":5}}'),
    ("startingOffsets", '{"a":{"0":-3}}'),
    ("startingOffsets", '{"a":{"0":5,"1":5}}'),
    ("endingOffsets", '{"a":7}'),
    ("startingTimestamp", "2026-01-01"),
    ("startingTimestamp", "-1"),
    ("endingTimestamp", "1.5"),
    ("maxOffsetsPerTrigger", "0"),
    ("maxBytesPerTrigger", "1k"),
    ("minPartitions", "²"),
    ("targetPartitionBytes", "-5"),
    ("failOnDataLoss", "yes"),
    ("includeHeaders", "1"),
    ("schemaId", ""),
    ("privateKeyFile", ""),
    ("trustedKeys", "abc"),
]


@pytest.mark.parametrize(("option", "value"), BAD)
def test_a_bad_value_is_refused_with_name_value_and_fix(option: str, value: str) -> None:
    """Whoever reads the error knows what to change."""
    text = refusal({option: value})

    assert text.startswith(f"option {option}: '{value}' ")
    assert "; " in text


def test_a_long_value_is_cut_in_the_error() -> None:
    """An error is for people."""
    assert len(refusal({"startingOffsets": "x" * 10_000})) < 250


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("includeHeader", "did you mean includeHeaders?"),
        ("assign", "subscribe"),
        ("kafka.bootstrap.servers", "path"),
        ("zzz", "there are: path, subscribe, "),
    ],
)
def test_an_unknown_option_is_refused_with_what_may_be_meant(option: str, hint: str) -> None:
    """A misspelt option that is passed over would be a read of something else."""
    text = refusal({option: "x"})

    assert text.startswith(f"option {option.lower()}: 'x' is for an option that does not exist")
    assert hint in text


@pytest.mark.parametrize("option", ["endpoint", "apiKey", "groupId"])
def test_what_is_not_there_yet_is_said_in_one_sentence(option: str) -> None:
    """And a secret is not repeated."""
    text = refusal({option: "s3cret"})

    assert text.startswith(f"option {option}: ")
    assert "cannot be used yet; " in text
    assert ("s3cret" in text) == (option != "apiKey")


def test_a_path_is_needed() -> None:
    """Nothing is read from the working directory by accident."""
    with pytest.raises(OptionError, match="option path: '' is missing; name the broker's"):
        parse({})


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"subscribe": "a", "subscribePattern": "b"}, "subscribePattern"),
        ({"maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "maxBytesPerTrigger"),
        ({"trustedKeys": KEY}, "trustedKeys"),
        ({"subscribe": "a", "startingOffsets": '{"b":{"0":1}}'}, "startingOffsets"),
        ({"subscribe": "a,b", "startingOffsets": '{"b":{"0":1}}'}, "startingOffsets"),
        ({"subscribePattern": "x.*", "endingOffsets": '{"y":{"0":1}}'}, "endingOffsets"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    options: dict[str, str], refused: str
) -> None:
    """Neither of them wins in silence."""
    assert refusal(options).startswith(f"option {refused}: ")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "batch"),
        ({"maxBytesPerTrigger": "5"}, "batch"),
        ({"startingOffsets": "latest"}, "batch"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "batch"),
        ({"endingOffsets": "earliest"}, "batch"),
        ({"endingOffsets": "5", "startingOffsets": "1"}, "stream"),
        ({"endingTimestamp": "5", "startingOffsets": "1"}, "stream"),
    ],
)
def test_what_is_for_the_other_kind_of_read_is_refused(
    options: dict[str, str], kind: str
) -> None:
    """It would do nothing, or leave nothing."""
    option, value = next(iter(options.items()))

    assert refusal(options, kind).startswith(f"option {option}: '{value}' ")


@pytest.mark.parametrize(
    "options", [{}, {"startingOffsets": "latest"}, {"startingOffsets": '{"a":{"0":-1}}'}]
)
def test_a_stream_does_not_start_at_latest(options: dict[str, str]) -> None:
    """Spark asks more than once where it starts, and latest moves: rows would be lost."""
    text = refusal(options, "stream")

    assert text.startswith("option startingOffsets: ")
    assert "more than once" in text
    assert "give startingOffsets as earliest" in text


def test_a_batch_goes_from_earliest_to_latest() -> None:
    """Unless told otherwise."""
    options = for_batch({"path": "d"})

    assert (EARLIEST, LATEST) == (options.start, options.end)


def test_a_time_wins_over_offsets() -> None:
    """So a stream with a time to start from does not start at latest."""
    options = for_stream({"path": "d", "startingTimestamp": "5"})

    assert 5000 == options.start_us


def test_topics_are_wanted_by_name_or_by_whole_pattern() -> None:
    """Or all of them."""
    assert wants(parse({"path": "d"}), "any")
    assert wants(parse({"path": "d", "subscribe": "a,b"}), "b")
    assert not wants(parse({"path": "d", "subscribe": "a,b"}), "c")
    assert wants(parse({"path": "d", "subscribePattern": "a+"}), "aa")
    assert not wants(parse({"path": "d", "subscribePattern": "a+"}), "aab")
