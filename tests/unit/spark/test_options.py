"""The options of the source: what they mean, and how they are refused."""

import re
from pathlib import Path

import pytest

from braidmq.spark.options import (
    ReadOptions,
    WriteOptions,
    for_batch,
    for_stream,
    for_write,
    parse,
    wants,
)
from braidmq.spark.values import EARLIEST, LATEST, OptionError

KEY = "11" * 32
SECRET = "s3cret"
FLIGHT = {"endpoint": "grpc://broker:8815", "apiKey": SECRET}
GROUP = {"path": "data", "groupId": "billing", "apiKey": SECRET}
PAGE = Path(__file__).resolve().parents[3] / "docs" / "spark.md"


def refusal(options: dict[str, str], kind: str = "any") -> str:
    """The error of a read from a directory, or from an endpoint if the options have one."""
    given = options if "endpoint" in options else {"path": "data"} | options
    with pytest.raises(OptionError) as found:
        {"any": parse, "batch": for_batch, "stream": for_stream}[kind](given)
    return str(found.value)


def write_refusal(options: dict[str, str]) -> str:
    with pytest.raises(OptionError) as found:
        for_write(options)
    return str(found.value)


def test_only_the_path_is_needed() -> None:
    """Everything else has a default; the path is made absolute."""
    assert ReadOptions(path=Path.cwd() / "data") == parse({"path": "data"})


def test_names_are_case_insensitive() -> None:
    """Spark passes them in lower case, and users write them as they like."""
    expected = parse({"path": "/d", "includeHeaders": "true"})

    assert expected == parse({"PATH": "/d", "includeheaders": "TRUE"})


def test_the_page_has_every_option_and_no_other() -> None:
    """The errors about unknown options list the same ones."""
    text = PAGE.read_text("utf-8")
    section = text[text.index("## Options") : text.index("## What is promised")]
    writes = text[text.index("| option of a write") : text.index("| `value` | binary or")]
    row = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)
    known = refusal({"zzz": "x"}).partition("there are: ")[2].split(", ")
    of_writes = write_refusal({"zzz": "x"}).partition("there are: ")[2].split(", ")

    assert known == row.findall(section)
    assert of_writes == row.findall(writes)


def test_each_option_has_its_meaning() -> None:
    """As the table in the documentation says."""
    expected = ReadOptions(
        endpoint="grpc://broker:8815",
        api_key=SECRET,
        topics=("a", "b"),
        start={"a": 5, "b": EARLIEST},
        end=LATEST,
        start_us=1_000,
        end_us=2_000,
        trigger_messages=10,
        partitions_min=4,
        partition_bytes=1_000,
        fail_on_data_loss=False,
        headers=True,
        group_id="billing",
        schema_id="sensor.Temperature",
        key_file=Path("/etc/key"),
        trusted=(bytes.fromhex(KEY),),
    )
    given = FLIGHT | {
        "subscribe": "a,b",
        "startingOffsets": '{"a":{"0":5},"b":{"0":-2}}',
        "endingOffsets": "latest",
        "startingTimestamp": "1",
        "endingTimestamp": "2",
        "maxOffsetsPerTrigger": "10",
        "minPartitions": "4",
        "targetPartitionBytes": "1000",
        "failOnDataLoss": "false",
        "includeHeaders": "true",
        "groupId": "billing",
        "schemaId": "sensor.Temperature",
        "privateKeyFile": "/etc/key",
        "trustedKeys": KEY,
    }

    assert expected == parse(given)
    assert "x.*" == parse({"path": "d", "subscribePattern": "x.*"}).pattern
    assert 7 == parse({"path": "d", "maxBytesPerTrigger": "7"}).trigger_bytes


def test_sparks_own_options_are_let_through() -> None:
    """The options of a query reach its source too."""
    options = {"path": "d", "checkpointLocation": "c", "queryName": "q"}

    assert parse({"path": "d"}) == parse(options)


@pytest.mark.parametrize(("option", "value"), [("minPartitions", "²"), ("path", "")])
def test_a_bad_value_is_refused_with_name_value_and_fix(option: str, value: str) -> None:
    """The user then knows what to change."""
    text = refusal({option: value})

    assert text.startswith(f"option {option}: '{value}' ")
    assert "; " in text


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("includeHeader", "did you mean includeHeaders?"),
        ("assign", "subscribe"),
        ("kafka.bootstrap.servers", "path"),
        ("topic", "it is for writes"),
        ("sinkId", "it is for writes"),
        ("kafka.group.id", "groupId"),
        ("zzz", "there are: path, endpoint, apiKey, subscribe, "),
    ],
)
def test_an_unknown_option_is_refused_with_a_hint(option: str, hint: str) -> None:
    """If it were ignored, the query would read something else."""
    text = refusal({option: "x"})

    assert text.startswith(
        f"option {option.lower()}: 'x' cannot be used: there is no such option"
    )
    assert hint in text


def test_a_log_is_needed_and_only_one() -> None:
    """Nothing is read from the working directory by accident, or from either of two places."""
    with pytest.raises(OptionError, match="option path: '' is missing; name the broker's"):
        parse({})
    both = refusal(FLIGHT | {"path": "data"})

    assert both.startswith("option endpoint: 'grpc://broker:8815' cannot be given together")


