"""The format "braidmq", as Spark knows it: options and a schema in, readers out.

path                    the broker's data directory, shared by driver and executors
subscribe, -Pattern     topics by name, or by a regular expression for whole names
startingOffsets         earliest, a number, or {"topic": {"0": number}}
endingOffsets           latest, a number, or as above; exclusive; batch only
startingTimestamp       milliseconds; wins over startingOffsets
endingTimestamp         milliseconds, exclusive; wins over endingOffsets; batch only
maxOffsetsPerTrigger    messages of one micro-batch
maxBytesPerTrigger      or bytes of payload of one micro-batch
minPartitions           at least so many parts, if there are so many messages
targetPartitionBytes    about so large parts; 64 MiB
failOnDataLoss          true; false: read on when retention deleted something
includeHeaders          false; true: the column headers
schemaId                decode JSON payloads: a built-in schema, or a .json file
privateKeyFile          unseal payloads; trustedKeys: of these senders only
"""

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from braidmq.spark.batch import BatchReader, FilteringBatchReader
from braidmq.spark.options import for_batch, for_stream, parse
from braidmq.spark.projections import column_names, spark_schema
from braidmq.spark.stream import StreamReader

FORMAT = "braidmq"


class BraidSource(DataSource):
    """The source without filter pushdown."""

    batch_reader: type[BatchReader] = BatchReader

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


class FilteringBraidSource(BraidSource):
    """The source with filter pushdown."""

    batch_reader = FilteringBatchReader
