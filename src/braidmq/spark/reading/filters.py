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

from braidmq.columnar.logs import Log
from braidmq.columnar.reading import microseconds
from braidmq.spark.options import ReadOptions
from braidmq.spark.reading.offsets import Range
from braidmq.spark.values import OFFSET_MAX

_NEVER_NULL: Final = frozenset(
    {"value", "topic", "partition", "offset", "timestamp", "timestampType", "qos", "priority"}
    | {"origin"}
)
_NUMBER_MAX: Final = OFFSET_MAX


@dataclass
class Bounds:
    """The numbers from `low` up to but not including `high`."""

    low: int = 0
    high: int = _NUMBER_MAX

    def narrow(self, wanted: Filter, number: Any) -> bool:  # noqa: ANN401 - checked by the caller
        """Narrow the bounds by a comparison with *number*; return False if it is none."""
        if isinstance(wanted, EqualTo | EqualNullSafe):
            self.low, self.high = max(self.low, number), min(self.high, number + 1)
        elif isinstance(wanted, GreaterThan):
            self.low = max(self.low, number + 1)
        elif isinstance(wanted, GreaterThanOrEqual):
            self.low = max(self.low, number)
        elif isinstance(wanted, LessThan):
            self.high = min(self.high, number)
        elif isinstance(wanted, LessThanOrEqual):
            self.high = min(self.high, number + 1)
        else:
            return False
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
            self._times_us.narrow(wanted, microseconds(value))
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
                self._offsets.narrow(GreaterThanOrEqual(("offset",), 0), min(numbers))
                self._offsets.narrow(LessThanOrEqual(("offset",), 0), max(numbers))
            return False
        return isinstance(value, int) and self._offsets.narrow(wanted, value)

    def range(self, whole: Range, log: Log) -> Range:
        """Return what is left of a range; times are looked up in the log's index.

        Raises:
            DamagedLogError: The log is damaged.
        """
        start, end = max(whole.start, self._offsets.low), min(whole.end, self._offsets.high)
        if self._times_us != Bounds():
            start = max(start, log.offset_at(self._times_us.low))
            if self._times_us.high < _NUMBER_MAX:
                end = min(end, log.offset_at(self._times_us.high))
        return Range(start, max(start, end))
