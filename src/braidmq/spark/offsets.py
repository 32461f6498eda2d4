"""Positions to ids: where a read begins and ends, for all topics and for each of them.

An offset is an id of the one log, so that a range of offsets is the same for every topic, but
for topics whose own beginning or end was given: their rows outside are left out.
"""

from typing import Final, NamedTuple

from braidmq.base.errors import LogError
from braidmq.columnar.logs import Log
from braidmq.columnar.loss import DataLossError
from braidmq.spark.options import ReadOptions
from braidmq.spark.values import EARLIEST, LATEST, OFFSET_MAX, OptionError, Position

KEY: Final = "offset"
"""The one key of the offsets that a checkpoint keeps: `{"offset": 17}`."""


class LostOffsetsError(LogError):
    """A read cannot have every offset of its range."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}; the option failOnDataLoss=false reads on")


class Limits(NamedTuple):
    """The topics that begin later than the others, or end earlier: each with its offset."""

    floors: dict[str, int]
    ceilings: dict[str, int]


NO_LIMITS: Final = Limits({}, {})


class Range(NamedTuple):
    """The offsets from `start` to before `end`."""

    start: int
    end: int


def told(error: DataLossError) -> LostOffsetsError:
    """Return a loss in the words of the source's options."""
    first, last, reason = error.loss
    return LostOffsetsError(error.path, f"the offsets {first} to {last} are lost: {reason}")


def limits_of(options: ReadOptions) -> Limits:
    """Return what single topics were told; without a look at the log, so that it stays."""
    floors = _named(options.start if options.start_us is None else None)
    ceilings = _named(options.end if options.end_us is None else None)
    return Limits(
        {topic: number for topic, number in floors.items() if number >= 0},
        {topic: number for topic, number in ceilings.items() if number >= 0},
    )


def _named(position: Position | None) -> dict[str, int]:
    return position if isinstance(position, dict) else {}


def batch_range(log: Log, options: ReadOptions) -> Range:
    """Return what a batch read has to read now.

    Raises:
        ConfigError: There is no log.
        DamagedLogError: The log is damaged.
    """
    assert options.end is not None
    start = _lowest(log, options)
    if options.end_us is not None:
        end = log.offset_at(options.end_us)
    else:
        ends = _each(options.end, LATEST, options)
        end = log.offsets().latest if LATEST in ends else max(ends)
    return Range(start, end)


def stream_start(log: Log, options: ReadOptions) -> int | None:
    """Return where a new stream begins: the same id whenever it is asked, but for retention.

    None is behind everything that there is, which is another id each time: it has to be pinned.

    Raises:
        OptionError: There is no message at the startingTimestamp or later, so that the first
            one would be found at another place each time.
        ConfigError: There is no log.
        DamagedLogError: The log is damaged.
    """
    if options.start_us is None and options.start == LATEST:
        return None
    start = _lowest(log, options)
    if options.start_us is not None and start >= log.offsets().latest:
        fix = "give an earlier time, or start the stream when there is a message"
        value = str(options.start_us // 1000)
        raise OptionError("startingTimestamp", value, "is later than every message", fix)
    return start


def _lowest(log: Log, options: ReadOptions) -> int:
    if options.start_us is not None:
        return log.offset_at(options.start_us)
    assert options.start is not None
    starts = _each(options.start, EARLIEST, options)
    return log.offsets().earliest if EARLIEST in starts else min(starts)


def _each(position: Position, default: int, options: ReadOptions) -> list[int]:
    """Return the positions of the topics, *default* for those that are not named."""
    if isinstance(position, int):
        return [position]
    unnamed = [] if options.topics is not None else [default]
    return [*position.values(), *unnamed]


def as_offset(number: int) -> dict[str, int]:
    """Return an id as Spark keeps it."""
    return {KEY: number}


def as_id(offset: dict[str, int]) -> int:
    """Return the id that Spark has kept.

    Raises:
        LogError: It is not an offset of this source.
    """
    number = offset.get(KEY)
    if not isinstance(number, int) or not 0 <= number <= OFFSET_MAX:
        raise LogError(f"{offset!r} is not an offset of braidmq: is the checkpoint another's?")
    return number
