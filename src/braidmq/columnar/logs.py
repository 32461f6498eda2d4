"""A log to read, wherever it is: a data directory, or an endpoint that is asked for it."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa

from braidmq.base.errors import ConfigError
from braidmq.columnar import cuts, reading
from braidmq.columnar.cuts import Part
from braidmq.columnar.decode import Decoding
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import BATCH_ROWS, Batches, Offsets, TopicCount
from braidmq.columnar.times import offset_at
from braidmq.columnar.views import View

_NO_LIMIT: Final = 2**63 - 1


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

    def topic_counts(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> dict[str, TopicCount]:
        """Return what each topic has in a range of ids."""

    def cut(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        target_bytes: int | None = None,
        parts: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> list[Part]:
        """Return parts of a range."""

    def advance(
        self,
        start: int,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        messages: int = _NO_LIMIT,
        payload_bytes: int = _NO_LIMIT,
        fail_on_data_loss: bool = True,
    ) -> int:
        """Return the id behind so many wanted messages, or payload bytes."""

    def batches(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        columns: Sequence[str] | None = None,
        headers: bool = False,
        qos: int | None = None,
        decoding: Decoding | None = None,
        fail_on_data_loss: bool = True,
        losses: list[Loss] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> LogBatches:
        """Return the messages of a range in batches."""


class DirectoryLog:
    """The log below a data directory, whether its broker runs or not."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def __repr__(self) -> str:
        return f"DirectoryLog({self.address!r})"

    @property
    def address(self) -> str:
        """Where it is, for people."""
        return str(self.path)

    def offsets(self) -> Offsets:
        """Return the first id that the log has and the one behind the last durable one."""
        return reading.offsets(self.path)

    def offset_at(self, time_us: int) -> int:
        """Return the id of the first durable message that was accepted then or later."""
        return offset_at(View(self.path), time_us)

    def topic_counts(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> dict[str, TopicCount]:
        """Return what each topic has in a range of ids."""
        return reading.topic_counts(
            self.path, start=start, end=end, fail_on_data_loss=fail_on_data_loss
        )

    def cut(
        self,
        start: int | None = None,
        end: int | None = None,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        target_bytes: int | None = None,
        parts: int | None = None,
        fail_on_data_loss: bool = True,
    ) -> list[Part]:
        """Return parts of a range."""
        return cuts.cut(
            self.path,
            start,
            end,
            topics=topics,
            pattern=pattern,
            target_bytes=target_bytes,
            parts=parts,
            fail_on_data_loss=fail_on_data_loss,
        )

    def advance(
        self,
        start: int,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        messages: int = _NO_LIMIT,
        payload_bytes: int = _NO_LIMIT,
        fail_on_data_loss: bool = True,
    ) -> int:
        """Return the id behind so many wanted messages, or payload bytes."""
        return cuts.advance(
            self.path,
            start,
            topics=topics,
            pattern=pattern,
            messages=messages,
            payload_bytes=payload_bytes,
            fail_on_data_loss=fail_on_data_loss,
        )

    def batches(
        self,
        *,
        start: int | None = None,
        end: int | None = None,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        columns: Sequence[str] | None = None,
        headers: bool = False,
        qos: int | None = None,
        decoding: Decoding | None = None,
        fail_on_data_loss: bool = True,
        losses: list[Loss] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> Batches:
        """Return the messages of a range in batches."""
        return reading.batches(
            self.path,
            start=start,
            end=end,
            topics=topics,
            pattern=pattern,
            columns=columns,
            headers=headers,
            qos=qos,
            decoding=decoding,
            fail_on_data_loss=fail_on_data_loss,
            losses=losses,
            batch_rows=batch_rows,
        )


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
