"""A log to read, wherever it is: in a data directory, or behind a Flight endpoint."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, Self, Unpack

import pyarrow as pa

from braidmq.base.errors import ConfigError
from braidmq.columnar import cuts, reading
from braidmq.columnar.cuts import Part
from braidmq.columnar.reading import Batches, OfBatches, Offsets, OfRange, OfTopics, TopicCount
from braidmq.columnar.segments.held import HELD_BYTES_MAX, HeldSegments
from braidmq.columnar.segments.times import offset_at, offset_behind
from braidmq.columnar.segments.views import DurableView


class OfCut(OfTopics, total=False):
    """The arguments of `cut`, besides its range."""

    target_bytes: int | None
    parts: int | None


class OfAdvance(OfTopics, total=False):
    """The arguments of `advance`, besides its start."""

    messages: int
    payload_bytes: int


class LogBatches(Protocol):
    """An iterator of record batches that knows their schema before the first one."""

    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...


class Log(Protocol):
    """A log that can be queried; the functions of `columnar` document each query.

    All of them raise ConfigError for invalid arguments, DataLossError and DamagedLogError; a
    remote log may also be unavailable.
    """

    @property
    def address(self) -> str:
        """Where the log is, for display."""

    def offsets(self) -> Offsets:
        """Return the first id in the log, and the one after the last durable id."""

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""

    def offset_behind(self, time_us: int) -> int:
        """Return the id behind the last durable message that was accepted before then.

        It is above that of `offset_at` only where the broker's clock was set back.
        """

    def topic_counts(self, **wanted: Unpack[OfRange]) -> dict[str, TopicCount]:
        """Return the messages and payload bytes of each topic in a range of ids."""

    def cut(
        self, start: int | None = None, end: int | None = None, **wanted: Unpack[OfCut]
    ) -> list[Part]:
        """Return a range in parts."""

    def advance(self, start: int, **wanted: Unpack[OfAdvance]) -> int:
        """Return the id after so many wanted messages, or payload bytes."""

    def batches(self, **wanted: Unpack[OfBatches]) -> LogBatches:
        """Return the messages of a range in batches."""

    def read(self, **wanted: Unpack[OfBatches]) -> pa.Table:
        """Return the messages of a range as one table; they must fit into memory."""

    def close(self) -> None:
        """Close files or connections; the next query opens them again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class DirectoryLog:
    """The log below a data directory, whether its broker runs or not.

    It can be pickled and shared by threads. Segments of which a query read few topics stay
    mapped for the next query, up to *hold_bytes*, until the log is closed; the next query also
    unmaps those that retention has deleted. A pickled one keeps nothing mapped: it goes to
    another process, whose memory must not grow with the log.
    """

    def __init__(self, path: Path | str, *, hold_bytes: int = HELD_BYTES_MAX) -> None:
        self.path = Path(path)
        self._held = HeldSegments(hold_bytes) if hold_bytes else None

    def __repr__(self) -> str:
        return f"DirectoryLog({self.address!r})"

    def __reduce__(self) -> tuple[Callable[[Path], "DirectoryLog"], tuple[Path]]:
        return partial(DirectoryLog, hold_bytes=0), (self.path,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unmap all files; the next query maps them again."""
        if self._held is not None:
            self._held.clear()

    @property
    def address(self) -> str:
        """Where the log is, for display."""
        return str(self.path)

    def view(self) -> DurableView:
        """Return the log as it is now."""
        return DurableView(self.path, self._held)

    def offsets(self) -> Offsets:
        """Return the first id in the log, and the one after the last durable id."""
        return reading.offsets(self.view())

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""
        return offset_at(self.view(), time_us)

    def offset_behind(self, time_us: int) -> int:
        """Return the id behind the last durable message that was accepted before then."""
        return offset_behind(self.view(), time_us)

    def topic_counts(self, **wanted: Unpack[OfRange]) -> dict[str, TopicCount]:
        """Return the messages and payload bytes of each topic in a range of ids."""
        return reading.topic_counts(self.view(), **wanted)

    def cut(
        self, start: int | None = None, end: int | None = None, **wanted: Unpack[OfCut]
    ) -> list[Part]:
        """Return a range in parts."""
        return cuts.cut(self.view(), start, end, **wanted)

    def advance(self, start: int, **wanted: Unpack[OfAdvance]) -> int:
        """Return the id after so many wanted messages, or payload bytes."""
        return cuts.advance(self.view(), start, **wanted)

    def batches(self, **wanted: Unpack[OfBatches]) -> Batches:
        """Return the messages of a range in batches."""
        return reading.batches(self.view(), **wanted)

    def read(self, **wanted: Unpack[OfBatches]) -> pa.Table:
        """Return the messages of a range as one table; they must fit into memory."""
        return reading.read(self.view(), **wanted)


def open_log(
    path: Path | str | None = None,
    endpoint: str | None = None,
    api_key: str | None = None,
    *,
    roots: bytes | None = None,
) -> Log:
    """Return the log of a data directory, or the one behind an endpoint; give exactly one.

    Raises:
        ConfigError: Both or neither were given, or the address or the key is not valid.
    """
    if (path is None) == (endpoint is None):
        raise ConfigError("endpoint", "exactly one of path and endpoint must be given")
    if endpoint is not None:
        from braidmq.columnar.endpoint import Endpoint  # noqa: PLC0415 - directories need none

        return Endpoint(endpoint, api_key or "", roots=roots)
    assert path is not None
    return DirectoryLog(path)
