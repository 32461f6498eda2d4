"""Where reads begin and end."""

from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError, LogError
from braidmq.columnar.logs import DirectoryLog
from braidmq.columnar.loss import RETAINED, DataLossError, Loss
from braidmq.spark.options import ReadOptions, for_batch, for_stream
from braidmq.spark.reading.offsets import (
    NO_LIMITS,
    Limits,
    LostOffsetsError,
    Offset,
    Range,
    StreamOffset,
    batch_range,
    limits_of,
    lost_offsets,
    stream_start,
)
from braidmq.spark.values import OptionError
from tests.unit.columnar.logs import log_of, message, retain_from, write_log
from tests.unit.spark.sources import logged_losses


def hundred(root: Path) -> Path:
    """Write ids 1 to 100, accepted at the milliseconds 1 to 100."""
    return write_log(root, [message("t", b"x" * 50, i * 1000) for i in range(1, 101)])


def range_of(options: ReadOptions) -> Range:
    assert options.path is not None
    return batch_range(DirectoryLog(options.path), options)


def start_of(options: ReadOptions) -> int | None:
    assert options.path is not None
    return stream_start(DirectoryLog(options.path), options)


RANGES = [
    ({}, Range(1, 101)),
    ({"startingOffsets": "20", "endingOffsets": "30"}, Range(20, 30)),
    ({"startingTimestamp": "20", "endingTimestamp": "30"}, Range(20, 30)),
    ({"startingOffsets": "5", "startingTimestamp": "20"}, Range(20, 101)),
    ({"startingTimestamp": "500"}, Range(101, 101)),
    ({"startingOffsets": '{"a":{"0":7},"b":{"0":9}}', "subscribe": "a,b"}, Range(7, 101)),
    ({"startingOffsets": '{"a":{"0":7},"b":{"0":-2}}', "subscribe": "a,b"}, Range(1, 101)),
    ({"startingOffsets": '{"a":{"0":7}}'}, Range(1, 101)),
    ({"endingOffsets": '{"a":{"0":7},"b":{"0":9}}', "subscribe": "a,b"}, Range(1, 9)),
    ({"endingOffsets": '{"a":{"0":7},"b":{"0":-1}}', "subscribe": "a,b"}, Range(1, 101)),
    ({"endingOffsets": '{"a":{"0":7}}', "subscribePattern": "a|b"}, Range(1, 101)),
    ({"endingOffsets": "5000"}, Range(1, 5000)),
    ({"startingOffsets": "101"}, Range(101, 101)),
    ({"startingOffsets": "30", "endingOffsets": "30"}, Range(30, 30)),
    ({"startingTimestamp": "5000", "startingOffsets": "5000"}, Range(101, 101)),
]


@pytest.mark.parametrize(("options", "expected"), RANGES)
def test_the_range_of_a_batch_follows_its_options(
    tmp_path: Path, options: dict[str, str], expected: Range
) -> None:
    """By ids, by times and by topic; topics that are not named have no limit."""
    path = hundred(tmp_path / "log")

    assert expected == range_of(for_batch({"path": str(path)} | options))


PAST_THE_END = [
    ({"startingOffsets": "5000"}, Range(5000, 5000)),
    ({"startingOffsets": "102", "endingOffsets": "20"}, Range(102, 102)),
    ({"startingOffsets": "5000", "endingTimestamp": "9"}, Range(5000, 5000)),
    ({"startingOffsets": '{"a":{"0":7},"b":{"0":5000}}', "subscribe": "a,b"}, Range(7, 101)),
]


@pytest.mark.parametrize(("options", "left"), PAST_THE_END)
def test_a_batch_that_begins_past_the_end_of_the_log_is_a_loss(
    tmp_path: Path, options: dict[str, str], left: Range
) -> None:
    """Otherwise a log that was replaced would look idle for ever."""
    given = {"path": str(hundred(tmp_path))} | options

    with pytest.raises(LostOffsetsError, match="the log ends at 101, before the offset"):
        range_of(for_batch(given))
    with logged_losses() as problems:
        assert left == range_of(for_batch(given | {"failOnDataLoss": "false"}))
    (problem,) = problems
    assert problem.startswith("the log ends at 101, before the offset")


CROSSED = [
    {"startingOffsets": "50", "endingOffsets": "20"},
    {"startingOffsets": "50", "endingTimestamp": "20"},
    {"startingTimestamp": "50", "endingOffsets": "20"},
    {"startingTimestamp": "50", "endingTimestamp": "20"},
]


@pytest.mark.parametrize("options", CROSSED)
def test_a_batch_that_ends_before_it_begins_is_refused(
    tmp_path: Path, options: dict[str, str]
) -> None:
    """Even with failOnDataLoss=false: it is a mistake, not a loss."""
    given = {"path": str(hundred(tmp_path)), "failOnDataLoss": "false"} | options
    ending = next(name for name in options if name.startswith("ending"))

    with pytest.raises(OptionError, match=f"option {ending}: '20' is before the start"):
        range_of(for_batch(given))


