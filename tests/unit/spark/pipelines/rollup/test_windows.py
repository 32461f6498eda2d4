"""Windows of readings: the log decides what is late, not how it is cut into batches.

These tests need no JVM; tests/integration/spark tests the data frames.
"""

from collections.abc import Iterator
from itertools import accumulate, groupby, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import ConfigError
from braidmq.base.schemas import BUILT_IN
from braidmq.columnar import TypedSchema
from braidmq.spark.pipelines.rollup.windows import (
    BLOCK_BITS,
    Block,
    Reading,
    Rules,
    floors_of,
    later,
    may_be_late,
    reading_of,
)
from tests.unit.spark.pipelines.minutes import MINUTE_MS, Event, count

BLOCK_IDS = 1 << BLOCK_BITS
RULES = Rules(watermark_ms=3 * MINUTE_MS)
HOUR_MS = 60 * MINUTE_MS


rows = st.tuples(
    st.sampled_from(
        (1, BLOCK_IDS // 2, BLOCK_IDS)
    ),  # distance to the next id: in this block or another
    st.integers(0, 12),  # the minute
    st.sampled_from((1.0, 2.0, None)),
)


def log_of(drawn: list[tuple[int, int, float | None]]) -> list[Event]:
    """Readings of twelve minutes, in any order of time, some invalid, over a few blocks."""
    offsets = accumulate(step for step, _, _ in drawn)
    return [
        Event(offset, "s", minute * MINUTE_MS, value)
        for offset, (_, minute, value) in zip(offsets, drawn, strict=True)
    ]


def blocks_of(events: list[Event]) -> list[Block]:
    found = []
    for number, members in groupby(events, lambda event: event.offset >> BLOCK_BITS):
        own = list(members)
        times = [event.event_ms for event in own if event.value is not None]
        invalid = len(own) - len(times)
        oldest, newest = min(times, default=None), max(times, default=None)
        found.append(Block(number, len(own), invalid, oldest, newest))
    return found


def late_in(events: list[Event], newest_ms: int | None) -> Iterator[Event]:
    """Find late readings as executors do: by the block's floor and the rows before them."""
    floors = floors_of(blocks_of(events), newest_ms)
    for number, members in groupby(events, lambda event: event.offset >> BLOCK_BITS):
        before = floors[number]
        for event in members:
            if event.value is None:
                continue
            if before is not None and event.event_ms < before - RULES.watermark_ms:
                yield event
            before = later(before, event.event_ms)


@given(st.lists(rows, min_size=2, max_size=20), st.lists(st.integers(0, 20), max_size=3))
def test_what_is_late_does_not_depend_on_the_batches(
    drawn: list[tuple[int, int, float | None]], cuts: list[int]
) -> None:
    """However a log is cut into batches, and batches into blocks, the same rows are late."""
    events = log_of(drawn)
    expected = count(events, RULES.watermark_ms)
    late: list[Event] = []
    newest_ms: int | None = None
    for start, end in pairwise([0, *sorted(cuts), len(events)]):
        batch = events[start:end]
        blocks = blocks_of(batch)
        found = list(late_in(batch, newest_ms))
        if found:
            assert may_be_late(blocks, floors_of(blocks, newest_ms), RULES)
        late += found
        for block in blocks:
            newest_ms = later(newest_ms, block.newest_ms)

    assert expected.late == [event.offset for event in late]
    assert expected.newest_ms == newest_ms


def test_an_orderly_log_is_not_suspected() -> None:
    """Usually nothing is late, and then nothing needs to be sorted."""
    orderly = [Event(n, "s", n * 1000, 1.0) for n in range(1, 500)]
    blocks = blocks_of(orderly)
    just_in_time = [Block(0, 1, 0, 0, RULES.watermark_ms)]
    too_late = [Block(0, 1, 0, 0, RULES.watermark_ms + 1)]

    assert not may_be_late(blocks, floors_of(blocks, None), Rules(HOUR_MS))
    assert not may_be_late(just_in_time, {0: None}, RULES)
    assert may_be_late(too_late, {0: None}, RULES)
    assert may_be_late([Block(1, 1, 0, 5, 5)], {1: RULES.watermark_ms + 6}, RULES)
    assert not may_be_late([Block(1, 1, 1, None, None)], {1: 10**12}, RULES)


NUMBER = {"type": "number"}
FIELDS = {"sensor_id": {"type": "string"}, "timestamp_ms": {"type": "integer"}}


def schema(**more: object) -> TypedSchema:
    return TypedSchema("mine", {"type": "object", "properties": {**FIELDS, **more}})


def test_the_built_in_sensor_schemas_are_readings() -> None:
    """Their only number is the measured value."""
    found = {
        schema_id: reading_of(TypedSchema.built_in(schema_id)).value
        for schema_id in BUILT_IN
        if schema_id.startswith("sensor.")
    }

    assert {"sensor.Temperature": "celsius", "sensor.Humidity": "percent"} == found


def test_the_user_names_one_of_several_numbers() -> None:
    """Integers are numbers too, except for the time."""
    found = schema(volts=NUMBER, count={"type": "integer"})

    assert Reading("mine", "volts") == reading_of(found, "volts")
    assert Reading("mine", "count") == reading_of(found, "count")


REFUSED = {
    "no sensor": (TypedSchema.built_in("control.Command"), None, "needs a string 'sensor_id'"),
    "no number": (schema(place={"type": "string"}), None, "has 0 numbers .* --value: none"),
    "two numbers": (schema(a=NUMBER, b=NUMBER), None, "has 2 numbers .* --value: a, b"),
    "an unknown number": (schema(a=NUMBER), "b", "'b' is not a number of 'mine'; there are: a"),
    "the time": (schema(a=NUMBER), "timestamp_ms", "is not a number of"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_other_schemas_are_refused_with_what_is_missing(case: str) -> None:
    """The error names the schema, the field and the remedy."""
    found, value, problem = REFUSED[case]

    with pytest.raises(ConfigError, match=problem):
        reading_of(found, value)


def test_a_schema_whose_time_is_a_string_is_refused() -> None:
    """The fields need the right types, not only the right names."""
    fields = {**FIELDS, "timestamp_ms": {"type": "string"}, "a": NUMBER}
    found = TypedSchema("mine", {"type": "object", "properties": fields})

    with pytest.raises(ConfigError, match="an integer 'timestamp_ms'"):
        reading_of(found)
