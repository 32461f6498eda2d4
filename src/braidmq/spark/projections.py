"""The columns as Spark types: the whole schema, and a user's schema as a projection of it.

Spark does not prune the columns of a Python source. A user who wants few columns passes them
with `.schema(...)`.
"""

from collections import Counter
from dataclasses import replace

from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.scans import full_schema
from braidmq.spark.values import OptionError

OPTION = "schema"
"""How errors name the schema given with `.schema(...)`, which is no option."""


def spark_schema(options: ReadOptions) -> StructType:
    """Return every column of a read.

    Raises:
        ConfigError: The schema of the payloads cannot be used.
    """
    return from_arrow_schema(full_schema(options))


def column_names(schema: StructType, options: ReadOptions) -> list[str]:
    """Return the names of a schema's columns, if it is a projection of the read.

    It may name `headers` even without the option includeHeaders.

    Raises:
        OptionError: It has a column or a type that the read does not have.
        ConfigError: The schema of the payloads cannot be used.
    """
    names = schema.fieldNames()
    known = spark_schema(replace(options, headers=True))
    for name, count in Counter(names).items():
        if count > 1:
            raise OptionError(OPTION, name, "appears twice", "name each column once")
    for field in schema.fields:
        shown = f"{field.name} {field.dataType.simpleString()}"
        if field.name not in known.names:
            fix = f"there are: {', '.join(known.names)}"
            raise OptionError(OPTION, shown, "is not a column of braidmq", fix)
        if field.dataType != known[field.name].dataType:
            fix = f"it is {known[field.name].dataType.simpleString()}: cast it after the read"
            raise OptionError(OPTION, shown, "is not the column's type", fix)
        if not field.nullable:
            fix = "leave NOT NULL out: Spark compares it with the rows, which do not say it"
            raise OptionError(OPTION, f"{shown} NOT NULL", "cannot be promised", fix)
    return names
