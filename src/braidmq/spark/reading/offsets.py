"""Resolve positions to ids: where a read starts and ends, overall and for single topics.

An offset is an id in the one log, so a range of offsets is the same for every topic. Topics
that were given a start or an end of their own are the exception: their rows outside it are
excluded.

A checkpoint holds the end offset of each batch. The first one also records where the query
began, and each one the topics that start later than the batch, so that a batch that is planned
again is the same batch even if the options have changed since.
"""

from typing import Any, Final, NamedTuple, Self, TypeGuard

from braidmq.base.errors import LogError
from braidmq.columnar.logs import Log
from braidmq.columnar.loss import DataLossError
from braidmq.spark.options import ReadOptions
from braidmq.spark.runtime.workers import log_event
from braidmq.spark.values import EARLIEST, LATEST, OFFSET_MAX, OptionError, Position

KEY: Final = "offset"
BEGIN: Final = "begin"
FLOORS: Final = "floors"
"""The keys of an offset in a checkpoint, usually `{"offset": 17}` alone. The first batch adds
`"begin": 3`, and batches that start before a topic's own start add `"floors": {"topic": 9}`."""

Offset = dict[str, Any]
"""An offset as Spark passes it around and keeps it, in JSON."""


class LostOffsetsError(LogError):
    """A read cannot return every offset of its range."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}; use failOnDataLoss=false to continue")


class Limits(NamedTuple):
    """The topics that start later than the others, or end earlier, each with its offset.

    The times, in microseconds, are None unless the range has messages from outside of them.
    """

    floors: dict[str, int]
    ceilings: dict[str, int]
    since_us: int | None = None
    before_us: int | None = None

    @property
    def are_timed(self) -> bool:
        """Whether a row's timestamp may exclude it."""
        return self.since_us is not None or self.before_us is not None

    def within(self, start: int, end: int) -> "Limits":
        """Return the limits that exclude anything of a range."""
        return Limits(
            {topic: floor for topic, floor in self.floors.items() if start < floor},
            {topic: top for topic, top in self.ceilings.items() if top < end},
            self.since_us,
            self.before_us,
        )


NO_LIMITS: Final = Limits({}, {})


class Range(NamedTuple):
    """The offsets from `start` up to but not including `end`."""

    start: int
    end: int


def lost_offsets(error: DataLossError) -> LostOffsetsError:
    """Return a data loss of the log as the error that names the option to skip it."""
    first, last, reason = error.loss
    return LostOffsetsError(error.path, f"the offsets {first} to {last} are lost: {reason}")


def limits_of(options: ReadOptions) -> Limits:
    """Return the limits of single topics; from the options alone, so they never change."""
    floors = _named(options.start if options.start_us is None else None)
    ceilings = _named(options.end if options.end_us is None else None)
    return Limits(
        {topic: number for topic, number in floors.items() if number >= 0},
        {topic: number for topic, number in ceilings.items() if number >= 0},
    )


def batch_limits(log: Log, options: ReadOptions) -> Limits:
    """Return the limits of a batch read: of single topics, and of times.

    Where the clock was set back, a range of offsets between two times also has messages from
    outside of them. Call it after `batch_range`: the log may have grown since.

    Raises:
        DamagedLogError: The log is damaged.
    """
    return limits_of(options)._replace(
        since_us=_mixed_at(log, options.start_us), before_us=_mixed_at(log, options.end_us)
    )


def _mixed_at(log: Log, time_us: int | None) -> int | None:
    """Return the time if messages from before it come behind some from after it."""
    if time_us is None or log.offset_behind(time_us) <= log.offset_at(time_us):
        return None
    return time_us


def _named(position: Position | None) -> dict[str, int]:
    return position if isinstance(position, dict) else {}


def batch_range(log: Log, options: ReadOptions) -> Range:
    """Return the range that a batch read covers now.

    Raises:
        OptionError: It ends before it begins.
        LostOffsetsError: It starts after the log's end, or ends before the first message that
            retention has left, and failOnDataLoss is set.
        ConfigError: There is no log.
        DamagedLogError: The log is damaged.
    """
    start, end = _lowest(log, options), _highest(log, options)
    problem = _missing(log, options, start, end)
    if problem:
        lose(log, options, problem)
        return Range(start, max(start, end))
    if start > end:
        option = "endingOffsets" if options.end_us is None else "endingTimestamp"
        value = end if options.end_us is None else options.end_us // 1000
        before = f"is before the start: the offsets are {start} to {end}"
        raise OptionError(option, str(value), before, "give a later end, or an earlier start")
    return Range(start, end)