@pytest.mark.parametrize("given", [{"endpoint": "grpc://h:1"}, {"path": "d", "groupId": "g"}])
def test_the_broker_requires_a_key(given: dict[str, str]) -> None:
    """For a read over the network, and for a cursor; a directory alone needs none."""
    assert refusal(given).startswith("option apiKey: '' is missing; ")
    assert refusal({"apiKey": SECRET}).startswith("option apiKey: '***' has no effect; ")


@pytest.mark.parametrize("option", ["api_key", "apikeys", "braidmq.token", "password"])
def test_a_secret_is_not_repeated(option: str) -> None:
    """Neither in the representation of options, nor where its option is misspelt."""
    assert SECRET not in repr(parse(FLIGHT))
    assert SECRET not in repr(for_write(FLIGHT))
    assert SECRET not in refusal(FLIGHT | {option: SECRET})
    assert SECRET not in write_refusal(FLIGHT | {option: SECRET})


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
    """Neither of them wins silently."""
    assert refusal(options).startswith(f"option {refused}: ")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"maxOffsetsPerTrigger": "5"}, "batch"),
        ({"maxBytesPerTrigger": "5"}, "batch"),
        ({"groupId": "billing", "apiKey": SECRET}, "batch"),
        ({"startingOffsets": "latest"}, "batch"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "batch"),
        ({"endingOffsets": "earliest"}, "batch"),
        ({"endingOffsets": '{"a":{"0":4}}', "startingOffsets": '{"a":{"0":5}}'}, "batch"),
        ({"endingOffsets": "5", "startingOffsets": "1"}, "stream"),
        ({"endingTimestamp": "5", "startingOffsets": "1"}, "stream"),
    ],
)
def test_options_for_the_other_kind_of_read_are_refused(
    options: dict[str, str], kind: str
) -> None:
    """They would have no effect, or leave nothing to read."""
    option, value = next(iter(options.items()))

    assert refusal(options, kind).startswith(f"option {option}: '{value}' ")


LATEST_TEXTS = [{}, {"startingOffsets": "latest"}, {"startingOffsets": '{"a":{"0":-1}}'}]


@pytest.mark.parametrize("options", LATEST_TEXTS)
def test_a_stream_does_not_start_at_a_latest_that_moves(options: dict[str, str]) -> None:
    """Spark asks more than once where it starts: rows would be lost."""
    text = refusal(options, "stream")

    assert text.startswith("option startingOffsets: ")
    assert "more than once" in text
    assert "give a groupId" in text


@pytest.mark.parametrize("options", LATEST_TEXTS)
def test_a_group_pins_latest(options: dict[str, str]) -> None:
    """For all topics, because a cursor has one position; so it is the default, as in Kafka."""
    mixed = '{"a":{"0":-1},"b":{"0":5}}'

    assert LATEST == for_stream(GROUP | options).start
    assert "some topics only" in refusal(GROUP | {"startingOffsets": mixed}, "stream")


def test_a_batch_goes_from_earliest_to_latest() -> None:
    """Unless the options say otherwise."""
    options = for_batch({"path": "d"})

    assert (EARLIEST, LATEST) == (options.start, options.end)


def test_a_time_wins_over_offsets() -> None:
    """So a stream with a starting timestamp does not start at latest."""
    options = for_stream({"path": "d", "startingTimestamp": "5"})

    assert 5000 == options.start_us


def test_topics_are_wanted_by_name_or_by_whole_pattern() -> None:
    """By default all of them are."""
    assert wants(parse({"path": "d"}), "any")
    assert wants(parse({"path": "d", "subscribe": "a,b"}), "b")
    assert not wants(parse({"path": "d", "subscribe": "a,b"}), "c")
    assert wants(parse({"path": "d", "subscribePattern": "a+"}), "aa")
    assert not wants(parse({"path": "d", "subscribePattern": "a+"}), "aab")


def test_the_options_of_a_write_have_their_meaning() -> None:
    """Everything but the broker and its key may be left out."""
    given = {"topic": "out", "sinkId": "s", "checkpointLocation": "c"}
    full = WriteOptions(endpoint="grpc://broker:8815", api_key=SECRET, topic="out", sink_id="s")

    assert full == for_write(FLIGHT | given)
    assert WriteOptions(Path.cwd() / "data", None, SECRET) == for_write(
        {"path": "data", "apiKey": SECRET}
    )


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"apiKey": SECRET}, "path: '' is missing; name the broker's"),
        ({"path": "data"}, "apiKey: '' is missing; the broker asks"),
        (FLIGHT | {"path": "data"}, "endpoint: 'grpc://broker:8815' cannot be given together"),
        (FLIGHT | {"topic": ""}, "topic: '' is not a topic; "),
        (FLIGHT | {"sinkId": " "}, "sinkId: ' ' is not a name; "),
        (FLIGHT | {"subscribe": "a"}, "subscribe: 'a' cannot be used: there is no such option"),
        (
            FLIGHT | {"topics": "a"},
            "topics: 'a' cannot be used: there is no such option; ",
        ),
    ],
)
def test_an_invalid_write_is_refused(given: dict[str, str], refused: str) -> None:
    """The error has the option's name, its value and the fix."""
    assert write_refusal(given).startswith(f"option {refused}")
