"""The options of the source: texts in, a checked description of the read out.

Names are those of Spark's Kafka source wherever the meaning is the same. A refusal names the
option, the value and the fix. Nothing here touches the log or knows Spark.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MIB
from braidmq.wire.qumbed.boxes import UnusableKeyError, parse_key

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that Kafka's JSON has for them; no id is negative."""

Position = int | dict[str, int]
"""An id, EARLIEST or LATEST; for all topics, or for each that is named."""

PARTITION_BYTES: Final = 64 * MIB
OFFSET_MAX: Final = 2**63 - 1
VALUE_CHARS_MAX: Final = 64
ONLY_PARTITION: Final = "0"

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_HINTS: Final = {
    "assign": "name topics with subscribe: a topic has one partition",
    "startingoffsetsbytimestamp": "use startingTimestamp, which is for all topics",
    "endingoffsetsbytimestamp": "use endingTimestamp, which is for all topics",
    "kafka.bootstrap.servers": "use path, the broker's data directory",
}
_POSITION_FIX: Final = 'give earliest, latest, a number, or {"topic": {"0": number}}'


class OptionError(ConfigError):
    """An option of the source cannot be used; the text says which, why, and what to do."""

    def __init__(self, option: str, value: str, problem: str, fix: str) -> None:
        shown = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 1] + "…"
        super().__init__(f"option {option}", f"{shown!r} {problem}; {fix}")
        self.option = option


@dataclass(frozen=True)
class ReadOptions:
    """What a read was told, each value of its type; the names beside them are the options'."""

    path: Path = Path()  # path
    topics: tuple[str, ...] | None = None  # subscribe
    pattern: str | None = None  # subscribePattern
    start: Position | None = None  # startingOffsets
    end: Position | None = None  # endingOffsets
    start_us: int | None = None  # startingTimestamp; an option is in milliseconds
    end_us: int | None = None  # endingTimestamp
    trigger_messages: int | None = None  # maxOffsetsPerTrigger
    trigger_bytes: int | None = None  # maxBytesPerTrigger
    partitions_min: int | None = None  # minPartitions
    partition_bytes: int = PARTITION_BYTES  # targetPartitionBytes
    fail_on_data_loss: bool = True  # failOnDataLoss
    headers: bool = False  # includeHeaders
    schema_id: str | None = None  # schemaId
    key_file: Path | None = None  # privateKeyFile
    trusted: tuple[bytes, ...] | None = None  # trustedKeys


Parser = Callable[[str, str], Any]


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Return what is meant by *given*; a name's case does not matter.

    Raises:
        OptionError: A name is unknown, a value cannot be used, or two do not go together.
    """
    texts = {name.lower(): str(value) for name, value in given.items()}
    for name, (option, fix) in _NOT_YET.items():
        if name in texts:
            raise OptionError(option, _unsaid(option, texts[name]), "cannot be used yet", fix)
    found = {}
    for name, text in texts.items():
        if name in SPARKS_OWN:
            continue
        if name not in _TABLE:
            raise OptionError(name, text, "is for an option that does not exist", _hint(name))
        option, field, parser = _TABLE[name]
        found[field] = parser(option, text)
    if "path" not in found:
        raise OptionError("path", "", "is missing", "name the broker's data directory")
    options = replace(ReadOptions(), **found)
    _check_together(options, texts)
    return options


def for_batch(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read; it goes from earliest to latest.

    Raises:
        OptionError: As for `parse`, or an option is for streams.
    """
    options = parse(given)
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger"):
        _refuse(given, name, "is for streams", "leave it out of a batch read")
    start = EARLIEST if options.start is None else options.start
    end = LATEST if options.end is None else options.end
    if options.start_us is None and LATEST in _numbers(start):
        fix = "begin at earliest, a number or a startingTimestamp"
        _refuse(given, "startingOffsets", "leaves a batch read nothing", fix)
    if options.end_us is None and EARLIEST in _numbers(end):
        fix = "end at latest, a number or an endingTimestamp"
        _refuse(given, "endingOffsets", "leaves a batch read nothing", fix)
    return replace(options, start=start, end=end)


