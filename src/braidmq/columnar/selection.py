"""Which messages a read wants, decided by the columns of the index; payloads are not read."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from braidmq.base.errors import ConfigError
from braidmq.columnar.segments.layout import Flags, Numbers
from braidmq.columnar.segments.segments import Question, Segment


@dataclass(frozen=True)
class Selection:
    """Messages of *topics*, or of topics whose whole name matches *pattern*; by default of all.

    *qos*, if given, is the quality of service that they were published with, and their
    timestamps are from *since_us* to before *before_us*. Topics that are not *allowed* are
    never wanted.

    Raises:
        ConfigError: Both topics and a pattern were given, or the pattern is not valid.
    """

    topics: Iterable[str] | None = None
    pattern: str | None = None
    qos: int | None = None
    allowed: Callable[[str], bool] | None = None
    since_us: int | None = None
    before_us: int | None = None

    def __post_init__(self) -> None:
        """Check the arguments."""
        # A str is an iterable too: each of its characters would be taken for a topic.
        if isinstance(self.topics, str):
            raise ConfigError("topics", "must be a list of names, not a string")
        if self.topics is not None and self.pattern is not None:
            raise ConfigError("pattern", "cannot be given together with topics")
        object.__setattr__(
            self, "topics", None if self.topics is None else frozenset(self.topics)
        )
        _ = self._compiled  # an invalid pattern must raise here, not in the middle of a read

    @cached_property
    def _compiled(self) -> re.Pattern[str] | None:
        try:
            return None if self.pattern is None else re.compile(self.pattern)
        except re.error as error:
            raise ConfigError("pattern", f"is not a regular expression: {error}") from None

    def wants(self, topic: str) -> bool:
        """Tell whether messages of *topic* are wanted."""
        if self.allowed is not None and not self.allowed(topic):
            return False
        if self.topics is not None:
            return topic in self.topics
        return self._compiled is None or self._compiled.fullmatch(topic) is not None

    @property
    def is_partial(self) -> bool:
        """Whether some topics may be left out."""
        return not (self.topics is None and self.pattern is None and self.allowed is None)

    def wanted_numbers(self, segment: Segment) -> Flags | None:
        """Return which topic numbers of a segment are wanted; None if all are."""
        if not self.is_partial:
            return None
        wanted = np.zeros(len(segment.names), np.bool_)
        if self.topics is not None:
            wanted[[segment.number(name) for name in self.topics if self.wants(name)]] = True
        else:
            wanted[:] = [self.wants(name) for name in segment.names]
        wanted[0] = False  # rows of records that are not messages
        return wanted

    def misses(self, segment: Segment) -> bool:
        """Tell whether a segment certainly holds no wanted message, and no gap to report."""
        index = segment.index
        # A growing index has no checksums: its topics are only as reliable as its rows, which
        # are not verified yet. Only a sealed or rebuilt index can prove an absence.
        if index.gap_count or not (index.is_proof or index.block_sums):
            return False
        numbers = self.wanted_numbers(segment)
        return numbers is not None and not numbers.any()

    @property
    def needs_rows(self) -> bool:
        """Whether the topic column alone does not decide which rows are wanted."""
        return self._is_by_rows or not self.is_partial

    @property
    def _is_by_rows(self) -> bool:
        bounds = self.qos, self.since_us, self.before_us
        return any(bound is not None for bound in bounds)

    def rows(self, segment: Segment, first: int, last: int) -> Numbers:
        """Return the rows of first..last that are wanted, in order."""
        numbers = self.wanted_numbers(segment)
        # The separate topic column takes 1 to 4 bytes per row, where a row takes 32.
        if numbers is not None and not self._is_by_rows and len(segment.index.numbers) >= last:
            return _rows_of_topics(segment, numbers, first, last)
        rows = segment.rows[first:last]
        if numbers is None:
            wanted = rows["topic"] != 0
            if not self._is_by_rows and wanted.all():
                return np.arange(first, last)
        else:
            wanted = numbers[rows["topic"]]
        if self.qos is not None:
            wanted &= rows["qos"] == self.qos
        if self.since_us is not None:
            wanted &= rows["timestamp_us"] >= np.uint64(max(self.since_us, 0))
        if self.before_us is not None:
            wanted &= rows["timestamp_us"] < np.uint64(max(self.before_us, 0))
        chosen: Numbers = np.nonzero(wanted)[0]
        chosen += first
        return chosen


def _rows_of_topics(segment: Segment, numbers: Flags, first: int, last: int) -> Numbers:
    """Return the rows of topics with these numbers; the topic of each row is known."""
    question = Question(numbers.tobytes(), first, last)
    chosen = segment.chosen_before(question)
    if chosen is None:
        known = segment.index.numbers[first:last]
        # For a single topic, a comparison is faster than a lookup per row.
        few = np.nonzero(numbers)[0].tolist()
        wanted = known == few[0] if len(few) == 1 else numbers[known]
        chosen = np.nonzero(wanted)[0]
        chosen += first
        segment.remember(question, chosen)
    return chosen


EVERYTHING: Final = Selection()
