"""`archive` without a JVM: where a message is stored."""

from datetime import date

import pyarrow as pa

from braidmq.spark.pipelines.archive import KEYS
from braidmq.spark.pipelines.tables.layouts import Layout

LONG = "t" * 65_535


def test_a_message_is_stored_by_day_and_topic_and_keeps_its_topic() -> None:
    """The directory's name is bounded; the column has the whole topic."""
    rows = pa.table({"topic": ["a/b", LONG], "date": [date(2026, 1, 2)] * 2})
    partitions = list(Layout(KEYS).partitions(rows))

    assert [["a/b"], [LONG]] == [
        partition.rows.column("topic").to_pylist() for partition in partitions
    ]
    assert ["topic"] == partitions[0].rows.column_names
    assert partitions[0].directory.startswith("date=2026-01-02/topic_dir=a%2Fb~")
    assert all(
        len(part) < 255 for partition in partitions for part in partition.directory.split("/")
    )