def for_stream(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a streaming read.

    Raises:
        OptionError: As for `parse`, an option is for batches, or the beginning would move.
    """
    options = parse(given)
    for name in ("endingOffsets", "endingTimestamp"):
        _refuse(given, name, "is for batch reads", "leave it out: a stream has no end")
    start = LATEST if options.start is None else options.start
    if options.start_us is None and LATEST in _numbers(start):
        problem = (
            "would lose rows: Spark asks a stream for its first offset more than once, latest "
            "is another one each time, and only groupId, which cannot be used yet, pins it"
        )
        fix = "give startingOffsets as earliest or a number, or a startingTimestamp"
        raise OptionError(
            "startingOffsets", _value(given, "startingOffsets", "latest"), problem, fix
        )
    return replace(options, start=start)


def _numbers(position: Position) -> set[int]:
    return set(position.values()) if isinstance(position, dict) else {position}


def _value(given: Mapping[str, str], option: str, default: str = "") -> str:
    texts = {name.lower(): str(value) for name, value in given.items()}
    return texts.get(option.lower(), default)


def _refuse(given: Mapping[str, str], option: str, problem: str, fix: str) -> None:
    if any(name.lower() == option.lower() for name in given):
        raise OptionError(option, _value(given, option), problem, fix)


def _hint(name: str) -> str:
    if name in _HINTS:
        return _HINTS[name]
    near = difflib.get_close_matches(name, _TABLE, 1)
    if near:
        return f"did you mean {_TABLE[near[0]][0]}?"
    return "there are: " + ", ".join(option for option, _, _ in _TABLE.values())


def _unsaid(option: str, value: str) -> str:
    return "***" if option == "apiKey" else value  # an error's text is logged


def _check_together(options: ReadOptions, texts: dict[str, str]) -> None:
    for one, other in (
        ("subscribe", "subscribePattern"),
        ("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
    ):
        if one.lower() in texts and other.lower() in texts:
            problem = f"cannot be given together with {one}"
            raise OptionError(other, texts[other.lower()], problem, "leave one of them out")
    if options.trusted is not None and options.key_file is None:
        value = texts["trustedkeys"]
        raise OptionError("trustedKeys", value, "is of no use alone", "give a privateKeyFile")
    for option, position in (
        ("startingOffsets", options.start),
        ("endingOffsets", options.end),
    ):
        if isinstance(position, dict):
            _check_topics(option, texts[option.lower()], position, options)


def _check_topics(
    option: str, text: str, position: dict[str, int], options: ReadOptions
) -> None:
    """Refuse offsets of topics that are not read, and listed topics without an offset."""
    for topic in position:
        if not wants(options, topic):
            problem = f"has the topic {topic!r}, which is not read"
            raise OptionError(option, text, problem, "leave it out, or subscribe to it")
    for topic in options.topics or ():
        if topic not in position:
            problem = f"has no offset for the topic {topic!r}"
            raise OptionError(option, text, problem, 'add it; "earliest" is -2, "latest" -1')


def wants(options: ReadOptions, topic: str) -> bool:
    """Tell whether messages of *topic* are read."""
    if options.topics is not None:
        return topic in options.topics
    return options.pattern is None or re.fullmatch(options.pattern, topic) is not None


def _directory(option: str, text: str) -> Path:
    if not text or "://" in text:
        fix = "name a directory that driver and executors share"
        raise OptionError(option, text, "is not a local path", fix)
    # Workers may run somewhere else than the driver, which is who comes by here.
    return Path(text).absolute()


def _topics(option: str, text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise OptionError(option, text, "names no topic", "give names, with commas between")
    return names


def _pattern(option: str, text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        problem = f"is not a regular expression ({error})"
        raise OptionError(option, text, problem, "it must match whole topic names") from None
    return text


def _position(option: str, text: str) -> Position:
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return EARLIEST if word == "earliest" else LATEST
    if word.isascii() and word.isdigit() and int(word) <= OFFSET_MAX:
        return int(word)
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except (ValueError, RecursionError):
        raise OptionError(option, text, "is no offset", _POSITION_FIX) from None
    for topic, partitions in found.items():
        if list(partitions) != [ONLY_PARTITION]:
            problem = f"has other partitions than 0 of the topic {topic!r}"
            raise OptionError(option, text, problem, "a topic has one partition, 0")
        if not EARLIEST <= partitions[ONLY_PARTITION] <= OFFSET_MAX:
            raise OptionError(option, text, "has an offset that is none", _POSITION_FIX)
    if not found:
        raise OptionError(option, text, "names no topic", _POSITION_FIX)
    return {topic: partitions[ONLY_PARTITION] for topic, partitions in found.items()}


def _milliseconds(option: str, text: str) -> int:
    return _number(option, text, 0, "milliseconds since 1970") * 1000


def _count(option: str, text: str) -> int:
    return _number(option, text, 1, "a number of at least 1")


def _number(option: str, text: str, least: int, wanted: str) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and least <= int(word) <= OFFSET_MAX // 1000):
        raise OptionError(option, text, "cannot be used", f"give {wanted}")
    return int(word)


def _flag(option: str, text: str) -> bool:
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise OptionError(option, text, "is neither true nor false", "give one of them")
    return word == "true"


def _schema_id(option: str, text: str) -> str:
    if not text:
        fix = "name a built-in schema, or the .json file of one"
        raise OptionError(option, text, "names no schema", fix)
    return str(Path(text).absolute()) if text.endswith(".json") else text


def _keys(option: str, text: str) -> tuple[bytes, ...]:
    try:
        return tuple(parse_key(word.strip()) for word in text.split(","))
    except UnusableKeyError as error:
        fix = "give public keys as `braidmq keygen` prints them, with commas between"
        raise OptionError(option, text, f"has a key that {error}", fix) from None


_NOT_YET: Final = {
    "endpoint": ("endpoint", "use path, the broker's data directory"),
    "apikey": ("apiKey", "path needs no key: the file system decides who may read"),
    "groupid": ("groupId", "leave it out: the checkpoint keeps a query's place"),
}
_TABLE: Final[dict[str, tuple[str, str, Parser]]] = {
    option.lower(): (option, field, parser)
    for option, field, parser in (
        ("path", "path", _directory),
        ("subscribe", "topics", _topics),
        ("subscribePattern", "pattern", _pattern),
        ("startingOffsets", "start", _position),
        ("endingOffsets", "end", _position),
        ("startingTimestamp", "start_us", _milliseconds),
        ("endingTimestamp", "end_us", _milliseconds),
        ("maxOffsetsPerTrigger", "trigger_messages", _count),
        ("maxBytesPerTrigger", "trigger_bytes", _count),
        ("minPartitions", "partitions_min", _count),
        ("targetPartitionBytes", "partition_bytes", _count),
        ("failOnDataLoss", "fail_on_data_loss", _flag),
        ("includeHeaders", "headers", _flag),
        ("schemaId", "schema_id", _schema_id),
        ("privateKeyFile", "key_file", _directory),
        ("trustedKeys", "trusted", _keys),
    )
}
