"""Parse the options of reads and writes into a checked description.

Names are those of Spark's Kafka source wherever the meaning is the same. An error names the
option, the value and the fix. Nothing here touches the log or imports Spark.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, get_type_hints

from braidmq.base.limits import MIB
from braidmq.spark import values
from braidmq.spark.values import EARLIEST, LATEST, OptionError, Position, unsaid

PARTITION_BYTES: Final = 64 * MIB

_EXCLUSIVE: Final = (
    ("path", "endpoint"),
    ("subscribe", "subscribePattern"),
    ("maxOffsetsPerTrigger", "maxBytesPerTrigger"),
)
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
"""Options that Spark passes on to every source and sink."""


Parser = Callable[[str, str], Any]
OptionTable = Mapping[str, tuple[str, str, Parser]]
"""Lower-case option name to: its spelling, the field that it fills, and its parser."""


@dataclass(frozen=True)
class BrokerOptions:
    """Where the broker is; each field names its option and the parser of its text."""

    path: Annotated[Path | None, "path", values.directory] = None
    endpoint: Annotated[str | None, "endpoint", values.address] = None
    api_key: Annotated[str | None, "apiKey", values.api_key] = field(default=None, repr=False)


@dataclass(frozen=True)
class ReadOptions(BrokerOptions):
    """The options of a read, parsed."""

    topics: Annotated[tuple[str, ...] | None, "subscribe", values.topics] = None
    pattern: Annotated[str | None, "subscribePattern", values.pattern] = None
    start: Annotated[Position | None, "startingOffsets", values.position] = None
    end: Annotated[Position | None, "endingOffsets", values.position] = None
    start_us: Annotated[int | None, "startingTimestamp", values.milliseconds] = None
    end_us: Annotated[int | None, "endingTimestamp", values.milliseconds] = None
    trigger_messages: Annotated[int | None, "maxOffsetsPerTrigger", values.count] = None
    trigger_bytes: Annotated[int | None, "maxBytesPerTrigger", values.count] = None
    partitions_min: Annotated[int | None, "minPartitions", values.count] = None
    partition_bytes: Annotated[int, "targetPartitionBytes", values.count] = PARTITION_BYTES
    fail_on_data_loss: Annotated[bool, "failOnDataLoss", values.flag] = True
    headers: Annotated[bool, "includeHeaders", values.flag] = False
    group_id: Annotated[str | None, "groupId", values.name] = None
    schema_id: Annotated[str | None, "schemaId", values.schema_id] = None
    key_file: Annotated[Path | None, "privateKeyFile", values.key_file] = None
    trusted: Annotated[tuple[bytes, ...] | None, "trustedKeys", values.public_keys] = None


@dataclass(frozen=True)
class WriteOptions(BrokerOptions):
    """The options of a write, parsed."""

    topic: Annotated[str | None, "topic", values.topic] = None
    sink_id: Annotated[str | None, "sinkId", values.name] = None


def parse(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read; the case of a name does not matter.

    Raises:
        OptionError: A name is unknown, a value is invalid, or two exclude each other.
    """
    options = ReadOptions(**_parsed(given, _READ, _READ_HINTS))
    if options.endpoint is not None or options.group_id is not None:
        _check_key(options.api_key)
    elif options.api_key is not None:
        problem, fix = "has no effect", "leave it out: path alone is read without the broker"
        raise OptionError("apiKey", values.HIDDEN, problem, fix)
    if options.trusted is not None and options.key_file is None:
        problem, fix = "has no effect alone", "give a privateKeyFile"
        raise OptionError("trustedKeys", values.HIDDEN, problem, fix)
    _check_topics(given, "startingOffsets", options.start, options)
    _check_topics(given, "endingOffsets", options.end, options)
    return options


