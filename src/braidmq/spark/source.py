"""The data source "braidmq": Spark passes options and a schema, and gets readers and writers.

path                    the broker's data directory, shared by driver and executors
endpoint, apiKey        instead of path: the broker's Flight address, and an API key
subscribe, -Pattern     topics by name, or by a regular expression for the whole name
startingOffsets         earliest, latest, a number, or {"topic": {"0": number}}
endingOffsets           latest, a number, or as above; exclusive; batch only
startingTimestamp       milliseconds; overrides startingOffsets
endingTimestamp         milliseconds, exclusive; overrides endingOffsets; batch only
maxOffsetsPerTrigger    most messages in one micro-batch
maxBytesPerTrigger      or most bytes of payload in one micro-batch
minPartitions           fewest partitions, if there are that many messages
targetPartitionBytes    approximate size of a partition; default 64 MiB
failOnDataLoss          default true; false skips what retention has deleted
includeHeaders          default false; true adds the column headers
groupId                 a cursor in the broker: pins latest, shows lag, holds retention back
schemaId                decode JSON payloads: a built-in schema, or a .json file
privateKeyFile          decrypt payloads; trustedKeys: refuse all but those of these senders

And for writes:

endpoint, apiKey        the broker's Flight address, and an API key; or path and apiKey
topic                   where all rows go; overrides a column of that name
sinkId                  tells the writes of one foreachBatch apart
"""

from collections import Counter
from collections.abc import MutableMapping
from dataclasses import replace

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from braidmq.columnar.decoding.decode import ERROR_COLUMN
from braidmq.spark.options import ReadOptions, for_batch, for_stream, for_write, parse
from braidmq.spark.reading.readers import BatchReader, FilteringBatchReader, StreamReader
from braidmq.spark.reading.scans import full_schema
from braidmq.spark.runtime.workers import settle
from braidmq.spark.values import OptionError
from braidmq.spark.writing.writers import BatchWriter, StreamWriter

FORMAT = "braidmq"
SCHEMA = "schema"
"""How errors name the schema given with `.schema(...)`, which is no option."""


class BraidSource(DataSource):
    """The source without filter pushdown, which `register` offers."""

    batch_reader: type[BatchReader] = BatchReader

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        settle()

    def __setstate__(self, state: dict[str, object]) -> None:
        # Spark asks for the schema in one process and for partitions in another, which gets the
        # source unpickled and never calls __init__.
        vars(self).update(state)
        settle()

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return every column of the read; on the driver."""
        return spark_schema(parse(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of one batch query; on the driver."""
        options = for_batch(self.options)
        return self.batch_reader(options, column_names(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query; on the driver, in a process of its own."""
        options = for_stream(self.options)
        return StreamReader(options, column_names(schema, options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - as Spark calls it
        """Return the writer of one frame; on the driver."""
        _refuse_overwrite(overwrite=overwrite)
        return BatchWriter(for_write(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001 - as Spark calls it
        """Return the writer of a streaming query; on the driver, a new one for every batch."""
        _refuse_overwrite(overwrite=overwrite)
        return StreamWriter(for_write(self.options), schema)


class FilteringBraidSource(BraidSource):
    """The source with filter pushdown, which no session is given.

    Spark plans every query of one frame with the same reader, and the filters of one query stay
    in it for the next: after `frame.where("topic = 'a'")` has been planned, `frame.count()`
    counts only `a`. Nothing in the calls to a reader tells the queries apart.
    """

    batch_reader = FilteringBatchReader


def spark_schema(options: ReadOptions) -> StructType:
    """Return every column of a read.

    Raises:
        ConfigError: The schema of the payloads cannot be used.
    """
    return from_arrow_schema(full_schema(options))


def column_names(schema: StructType, options: ReadOptions) -> list[str]:
    """Return the names of a schema's columns, if it is a projection of the read.

    Spark does not prune the columns of a Python source, so a user who wants few columns passes
    them with `.schema(...)`. It may name `headers` even without the option includeHeaders.

    Raises:
        OptionError: It has a column or a type that the read does not have, or leaves out the
            column of errors though the senders have to be trusted.
        ConfigError: The schema of the payloads cannot be used.
    """
    names = schema.fieldNames()
    known = spark_schema(replace(options, headers=True))
    for name, count in Counter(names).items():
        if count > 1:
            raise OptionError(SCHEMA, name, "appears twice", "name each column once")
    for field in schema.fields:
        shown = f"{field.name} {field.dataType.simpleString()}"
        if field.name not in known.names:
            fix = f"there are: {', '.join(known.names)}"
            raise OptionError(SCHEMA, shown, "is not a column of braidmq", fix)
        if field.dataType != known[field.name].dataType:
            fix = f"it is {known[field.name].dataType.simpleString()}: cast it after the read"
            raise OptionError(SCHEMA, shown, "is not the column's type", fix)
        if not field.nullable:
            fix = "leave NOT NULL out: the columns that are read are declared nullable"
            raise OptionError(SCHEMA, f"{shown} NOT NULL", "cannot be guaranteed", fix)
    if options.trusted is not None and ERROR_COLUMN not in names:
        # A row that was refused could not be told from one that is trusted.
        problem = f"leaves out {ERROR_COLUMN}, which marks the rows that trustedKeys refuses"
        fix = f"add the column {ERROR_COLUMN} string, or leave trustedKeys out"
        raise OptionError(SCHEMA, ", ".join(names), problem, fix)
    return names


def _refuse_overwrite(*, overwrite: bool) -> None:
    if overwrite:
        problem = "cannot be used: published messages are never replaced"
        fix = 'use mode("append"), or outputMode("append") for a stream'
        raise OptionError("mode", "overwrite", problem, fix)
