"""Helpers that compare what a replay sent with what it should send."""

from typing import Final

from tests.integration.spark.serving import Serving
from tests.unit.columnar.logs import Row

SAME: Final = ("key", "value", "headers", "priority")
"""The columns that a replay must not change."""


def without_death(row: Row) -> Row:
    kept = [h for h in row["headers"] or () if not h["key"].startswith("death")]
    return {**{name: row[name] for name in SAME}, "headers": kept or None}


def replayed(broker: Serving, topic: str) -> list[Row]:
    """Return the messages that the sink wrote to a topic, in order."""
    found = [r for r in broker.rows() if r["topic"] == topic and r["origin"] == "spark"]
    return [{name: row[name] for name in SAME} for row in found]
