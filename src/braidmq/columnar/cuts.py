"""Cutting a range of ids into parts that can be read independently, and limiting a range.

Parts are cut by the bytes of the wanted messages, across and inside segments. Together they
cover every id of the range exactly once.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from braidmq.base.errors import ConfigError
from braidmq.base.limits import MIB
from braidmq.columnar.loss import Losses
from braidmq.columnar.reading import range_of, windows
from braidmq.columnar.segments.layout import Numbers, Rows
from braidmq.columnar.segments.segments import Need
from braidmq.columnar.segments.views import DurableView, view_of
from braidmq.columnar.selection import Selection

PART_BYTES: Final = 64 * MIB
ROW_COST_BYTES: Final = 64
"""The cost of a message besides its payload, so that a million empty ones are not free."""

PARTS_MAX: Final = 100_000
"""Parts of one cut; a request for more is most likely a mistake in the unit."""

SIZES: Final = "target_bytes, parts"
"""The settings that an error about too many parts names."""

_NEVER: Final = 2**63 - 1


class Part(NamedTuple):
    """The ids from `start` to before `end`; its wanted messages and their payloads' bytes."""

    start: int
    end: int
    messages: int
    payload_bytes: int


class _Chunk:
    """The wanted messages of one window of rows: their total cost, and each one's size."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self.messages = len(rows)
        self.payload_bytes = int(rows["payload_bytes"].sum(dtype=np.int64))
        self.cost = self.payload_bytes + ROW_COST_BYTES * self.messages

    def id(self, number: int) -> int:
        """Return the id of a message."""
        return int(self._rows["id"][number])

    def sizes(self) -> Numbers:
        """Return the running total of payload bytes, up to and including each message."""
        sizes: Numbers = np.cumsum(self._rows["payload_bytes"], dtype=np.int64)
        return sizes


def cut(
    path: Path | str | DurableView,
    start: int | None = None,
    end: int | None = None,
    *,
    topics: Iterable[str] | None = None,
    pattern: str | None = None,
    target_bytes: int | None = None,
    parts: int | None = None,
    allowed: Callable[[str], bool] | None = None,
    fail_on_data_loss: bool = True,
) -> list[Part]:
    """Return parts of about *target_bytes* (64 MiB) each, or at most *parts* of equal cost.

    Raises:
        ConfigError: An argument is not valid.
        DataLossError: An id of the range is lost.
        DamagedLogError: The log is damaged.
    """
    if target_bytes is not None and parts is not None:
        raise ConfigError("parts", "cannot be given together with target_bytes")
    for name, value in (("target_bytes", target_bytes), ("parts", parts)):
        if value is not None and value < 1:
            raise ConfigError(name, "must be at least 1")
    selection = Selection(topics, pattern, allowed=allowed)
    view = view_of(path)
    start, end, *_ = range_of(view, {"start": start, "end": end})
    losses = Losses(str(view.root), fail=fail_on_data_loss)

    def chunks() -> Iterator[_Chunk]:
        return _chunks(view, selection, start, end, losses)

    if parts is None:
        size = target_bytes or PART_BYTES
        return _cut(chunks(), start, end, lambda passed: passed + size)
    # Two passes: the total must be known before it can be shared out. Both read only the index.
    total = sum(chunk.cost for chunk in chunks()) or 1
    return _cut(chunks(), start, end, partial(_next_share, total, parts))


def advance(
    path: Path | str | DurableView,
    start: int,
    *,
    topics: Iterable[str] | None = None,
    pattern: str | None = None,
    messages: int = _NEVER,
    payload_bytes: int = _NEVER,
    allowed: Callable[[str], bool] | None = None,
    fail_on_data_loss: bool = True,
) -> int:
    """Return the id after at most so many wanted messages, or payload bytes, from *start* on.

    At least one message is passed if there is one; otherwise a large message would stop the
    reader forever. If there are fewer, it is the end of the durable log.

    Raises:
        ConfigError: An argument is not valid.
        DataLossError: An id of the range is lost.
        DamagedLogError: The log is damaged.
    """
    if messages < 1 or payload_bytes < 1:
        raise ConfigError("messages, payload_bytes", "must be at least 1")
    view = view_of(path)
    start, end, *_ = range_of(view, {"start": start})
    selection = Selection(topics, pattern, allowed=allowed)
    losses = Losses(str(view.root), fail=fail_on_data_loss)
    passed = held = 0
    for chunk in _chunks(view, selection, start, end, losses):
        if passed + chunk.messages > messages or held + chunk.payload_bytes > payload_bytes:
            # A limit lies inside this chunk. Pass one message in any case if none was so far.
            fitting = int(np.searchsorted(chunk.sizes(), payload_bytes - held, side="right"))
            fitting = max(min(fitting, messages - passed), 0 if passed else 1)
            if fitting < chunk.messages:
                return chunk.id(fitting)
        passed += chunk.messages
        held += chunk.payload_bytes
    return max(end, start)


def _chunks(
    view: DurableView, selection: Selection, start: int, end: int, losses: Losses
) -> Iterator[_Chunk]:
    for segment, first, last in windows(view, start, end, losses, selection):
        # Estimated sizes will do to balance parts, and spare reading the records.
        found = segment.verified(partial(selection.rows, segment, first, last), Need.SIZES)
        if len(found.rows):
            yield _Chunk(found.rows)


def _next_share(total: int, parts: int, passed: int) -> int:
    """Return the next multiple of total / parts after *passed*, rounded up."""
    # Multiples of the total rather than repeated additions: rounding errors do not add up, and
    # there are never more than *parts* parts.
    share = passed * parts // total + 1
    return -(-share * total // parts)


def _cut(
    chunks: Iterator[_Chunk], start: int, end: int, limit_behind: Callable[[int], int]
) -> list[Part]:
    """Return parts; *limit_behind* maps the cost at a part's start to the cost at its end."""
    found: list[Part] = []
    limit = limit_behind(0)
    passed = messages = held = 0
    for chunk in chunks:
        if passed + chunk.cost <= limit:  # the usual case: a part has many chunks
            messages += chunk.messages
            held += chunk.payload_bytes
            passed += chunk.cost
            continue
        # At least one limit lies inside this chunk: find each by a search in the running cost.
        sizes = chunk.sizes()
        costs = passed + sizes + ROW_COST_BYTES * np.arange(1, chunk.messages + 1)
        at = sized = 0
        while True:
            # The message that reaches the limit belongs to the part.
            full = 0 if passed >= limit else int(np.searchsorted(costs, limit)) + 1
            full = min(max(full, at), chunk.messages)
            if full:
                messages += full - at
                held += int(sizes[full - 1]) - sized
                sized, passed = int(sizes[full - 1]), int(costs[full - 1])
            at = full
            if at == chunk.messages:
                break
            behind = chunk.id(at)
            if len(found) + 1 >= PARTS_MAX:  # at least one more follows
                problem = f"would be more than {PARTS_MAX} parts: ask for larger ones"
                raise ConfigError(SIZES, problem)
            found.append(Part(start, behind, messages, held))
            start, messages, held, limit = behind, 0, 0, limit_behind(passed)
    if start < end:
        found.append(Part(start, end, messages, held))
    return found
