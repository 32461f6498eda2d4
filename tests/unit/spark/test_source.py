"""The format: which reader it makes of which options and schema."""

from pathlib import Path

import pytest
from pyspark.sql.types import LongType, StructField, StructType

from braidmq.spark.batch import BatchReader, FilteringBatchReader
from braidmq.spark.options import OptionError
from braidmq.spark.source import BraidSource, FilteringBraidSource
from braidmq.spark.stream import StreamReader
from tests.unit.columnar.logs import plain_rows, write_log
from tests.unit.spark.sources import read_batch, source, varied

OFFSET = StructType([StructField("offset", LongType())])


def test_the_format_has_a_name() -> None:
    """What users write."""
    assert {"braidmq"} == {BraidSource.name(), FilteringBraidSource.name()}


def test_readers_are_of_the_kind_that_was_registered() -> None:
    """With filters or without."""
    given = {"path": "data", "startingoffsets": "earliest"}

    assert BatchReader is type(BraidSource(given).reader(OFFSET))
    assert FilteringBatchReader is type(FilteringBraidSource(given).reader(OFFSET))
    assert StreamReader is type(BraidSource(given).streamReader(OFFSET))


def test_options_are_judged_as_soon_as_the_schema_is_asked_for() -> None:
    """That is, by load()."""
    with pytest.raises(OptionError, match="option pth"):
        source(Path("data"), pth="x").schema()
    with pytest.raises(OptionError, match="startingOffsets: 'latest' would lose rows"):
        source(Path("data")).streamReader(OFFSET)


def test_a_schema_of_the_user_is_what_is_read(tmp_path: Path) -> None:
    """As a projection."""
    path = write_log(tmp_path, varied(20))

    assert [{"offset": row["offset"]} for row in plain_rows(path)] == read_batch(path, OFFSET)
