"""What the Flight endpoint changes: cursors, stages, and the batches that stages become.

Everything here is called on Flight's threads. Stages are written there; the broker is changed
on the event loop, and the thread waits for the result.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from threading import Lock
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.flight as fl

from braidmq.base.errors import ConfigError, NotAllowedError
from braidmq.broker.authorize import ADMIN, PUBLISH, Principal, authorize
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.failures import BrokenStreamError, UnavailableError, shortened
from braidmq.columnar.flight.requests import BadRequestError, decode
from braidmq.server.cursors import Cursors
from braidmq.server.engine.requests import SHUTTING_DOWN
from braidmq.server.engine.requests import UnavailableError as EngineUnavailableError
from braidmq.server.flight.calls import Call
from braidmq.server.sink.sink import Sink
from braidmq.server.sink.stages import Stages

Answer = TypeVar("Answer")


class Writing:
    """Changes the broker for Flight's calls; created on the event loop."""

    def __init__(self, cursors: Cursors, stages: Stages, sink: Sink) -> None:
        self._loop = asyncio.get_running_loop()
        self._cursors = cursors
        self._stages = stages
        self._sink = sink
        self._lock = Lock()
        self._closed = False
        self._pending: set[Future[Any]] = set()

    def close(self) -> None:
        """Cancel every call that waits for the broker."""
        with self._lock:
            self._closed = True
            pending = list(self._pending)
        for future in pending:
            future.cancel()

    def open_cursor(
        self, principal: Principal, request: requests.OpenCursorRequest
    ) -> requests.CursorPlace:
        """Return a cursor, created if there is none of that name."""
        opened = self._done(self._cursors.open(principal, request.name, request.start))
        return requests.CursorPlace(
            opened.name, opened.initial, opened.position, opened.created
        )

    def move_cursor(
        self, principal: Principal, request: requests.MoveCursorRequest
    ) -> requests.Done:
        """Move a cursor forward."""
        self._done(self._cursors.move(principal, request.name, request.offset))
        return requests.Done()

    def remove_cursor(
        self, principal: Principal, request: requests.RemoveCursorRequest
    ) -> requests.Done:
        """Remove a cursor."""
        self._done(self._cursors.remove(principal, request.name))
        return requests.Done()

    def cursors(
        self, principal: Principal, _request: requests.CursorsRequest
    ) -> requests.CursorsAnswer:
        """Return the cursors that a principal may move."""

        async def found() -> list[requests.CursorRow]:
            return [
                requests.CursorRow(one.name, one.principal, one.initial, one.position, one.lag)
                for one in self._cursors.all()
                if one.principal == principal.name or authorize(principal, ADMIN, "")
            ]

        return requests.CursorsAnswer(self._done(found()))

    def commit(
        self, principal: Principal, request: requests.CommitRequest
    ) -> requests.SinkCommit:
        """Turn stages into messages; return when they are durable."""
        return self._done(self._sink.commit(principal, request.key, request.stages))

    def abort(self, principal: Principal, request: requests.AbortRequest) -> requests.Done:
        """Drop stages."""
        self._done(self._sink.abort(principal, request.stages))
        return requests.Done()

    def stage(
        self, call: Call, topic: str | None, reader: fl.MetadataRecordBatchReader
    ) -> requests.Stage:
        """Store the rows of a stream, if it is complete."""
        for field in reader.schema:
            if _has_dictionary(field.type):
                problem = "a dictionary column: Arrow would hold each dictionary; send values"
                raise ConfigError(shortened(field.name), problem)
        batches = sent_batches(call, reader)
        return self._stages.write(call.principal, topic, reader.schema, batches)

    def drop(self, principal: Principal, stage: requests.Stage) -> None:
        """Drop a stage whose writer never learned of it."""
        self._stages.drop([stage.id], principal)

    def _done(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        with self._lock:
            if self._closed:
                work.close()  # or Python warns of a coroutine that was never awaited
                raise UnavailableError(SHUTTING_DOWN)
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
            self._pending.add(future)
        try:
            return future.result()
        except CancelledError:
            raise UnavailableError(SHUTTING_DOWN) from None
        except EngineUnavailableError as error:
            raise UnavailableError(str(error)) from None
        finally:
            with self._lock:
                self._pending.discard(future)


def may_publish(principal: Principal, topic: str | None) -> None:
    """Check that a stage of *topic*, or of those that its rows name, could be committed.

    Raises:
        NotAllowedError: The principal may not publish to it, or to none at all.
    """
    if topic is None:
        is_allowed = bool(principal.publish or principal.grants)
    else:
        is_allowed = authorize(principal, PUBLISH, topic)
    if not is_allowed:
        raise NotAllowedError(PUBLISH, "any topic" if topic is None else topic)


def sent_batches(call: Call, reader: fl.MetadataRecordBatchReader) -> Iterator[pa.RecordBatch]:
    """Yield the batches that a peer sends, verified, up to the mark that ends them.

    Raises:
        BrokenStreamError: The mark is missing, or names another number of rows.
        BadRequestError: A batch is too large, or invalid.
        UnauthenticatedError: The key was revoked meanwhile.
        UnavailableError: Its permissions have changed; the stage may be sent again.
    """
    rows = 0
    while True:
        try:
            with call.peers_turn():
                batch, mark = reader.read_chunk()
        except StopIteration:
            # A connection that breaks looks the same as a peer that has nothing more to send.
            raise BrokenStreamError(f"the stream broke off after {rows} rows") from None
        except (pa.ArrowException, OSError) as error:
            raise BadRequestError(f"a batch cannot be read: {error}") from None
        call.check_standing()
        if batch is not None:
            _check(batch)
            rows += len(batch)
            yield batch
        if mark is not None:
            said = decode(requests.EndOfStage, mark.to_pybytes()).rows
            if said != rows:
                raise BrokenStreamError(f"{said} rows were sent, but {rows} arrived")
            return


def _has_dictionary(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(at).type) for at in range(kind.num_fields))


def _check(batch: pa.RecordBatch) -> None:
    if batch.nbytes > requests.STAGE_BATCH_BYTES_MAX:
        limit = requests.STAGE_BATCH_BYTES_MAX
        raise BadRequestError(f"a batch has {batch.nbytes} bytes, the limit is {limit}")
    try:
        # A value that points outside its buffer would expose other memory to its reader.
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise BadRequestError(f"a batch is not valid: {error}") from None
