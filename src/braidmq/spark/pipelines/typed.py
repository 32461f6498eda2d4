"""`typed`: messages of a schema as a table of its fields; invalid ones go to quarantine.

    sensor.Temperature/date=2026-11-16/batch-0000000012-sensor.Temperature-0000.parquet
    quarantine/date=2026-11-16/batch-0000000012-sensor.Temperature-0000.parquet

Each schema has a table: topic, offset, timestamp and key of a message, then the fields.
Quarantine holds the raw bytes, the reason, and the schema that they do not match. Every message
of the log is in one of the two: the rows are compared with the count in the log's index, and a
batch whose rows do not add up is not written at all.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as Spark's own documentation has it

from braidmq.base.errors import ConfigError
from braidmq.columnar import TypedSchema
from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.decoding.decode import ERROR_COLUMN
from braidmq.spark.brokers import patiently
from braidmq.spark.options import for_stream, wants
from braidmq.spark.pipelines.archive import DAY, with_day
from braidmq.spark.pipelines.runs.runs import Batch, Plan, Run, Stream, Tell
from braidmq.spark.pipelines.tables.layouts import plain_name
from braidmq.spark.pipelines.tables.tables import Table
from braidmq.spark.reading.offsets import StreamOffset
from braidmq.spark.reading.scans import Scan

NAME: Final = "typed"
QUARANTINE: Final = "quarantine"
TABLE: Final = "_table"
SCHEMA: Final = "_schema"
"""Intermediate columns: the table that a row belongs to, and the id of the schema."""

OF_MESSAGES: Final = ("topic", "offset", "timestamp", "key")
"""The columns that both tables begin with."""

_TAKEN: Final = frozenset(
    name.casefold() for name in (*TYPES, ERROR_COLUMN, DAY, TABLE, SCHEMA)
)
"""Names that no field may have, in any case: to Spark, `Date` and `date` are the same."""


@dataclass(frozen=True)
class TypedTopics:
    """A schema, built-in or a .json file, and its topics; without any, those of the plan."""

    schema: str
    topics: tuple[str, ...] = ()


def parse_typed(pairs: Iterable[str]) -> list[TypedTopics]:
    """Return the schemas and their topics from texts of the form TOPIC=SCHEMA.

    Raises:
        ConfigError: A text has another form, or a topic has two schemas.
    """
    found: dict[str, list[str]] = {}
    named: dict[str, str] = {}
    for text in pairs:
        topic, equals, schema = text.rpartition("=")
        if not equals or not topic or not schema or "," in topic:
            raise ConfigError("--typed", f"{text!r} is not TOPIC=SCHEMA")
        if named.setdefault(topic, schema) != schema:
            problem = f"the topic {topic!r} cannot be both {named[topic]!r} and {schema!r}"
            raise ConfigError("--typed", problem)
        found.setdefault(schema, []).append(topic)
    return [
        TypedTopics(schema, tuple(dict.fromkeys(topics))) for schema, topics in found.items()
    ]


def schema_of(text: str) -> TypedSchema:
    """Return a built-in schema, or that of a .json file.

    Raises:
        ConfigError: There is no such schema, or a field has the name of a table column.
    """
    built_in = not text.endswith(".json")
    schema = TypedSchema.built_in(text) if built_in else TypedSchema.from_file(text)
    for field in schema.fields:
        if field.name.casefold() in _TAKEN:
            problem = f"the field {field.name!r} of {text} has the name of a column"
            raise ConfigError("schema", problem)
    return schema


def judged(rows: DataFrame, schema_id: str) -> DataFrame:
    """Return decoded *rows* with the table that each belongs to.

    Only invalid rows keep their payload; the fields of the others hold the same.
    """
    is_invalid = F.col(ERROR_COLUMN).isNotNull()
    table = F.when(is_invalid, QUARANTINE).otherwise(plain_name(schema_id))
    fields = [name for name in rows.columns if name not in TYPES and name != ERROR_COLUMN]
    return with_day(rows).select(
        *OF_MESSAGES,
        F.when(is_invalid, F.col("value")).alias("value"),
        *(f"`{name.replace('`', '``')}`" for name in fields),
        ERROR_COLUMN,
        F.lit(schema_id).alias(SCHEMA),
        table.alias(TABLE),
        DAY,
    )


def table_of(out: Path, format_: str, schema: TypedSchema, lock: "Lock | None" = None) -> Table:
    """Return the tables that judged rows of a schema go to: its own, and quarantine."""
    shared = {name: name for name in OF_MESSAGES}
    branches = {
        plain_name(schema.id): shared | {field.name: field.name for field in schema.fields},
        QUARANTINE: {**shared, "value": "value", "reason": ERROR_COLUMN, "schema": SCHEMA},
    }
    return Table(out, format_, (DAY,), branch_column=TABLE, branches=branches, lock=lock)


def typed(plan: Plan, wanted: Sequence[TypedTopics], tell: Tell) -> None:
    """Run the pipeline, with a query for each schema.

    Raises:
        BraidError: It cannot start or continue; what is written stays.
    """
    run = Run(NAME, plan, tell)
    lock = Lock()  # the queries share quarantine, which one of them may be compacting
    schemas = [schema_of(given.schema) for given in wanted]
    names = [plain_name(schema.id) for schema in schemas]
    if len(set(names)) < len(names):
        raise ConfigError("--typed", "two schemas have the same id")
    tables = [table_of(plan.out, plan.format, schema, lock) for schema in schemas]
    streams = [
        _stream(run, given, schema.id, table)
        for given, schema, table in zip(wanted, schemas, tables, strict=True)
    ]
    run.go(*streams)


def _stream(run: Run, given: TypedTopics, schema_id: str, table: Table) -> Stream:
    name = plain_name(schema_id)
    options = {"schemaId": given.schema}
    if given.topics:
        options["subscribe"] = ",".join(given.topics)
    if group := run.plan.source.get("groupId"):
        # Each query needs a cursor of its own: a shared one would follow the fastest query, and
        # retention would delete what the others have not read.
        options["groupId"] = f"{group}.{name}"

    def frame() -> DataFrame:
        return judged(run.messages(**options), schema_id)

    def write(rows: DataFrame, batch: Batch) -> int | None:
        count = partial(messages_of, run.source(**options), batch)
        return table.write(rows, batch, name, count=count).rows

    return Stream(frame, write, name, [table])


def messages_of(source: Mapping[str, str], batch: Batch) -> int | None:
    """Return how many messages the index of the log has for a batch, independently of the read.

    None: it is the first batch, and its checkpoint does not record where it began.

    Raises:
        LostOffsetsError: An offset of the batch is lost, and failOnDataLoss is set.
        LogError: The checkpoint belongs to another format.
    """
    end = StreamOffset.from_json(json.loads(batch.end))
    if not batch.start and end.begin is None:
        return None
    start = StreamOffset.from_json(json.loads(batch.start or batch.end))
    begin, limits = end.batch_from(start)
    options = for_stream(source)
    count = _messages(Scan.of(options, []), begin, end.id)
    for topic, floor in limits.floors.items():
        if wants(options, topic):
            early = Scan(options, [], frozenset({topic}))
            count -= _messages(early, begin, min(floor, end.id))
    return count


def _messages(scan: Scan, start: int, end: int) -> int:
    if start >= end:
        return 0
    return sum(part.messages for part in patiently(lambda: scan.cut(start, end)))