def _missing(log: Log, options: ReadOptions, start: int, end: int) -> str:
    """Return what the read will miss, all of its range or one topic's; empty if nothing."""
    named = [] if options.start_us is not None else _given(options.start)
    latest = log.offsets().latest
    if max(named, default=0) > latest:
        return (
            f"the log ends at {latest}, before the offset {max(named)}; it may be another log"
        )
    if start > end and options.start_us is None and start not in named:
        return f"the offsets before {end} are lost: the log begins at {start}"
    return ""


def lose(log: Log, options: ReadOptions, problem: str) -> None:
    """Fail because of a loss, or log a warning and go on, as failOnDataLoss says.

    Raises:
        LostOffsetsError: failOnDataLoss is set.
    """
    if options.fail_on_data_loss:
        raise LostOffsetsError(log.address, problem)
    log_event("warning", "offsets_lost", problem=problem)


def stream_start(log: Log, options: ReadOptions) -> int | None:
    """Return where a new stream begins: the same id at every call, unless retention moves it.

    None stands for the end of the log, which moves with every message and has to be pinned.

    Raises:
        OptionError: There is no message at or after startingTimestamp, so the start would move
            with every message until there is one.
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


def _highest(log: Log, options: ReadOptions) -> int:
    if options.end_us is not None:
        return log.offset_behind(options.end_us)
    assert options.end is not None
    ends = _each(options.end, LATEST, options)
    return log.offsets().latest if LATEST in ends else max(ends)


def _given(position: Position | None) -> list[int]:
    """Return the numbers of a position, without earliest and latest."""
    found = position.values() if isinstance(position, dict) else [position]
    return [number for number in found if number is not None and number >= 0]


def _each(position: Position, default: int, options: ReadOptions) -> list[int]:
    """Return the positions of the topics, with *default* for those not named."""
    if isinstance(position, int):
        return [position]
    unnamed = [] if options.topics is not None else [default]
    return [*position.values(), *unnamed]


class StreamOffset(NamedTuple):
    """Where a batch of a stream ends, and what is needed to plan the same batch again.

    `begin` is where the query began, if the batch is its first one. `floors` are the topics of
    the batch that start later than the batch itself.
    """

    id: int
    begin: int | None
    floors: dict[str, int]

    @classmethod
    def initial(cls, start: int, floors: dict[str, int]) -> Self:
        """Return the offset of a query that has not begun."""
        return cls(start, start, {t: floor for t, floor in floors.items() if floor > start})

    @classmethod
    def from_json(cls, kept: Offset) -> Self:
        """Return the offset that Spark has kept.

        Raises:
            LogError: It is not an offset of this source.
        """
        number, begin, floors = kept.get(KEY), kept.get(BEGIN), kept.get(FLOORS, {})
        known = isinstance(floors, dict) and all(map(_is_id, floors.values()))
        if not _is_id(number) or not (begin is None or _is_id(begin)) or not known:
            raise LogError(
                f"{kept!r} is not an offset of braidmq; "
                "is the checkpoint that of another source?"
            )
        return cls(number, begin, floors)

    def to_json(self) -> Offset:
        """Return it as Spark keeps it: equal offsets give equal text."""
        kept: Offset = {KEY: self.id}
        if self.begin is not None:
            kept[BEGIN] = self.begin
        if self.floors:
            kept[FLOORS] = self.floors
        return kept

    def followed_by(self, end: int) -> "StreamOffset":
        """Return the end of the next batch; the same offset if that batch is empty."""
        if end == self.id:
            return self  # the same text, or Spark would take it for a new batch
        # Only the first batch starts where the query began, and only it records that.
        begin = self.begin if self.begin == self.id else None
        return StreamOffset(end, begin, Limits(self.floors, {}).within(self.id, end).floors)

    def batch_from(self, start: "StreamOffset") -> tuple[int, Limits]:
        """Return where the batch from *start* to here begins, and which rows it excludes."""
        if self.begin is not None:
            return self.begin, Limits(self.floors, {})
        # Checkpoints of older versions recorded neither; their first batch follows the options.
        floors = start.floors if start.begin == start.id else self.floors
        return start.id, Limits(floors, {})


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value <= OFFSET_MAX
