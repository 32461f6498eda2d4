"""Turn the filters that Spark pushes down into a smaller read: fewer topics, fewer offsets.

A filter that the read applies exactly is taken over from Spark. A filter that only makes the
read smaller is used, and Spark still applies it to the rows.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from braidmq.columnar.decoding.columns import TYPES
from braidmq.columnar.logs import Log
from braidmq.columnar.reading import microseconds
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.offsets import Range
from braidmq.spark.values import OFFSET_MAX

_NEVER_NULL: Final = frozenset(TYPES) - {"key", "headers"}
_COMPARISONS: Final[dict[type[Filter], tuple[int | None, int | None]]] = {
    EqualTo: (0, 1),
    EqualNullSafe: (0, 1),
    GreaterThan: (1, None),
    GreaterThanOrEqual: (0, None),
    LessThan: (None, 0),
    LessThanOrEqual: (None, 1),
}
"""By how much a lower and an upper bound differ from the number that is compared with."""


@dataclass
class Bounds:
    """The numbers from `low` up to but not including `high`."""

    low: int = 0
    high: int = OFFSET_MAX

    def narrow(self, comparison: type[Filter], number: int) -> bool:
        """Narrow the bounds by a comparison with *number*; return False if it is none."""
        if comparison not in _COMPARISONS:
            return False
        low, high = _COMPARISONS[comparison]
        if low is not None:
            self.low = max(self.low, number + low)
        if high is not None:
            self.high = min(self.high, number + high)
        return True


class Narrowing:
    """What is left to read of *options* once the accepted filters are applied."""

    def __init__(self, options: ReadOptions) -> None:
        self.topics = None if options.topics is None else frozenset(options.topics)
        self.pattern = options.pattern
        self.pattern_only_helps = False
        self._is_remote = options.endpoint is not None
        self._offsets = Bounds()
        self._times_us = Bounds()

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Accept filters, which are joined by AND; return those that Spark must still apply."""
        return [wanted for wanted in filters if not self._take(wanted)]

    def _take(self, wanted: Filter) -> bool:
        path: Sequence[str] = getattr(wanted, "attribute", ())
        value = getattr(wanted, "value", None)
        if len(path) != 1:
            return False
        name = path[0]
        if isinstance(wanted, IsNotNull):
            return name in _NEVER_NULL
        if name == "topic":
            return self._take_topic(wanted, value)
        if name == "offset":
            return self._take_offset(wanted, value)
        if name == "timestamp" and isinstance(value, datetime) and value.tzinfo is not None:
            self._times_us.narrow(type(wanted), microseconds(value))
        return False

    def _take_topic(self, wanted: Filter, value: Any) -> bool:  # noqa: ANN401 - a literal
        if isinstance(wanted, EqualTo | EqualNullSafe) and isinstance(value, str):
            self._keep_topics({value})
        elif isinstance(wanted, In):
            # Nothing equals null, so a null in the list selects no row and can be ignored.
            self._keep_topics({name for name in value if isinstance(name, str)})
        elif isinstance(wanted, StringStartsWith) and self.topics is not None:
            self.topics = frozenset(t for t in self.topics if t.startswith(wanted.value))
        elif isinstance(wanted, StringStartsWith) and self.pattern is None:
            self.pattern = f"{re.escape(wanted.value)}(?s:.*)"
            # A request to an endpoint lists topic names. If too many match the prefix, the scan
            # falls back to all topics, so Spark has to filter the rows as well.
            self.pattern_only_helps = self._is_remote
            return not self._is_remote
        else:
            return False
        return True

    def _keep_topics(self, names: set[str]) -> None:
        if self.topics is not None:
            self.topics &= names
        elif self.pattern is not None:
            pattern, self.pattern = self.pattern, None
            self.topics = frozenset(name for name in names if re.fullmatch(pattern, name))
        else:
            self.topics = frozenset(names)

    def _take_offset(self, wanted: Filter, value: Any) -> bool:  # noqa: ANN401 - a literal
        if isinstance(wanted, In):
            numbers = [number for number in value if isinstance(number, int)]
            if numbers:
                self._offsets.narrow(GreaterThanOrEqual, min(numbers))
                self._offsets.narrow(LessThanOrEqual, max(numbers))
            return False
        return isinstance(value, int) and self._offsets.narrow(type(wanted), value)

    def range(self, whole: Range, log: Log) -> Range:
        """Return what is left of a range; times are looked up in the log's index.

        Raises:
            DamagedLogError: The log is damaged.
        """
        start, end = max(whole.start, self._offsets.low), min(whole.end, self._offsets.high)
        if self._times_us != Bounds():
            start = max(start, log.offset_at(self._times_us.low))
            if self._times_us.high < OFFSET_MAX:
                end = min(end, log.offset_behind(self._times_us.high))
        return Range(start, max(start, end))
