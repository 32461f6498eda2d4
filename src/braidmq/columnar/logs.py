"""A log to read, wherever it is: a data directory, or an endpoint that is asked for it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, Self, TypedDict, Unpack

import pyarrow as pa

from braidmq.base.errors import ConfigError
from braidmq.columnar import cuts, reading
from braidmq.columnar.cuts import Part
from braidmq.columnar.decoding.decode import Decoding
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import Batches, Offsets, TopicCount
from braidmq.columnar.segments.held import HELD_BYTES_MAX, HeldSegments
from braidmq.columnar.segments.views import View
from braidmq.columnar.times import offset_at


class OfTopics(TypedDict, total=False):
    """What every question may say: which topics, and what is done about what is gone."""

    topics: Iterable[str] | None
    pattern: str | None
    fail_on_data_loss: bool


class OfRange(TypedDict, total=False):
    """What `topic_counts` may be asked."""

    start: int | None
    end: int | None
    fail_on_data_loss: bool


class OfCut(OfTopics, total=False):
    """What `cut` may be asked, beside its range."""

    target_bytes: int | None
    parts: int | None


class OfAdvance(OfTopics, total=False):
    """What `advance` may be asked, beside its start."""

    messages: int
    payload_bytes: int


class OfBatches(OfRange, OfTopics, total=False):
    """What `batches` may be asked."""

    columns: Sequence[str] | None
    headers: bool
    qos: int | None
    decoding: Decoding | None
    losses: list[Loss] | None
    batch_rows: int


class LogBatches(Protocol):
    """An iterator of record batches that knows their schema before the first one."""

    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...

    def __next__(self) -> pa.RecordBatch: ...


class Log(Protocol):
    """What can be asked of a log; the functions of `columnar` say what each is.

    All raise ConfigError for what cannot be used, DataLossError and DamagedLogError; and a log
    that is somewhere else may be unavailable.
    """

    @property
    def address(self) -> str:
        """Where it is, for people."""

    def offsets(self) -> Offsets:
        """Return the first id that the log has and the one behind the last durable one."""

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""

    def topic_counts(self, **wanted: Unpack[OfRange]) -> dict[str, TopicCount]:
        """Return what each topic has in a range of ids."""

    def cut(
        self, start: int | None = None, end: int | None = None, **wanted: Unpack[OfCut]
    ) -> list[Part]:
        """Return parts of a range."""

    def advance(self, start: int, **wanted: Unpack[OfAdvance]) -> int:
        """Return the id behind so many wanted messages, or payload bytes."""

    def batches(self, **wanted: Unpack[OfBatches]) -> LogBatches:
        """Return the messages of a range in batches."""

    def read(self, **wanted: Unpack[OfBatches]) -> pa.Table:
        """Return the messages of a range, which fits into memory, as one table."""

    def close(self) -> None:
        """Let go of files or connections; the next question opens them again."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class DirectoryLog:
    """The log below a data directory, whether its broker runs or not.

    It can be pickled and shared by threads. Segments of which few topics were read stay mapped
    for the next question until it is closed, up to *hold_bytes*; a file that retention has
    deleted is let go of by the next question, too. A pickled one holds nothing: it was sent to
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
        """Unmap all files; the next question maps them again."""
        if self._held is not None:
            self._held.clear()

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return str(self.path)

    def view(self) -> View:
        """Return the log as it is now."""
        return View(self.path, self._held)

    def offsets(self) -> Offsets:
        """Return the first id that the log has and the one behind the last durable one."""
        return reading.offsets(self.view())

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""
        return offset_at(self.view(), time_us)

    def topic_counts(self, **wanted: Unpack[OfRange]) -> dict[str, TopicCount]:
        """Return what each topic has in a range of ids."""
        return reading.topic_counts(self.view(), **wanted)

    def cut(
        self, start: int | None = None, end: int | None = None, **wanted: Unpack[OfCut]
    ) -> list[Part]:
        """Return parts of a range."""
        return cuts.cut(self.view(), start, end, **wanted)

    def advance(self, start: int, **wanted: Unpack[OfAdvance]) -> int:
        """Return the id behind so many wanted messages, or payload bytes."""
        return cuts.advance(self.view(), start, **wanted)

    def batches(self, **wanted: Unpack[OfBatches]) -> Batches:
        """Return the messages of a range in batches."""
        return reading.batches(self.view(), **wanted)

    def read(self, **wanted: Unpack[OfBatches]) -> pa.Table:
        """Return the messages of a range, which fits into memory, as one table."""
        return reading.read(self.view(), **wanted)


def open_log(
    path: Path | str | None = None,
    endpoint: str | None = None,
    api_key: str | None = None,
    *,
    roots: bytes | None = None,
) -> Log:
    """Return the log of a data directory, or the one behind an endpoint; exactly one of them.

    Raises:
        ConfigError: Both or neither, or an address or a key that cannot be one.
    """
    if (path is None) == (endpoint is None):
        raise ConfigError("endpoint", "exactly one of path and endpoint must be given")
    if endpoint is not None:
        from braidmq.columnar.endpoint import Endpoint  # noqa: PLC0415 - directories need none

        return Endpoint(endpoint, api_key or "", roots=roots)
    assert path is not None
    return DirectoryLog(path)