def test_a_batch_that_ends_before_what_retention_has_left_is_a_loss(tmp_path: Path) -> None:
    """It begins at earliest, which is past its end by now."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(200)]) as log:
        retain_from(log, 100)
        given = {"path": str(tmp_path), "endingOffsets": "5"}

        with pytest.raises(LostOffsetsError, match="the offsets before 5 are lost"):
            range_of(for_batch(given))
        with logged_losses() as problems:
            start, end = range_of(for_batch(given | {"failOnDataLoss": "false"}))
        assert start == end
        assert [f"the offsets before 5 are lost: the log begins at {start}"] == problems


def test_earliest_is_the_first_offset_that_retention_has_left(tmp_path: Path) -> None:
    """So a read from there loses nothing."""
    with log_of(tmp_path, [message("t", b"x" * 200, i) for i in range(200)]) as log:
        retain_from(log, 100)
        start = range_of(for_batch({"path": str(tmp_path)})).start

    assert 1 < start <= 100
    assert start == start_of(for_stream({"path": str(tmp_path), "startingOffsets": "earliest"}))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": "earliest"}, 1),
        ({"startingOffsets": "77"}, 77),
        ({"startingTimestamp": "42"}, 42),
    ],
)
def test_a_stream_starts_at_the_same_place_however_the_log_grows(
    tmp_path: Path, options: dict[str, str], expected: int
) -> None:
    """Spark asks again after a restart."""
    with log_of(tmp_path, [message("t", b"x", i * 1000) for i in range(1, 101)]) as log:
        given = for_stream({"path": str(tmp_path)} | options)
        before = start_of(given)
        log.append([message("t", b"x", 200_000)])
        log.commit(1)

        assert [expected] * 2 == [before, start_of(given)]


def test_a_stream_cannot_start_later_than_every_message(tmp_path: Path) -> None:
    """That would be latest by another name."""
    given = for_stream({"path": str(hundred(tmp_path)), "startingTimestamp": "101"})

    with pytest.raises(OptionError, match="startingTimestamp: '101' is later than every"):
        start_of(given)


def test_a_stream_that_starts_at_latest_has_to_be_pinned(tmp_path: Path) -> None:
    """So it has no id yet; a timestamp wins over it, as over all offsets."""
    given = {"path": str(hundred(tmp_path)), "groupId": "g", "apiKey": "k"}

    assert start_of(for_stream(given)) is None
    assert 42 == start_of(for_stream(given | {"startingTimestamp": "42"}))


def test_limits_of_topics_do_not_depend_on_the_log() -> None:
    """Earliest and latest are no limits; a timestamp wins over limits."""
    own = '{"a":{"0":7},"b":{"0":-2}}'
    ends = '{"a":{"0":-1},"b":{"0":9}}'
    given = {"path": "d", "startingOffsets": own, "endingOffsets": ends}

    assert Limits({"a": 7}, {"b": 9}) == limits_of(for_batch(given))
    timed = given | {"startingTimestamp": "1", "endingTimestamp": "2"}
    assert NO_LIMITS == limits_of(for_batch(timed))
    assert NO_LIMITS == limits_of(for_batch({"path": "d", "startingOffsets": "7"}))


OFFSETS: list[tuple[Offset, StreamOffset]] = [
    ({"offset": 17}, StreamOffset(17, None, {})),
    ({"offset": 17, "begin": 3}, StreamOffset(17, 3, {})),
    ({"offset": 17, "floors": {"a": 20}}, StreamOffset(17, None, {"a": 20})),
    (
        {"offset": 3, "begin": 3, "floors": {"a": 20}},
        StreamOffset.initial(3, {"a": 20, "b": 3}),
    ),
]


@pytest.mark.parametrize(("kept", "offset"), OFFSETS)
def test_an_offset_is_stored_with_what_was_decided_about_its_batch(
    kept: Offset, offset: StreamOffset
) -> None:
    """And nothing more: Spark compares the text, which is the same for equal offsets."""
    assert kept == offset.to_json()
    assert offset == StreamOffset.from_json(kept)
    assert list(kept) == list(offset.to_json())


def test_decisions_are_carried_along_until_they_are_passed() -> None:
    """The start until the first batch with rows ends, floors as long as they matter."""
    first = StreamOffset.initial(3, {"a": 20, "b": 30})

    assert first == first.followed_by(3)
    assert StreamOffset(25, 3, {"a": 20, "b": 30}) == first.followed_by(25)
    assert StreamOffset(30, None, {"b": 30}) == first.followed_by(25).followed_by(30)
    assert StreamOffset(31, None, {}) == first.followed_by(25).followed_by(30).followed_by(31)


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"topic": 1},
        {"offset": -1},
        {"offset": 1, "begin": "x"},
        {"offset": 1, "floors": [2]},
        {"offset": 1, "floors": {"a": -2}},
    ],
)
def test_an_offset_of_another_source_is_refused(kept: Offset) -> None:
    """A query does not resume from a checkpoint in another format."""
    with pytest.raises(LogError, match="is the checkpoint that of another source"):
        StreamOffset.from_json(kept)


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    """It is not taken for an empty one."""
    with pytest.raises(ConfigError, match="not a data directory"):
        range_of(for_batch({"path": str(tmp_path)}))


def test_a_loss_is_reported_with_the_option_that_tolerates_it() -> None:
    """In Spark's terms: offsets, and an option of the source."""
    error = lost_offsets(DataLossError("data", Loss(3, 9, RETAINED)))

    assert "data: the offsets 3 to 9 are lost: retention deleted them; " in str(error)
    assert "failOnDataLoss=false" in str(error)
