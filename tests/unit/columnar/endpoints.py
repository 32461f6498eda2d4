"""Flight endpoints for tests: the broker's service over a log, and servers with a script."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as fl

from braidmq.broker.authorize import Principal
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.connections import Connection
from braidmq.columnar.flight.requests import Message, Ready, encode
from braidmq.columnar.loss import Loss
from braidmq.server.flight.calls import Calls
from braidmq.server.flight.reading import Reading
from braidmq.server.flight.service import FlightService

KEYS: Final = {
    "all": Principal("all", publish=["*"], subscribe=["*"]),
    "some": Principal("some", publish=[], subscribe=["a*", "sensors/*"]),
    "none": Principal("none", publish=["*"], subscribe=[]),
}
"""API keys and their principals."""


class Served:
    """The broker's service for reads, without a broker around it."""

    def __init__(self, path: Path) -> None:
        self.calls = Calls(KEYS.get)
        self.service = FlightService("grpc://127.0.0.1:0", self.calls, Reading(path))
        self.address = f"grpc://127.0.0.1:{self.service.port}"

    def endpoint(self, key: str = "all") -> Endpoint:
        return Endpoint(self.address, key)


@contextmanager
def served(path: Path) -> Iterator[Served]:
    """Serve the log below *path*."""
    found = Served(path)
    found.calls.open()
    try:
        yield found
    finally:
        found.calls.close()
        found.service.shutdown()


def read(log: Any, **wanted: Any) -> pa.Table:  # noqa: ANN401 - a log, and options of its reads
    """Read a log into a table."""
    found = log.batches(**wanted)
    return pa.Table.from_batches(found, found.schema)


def skipped_line(address: str, loss: Loss) -> str:
    """Return the line that a read from *address* must log."""
    return f"{address}: skipped the lost ids {loss.first_id} to {loss.last_id}: {loss.reason}"


class Scripted(fl.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    """A server that follows a script."""

    def __init__(
        self,
        *,
        stream: list[Any] | None = None,
        schema: pa.Schema | None = None,
        answers: list[bytes] | None = None,
        error: Exception | None = None,
    ) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._stream = stream or []
        self._schema = schema
        self._answers = answers or []
        self._error = error
        self.received: list[tuple[int, bytes | None]] = []  # rows and marks of a put

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def connection(self) -> Connection:
        return Connection(self.address, "key", None)

    def do_get(self, _context: object, _ticket: fl.Ticket) -> fl.GeneratorStream:
        def rows() -> Iterator[Any]:
            yield from self._stream
            if self._error is not None:
                raise self._error

        return fl.GeneratorStream(self._schema, rows())

    def do_action(self, _context: object, _action: fl.Action) -> Iterator[bytes]:
        yield from self._answers
        if self._error is not None:
            raise self._error

    def do_put(
        self,
        _context: object,
        _descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        writer.write(encode(Ready()))
        for batch, mark in reader:
            self.received.append((len(batch), mark and mark.to_pybytes()))
            if self._error is not None:
                raise self._error
        for answer in self._answers:
            writer.write(answer)


@contextmanager
def scripted(**script: Any) -> Iterator[Scripted]:  # noqa: ANN401 - what Scripted takes
    """Run a server with a script."""
    server = Scripted(**script)
    try:
        yield server
    finally:
        server.shutdown()


class Text(Message, frozen=True):
    """A message for tests."""

    text: str
