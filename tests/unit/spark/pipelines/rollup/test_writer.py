"""The rollup's batches: no row goes missing unseen. Batches that run are tested with a JVM."""

from pathlib import Path

import pytest

from braidmq.columnar import TypedSchema
from braidmq.spark.pipelines.rollup.states import Count, State, Windows
from braidmq.spark.pipelines.rollup.windows import Rules, reading_of
from braidmq.spark.pipelines.rollup.writer import Goal, LostReadingsError, _counted


class Counted(Windows):
    """Windows of which only the numbers matter."""

    def __init__(self, closed: Count, still_open: Count) -> None:
        super().__init__(Path(), [])
        self._counts = closed, still_open

    def count(self, watermark_ms: int | None) -> tuple[Count, Count]:
        return self._counts


STATE = State(schema_id="s", value="v", query_id="q", place="p", rows=10, late=2, invalid=1)


def test_rows_are_counted_late_or_invalid() -> None:
    """The readings that were held before are in the windows too, and are no rows of it."""
    found = _counted(STATE, Counted(Count(3, 8), Count(2, 4)), 0, held_before=5)

    assert (3, 2, 4) == (found.closed, found.open, found.held)


@pytest.mark.parametrize("open_readings", [3, 5])
def test_a_row_too_many_or_too_few_stops_the_batch(open_readings: int) -> None:
    """It says the numbers that do not add up."""
    found = Counted(Count(3, 8), Count(2, open_readings))

    with pytest.raises(LostReadingsError, match=r"of 10 rows .* 2 were late and 1 invalid"):
        _counted(STATE, found, 0, held_before=5)


def test_the_topic_is_named_after_the_schema(tmp_path: Path) -> None:
    """Subscribers of a schema's minutes need not ask."""
    reading = reading_of(TypedSchema.built_in("sensor.Humidity"))

    assert "rollup.sensor.Humidity" == Goal(reading, Rules(1), tmp_path).topic