def for_batch(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read; by default it reads from earliest to latest.

    Raises:
        OptionError: As for `parse`, or an option is only for streams.
    """
    options = parse(given)
    for name in ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "groupId"):
        _refuse(given, name, "is for streams", "leave it out of a batch read")
    start = EARLIEST if options.start is None else options.start
    end = LATEST if options.end is None else options.end
    if options.start_us is None and LATEST in _numbers(start):
        fix = "begin at earliest, a number or a startingTimestamp"
        _refuse(given, "startingOffsets", "leaves nothing for a batch read", fix)
    if options.end_us is None and EARLIEST in _numbers(end):
        fix = "end at latest, a number or an endingTimestamp"
        _refuse(given, "endingOffsets", "leaves nothing for a batch read", fix)
    if options.start_us is None and options.end_us is None:
        _check_order(given, start, end)
    return replace(options, start=start, end=end)


def _check_order(given: Mapping[str, str], start: Position, end: Position) -> None:
    """Refuse topics whose end is before their start."""
    # Of one number for all topics, `batch_range` compares the ends: the log may bound them.
    if not isinstance(start, dict) or not isinstance(end, dict):
        return
    for topic in start.keys() & end.keys():
        if 0 <= end[topic] < start[topic]:
            problem = f"ends the topic {topic!r} before its start"
            fix = f"give at least {start[topic]}"
            _refuse(given, "endingOffsets", problem, fix)


def for_stream(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a streaming read.

    Raises:
        OptionError: As for `parse`, an option is only for batches, or the start would move.
    """
    options = parse(given)
    for name in ("endingOffsets", "endingTimestamp"):
        _refuse(given, name, "is for batch reads", "leave it out: a stream has no end")
    start = LATEST if options.start is None else options.start
    if options.start_us is None and LATEST in _numbers(start):
        _check_pinned(given, options, start)
        start = LATEST
    return replace(options, start=start)


def _check_pinned(given: Mapping[str, str], options: ReadOptions, start: Position) -> None:
    value = _value(given, "startingOffsets") or "latest"
    if options.group_id is None:
        problem = (
            "would lose rows: Spark asks a stream for its first offset more than once, and "
            "latest is another one each time"
        )
        fix = (
            "give a groupId, whose cursor in the broker pins it, or startingOffsets as "
            "earliest or a number, or a startingTimestamp"
        )
        raise OptionError("startingOffsets", value, problem, fix)
    if _numbers(start) != {LATEST}:
        problem = "has latest for some topics only, and the cursor of a group pins one offset"
        raise OptionError("startingOffsets", value, problem, "give latest for all, or numbers")


def for_write(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a write.

    Raises:
        OptionError: A name is unknown, a value is invalid, or one is missing.
    """
    options = WriteOptions(**_parsed(given, _WRITE, _WRITE_HINTS))
    _check_key(options.api_key)
    return options


def _parsed(
    given: Mapping[str, str], table: OptionTable, hints: Mapping[str, str]
) -> dict[str, Any]:
    """Return the fields that options fill, if all are known and they name one broker."""
    texts = {name.lower(): str(value) for name, value in given.items()}
    found = {}
    for name, text in texts.items():
        if name in SPARKS_OWN:
            continue
        if name not in table:
            fix = hints.get(name) or _hint(name, table)
            problem = "cannot be used: there is no such option"
            raise OptionError(name, unsaid(name, text), problem, fix)
        option, target, parser = table[name]
        found[target] = parser(option, text)
    for one, other in _EXCLUSIVE:
        if one.lower() in texts and other.lower() in texts:
            problem = f"cannot be given together with {one}"
            raise OptionError(other, texts[other.lower()], problem, "leave one of them out")
    if "path" not in texts and "endpoint" not in texts:
        fix = "name the broker's data directory, or give endpoint and apiKey instead"
        raise OptionError("path", "", "is missing", fix)
    return found


def _hint(name: str, table: OptionTable) -> str:
    near = difflib.get_close_matches(name, table, 1)
    if near:
        return f"did you mean {table[near[0]][0]}?"
    return "there are: " + ", ".join(option for option, _, _ in table.values())


def _check_key(api_key: str | None) -> None:
    if api_key is None:
        fix = "the broker requires one: create it with `braidmq keys new`"
        raise OptionError("apiKey", "", "is missing", fix)


def _numbers(position: Position) -> set[int]:
    return set(position.values()) if isinstance(position, dict) else {position}


def _value(given: Mapping[str, str], option: str) -> str | None:
    return next((str(v) for name, v in given.items() if name.lower() == option.lower()), None)


def _refuse(given: Mapping[str, str], option: str, problem: str, fix: str) -> None:
    """Refuse an option, if it is given."""
    value = _value(given, option)
    if value is not None:
        raise OptionError(option, value, problem, fix)


def _check_topics(
    given: Mapping[str, str], option: str, position: Position | None, options: ReadOptions
) -> None:
    """Refuse offsets of topics that are not read, and listed topics without an offset."""
    if not isinstance(position, dict):
        return
    for topic in position:
        if not wants(options, topic):
            problem = f"has the topic {topic!r}, which is not read"
            _refuse(given, option, problem, "leave it out, or subscribe to it")
    for topic in options.topics or ():
        if topic not in position:
            problem = f"has no offset for the topic {topic!r}"
            _refuse(given, option, problem, 'add it; "earliest" is -2, "latest" -1')


def wants(options: ReadOptions, topic: str) -> bool:
    """Tell whether the read includes messages of *topic*."""
    if options.topics is not None:
        return topic in options.topics
    return options.pattern is None or re.fullmatch(options.pattern, topic) is not None


def _table(options: type[BrokerOptions]) -> OptionTable:
    found = {}
    for name, hint in get_type_hints(options, include_extras=True).items():
        option, parser = hint.__metadata__
        found[option.lower()] = option, name, parser
    return found


_READ: Final = _table(ReadOptions)
_WRITE: Final = _table(WriteOptions)
_SERVERS: Final = "use endpoint, the broker's Flight address, or path, its data directory"
_READ_HINTS: Final = {
    "assign": "name topics with subscribe: a topic has one partition",
    "startingoffsetsbytimestamp": "use startingTimestamp, which is for all topics",
    "endingoffsetsbytimestamp": "use endingTimestamp, which is for all topics",
    "kafka.bootstrap.servers": _SERVERS,
    "kafka.group.id": "use groupId",
    "groupidprefix": "use groupId, the whole name",
    "topic": "it is for writes; topics to read are named with subscribe",
    "sinkid": "it is for writes",
}
_WRITE_HINTS: Final = {
    **{name: "it is for reads" for name in _READ if name not in _WRITE},
    "includeheaders": "leave it out: a column headers is always written",
    "kafka.bootstrap.servers": _SERVERS,
}
