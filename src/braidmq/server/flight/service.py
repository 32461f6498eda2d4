"""The Arrow Flight service: reads as streams, everything else as actions.

Its methods are called on Flight's threads, one for each call. They say which connection a call
came by, decode the request, take a place and translate errors; `reading` and `writing` do the
work.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.flight as fl

from braidmq.base.limits import MIB
from braidmq.broker.authorize import Principal
from braidmq.columnar.decoding.columns import column_names, schema_of
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.failures import BrokenStreamError
from braidmq.columnar.flight.requests import BadRequestError, Message, decode, encode
from braidmq.columnar.loss import Loss
from braidmq.columnar.reading import Batches
from braidmq.server.flight.calls import CALL, Call, Calls, flight_errors
from braidmq.server.flight.reading import Reading
from braidmq.server.flight.writing import Writing, may_publish

TICKETS_BYTES_MAX: Final = 16 * MIB
"""Of one `GetFlightInfo`: each part's ticket names the topics again."""

Verb = Callable[[Principal, Any], Message | Iterable[Message]]


class FlightService(fl.FlightServerBase):  # type: ignore[misc] # pyarrow has no types
    """The endpoint; it listens as soon as it is made."""

    def __init__(
        self,
        location: str,
        calls: Calls,
        reading: Reading,
        *,
        certificates: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        super().__init__(location, middleware={CALL: calls}, tls_certificates=certificates)
        self._calls = calls
        self._reading = reading
        self._scans: dict[str, Verb] = {
            "offsets": reading.offsets,
            "offset_at": reading.offset_at,
            "offset_behind": reading.offset_behind,
            "topics": reading.topics,
            "topic_counts": reading.topic_counts,
            "cut": reading.cut,
            "advance": reading.advance,
        }
        self._writing: Writing | None = None
        self._changes: dict[str, Verb] = {}

    def attach(self, writing: Writing) -> None:
        """Route the actions that change something to *writing*; before calls are accepted."""
        self._writing = writing
        self._changes = {
            "open_cursor": writing.open_cursor,
            "move_cursor": writing.move_cursor,
            "remove_cursor": writing.remove_cursor,
            "cursors": writing.cursors,
            "commit": writing.commit,
            "abort": writing.abort,
        }
        assert self._scans.keys() | self._changes.keys() == requests.ACTIONS.keys()

    def _call(self, context: fl.ServerCallContext) -> Call:
        # The first thing that a handler does: from here on the connection may send more.
        call: Call = context.get_middleware(CALL)
        call.begins()
        self._calls.arrived(call, context.peer())
        return call

    def list_actions(self, context: fl.ServerCallContext) -> list[tuple[str, str]]:
        """Return every action with the first line of its documentation."""
        self._call(context).hand_over()
        return [
            (name, (kind.__doc__ or "").partition("\n")[0])
            for name, kind in requests.ACTIONS.items()
        ]

    def do_action(self, context: fl.ServerCallContext, action: fl.Action) -> Iterator[bytes]:
        """Run an action and return its answers."""
        with flight_errors():
            call = self._call(context)
            kind = requests.ACTIONS.get(action.type)
            if kind is None:
                raise BadRequestError(f"there is no action {action.type[:64]!r}")
            body = action.body
            request = decode(kind, b"" if body is None else memoryview(body))
            principal = call.principal
            if action.type in self._changes:
                answers = _all(self._changes[action.type](principal, request))
            else:
                with self._calls.scans.one(principal, context.is_cancelled):
                    answers = _all(self._scans[action.type](principal, request))
            return _sent(call, [encode(answer) for answer in answers])

    def list_flights(
        self, context: fl.ServerCallContext, criteria: bytes
    ) -> Iterator[fl.FlightInfo]:
        """Return each topic with its counts; the criteria may be a TopicCountsRequest."""
        with flight_errors():
            call = self._call(context)
            request = decode(requests.TopicCountsRequest, criteria)
            with self._calls.scans.one(call.principal, context.is_cancelled):
                pages = list(self._reading.topic_counts(call.principal, request))
            counts = {name: count for page in pages for name, count in page.counts.items()}
            return _sent(call, [_topic_info(request, name, *counts[name]) for name in counts])

    def get_flight_info(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.FlightInfo:
        """Return the parts of a range, each with the ticket that reads it."""
        with flight_errors():
            principal = self._call(context).principal
            request = _described(descriptor)
            with self._calls.scans.one(principal, context.is_cancelled):
                cut = self._reading.cut(principal, _as_cut(request))
                schema = self._reading.batches(principal, request, []).schema
            # Estimated before they are made: each ticket is the request with other ids.
            if len(cut.parts) * len(encode(request)) > TICKETS_BYTES_MAX:
                raise BadRequestError("the tickets would not fit: ask for less, or for a cut")
            tickets = [
                msgspec.structs.replace(request, start=start, end=end)
                for start, end, messages, _ in cut.parts
                if messages
            ]
            rows, size = (sum(part[field] for part in cut.parts) for field in (2, 3))
            if request.qos is not None:
                rows = size = -1  # the cut does not know
            endpoints = [fl.FlightEndpoint(encode(ticket), []) for ticket in tickets]
            return fl.FlightInfo(schema, descriptor, endpoints, rows, size)

    def get_schema(
        self, context: fl.ServerCallContext, descriptor: fl.FlightDescriptor
    ) -> fl.SchemaResult:
        """Return the columns of a read."""
        with flight_errors():
            principal = self._call(context).principal
            schema = self._reading.batches(principal, _described(descriptor), []).schema
            return fl.SchemaResult(schema)

    def do_get(self, context: fl.ServerCallContext, ticket: fl.Ticket) -> fl.GeneratorStream:
        """Return the rows of a read."""
        with flight_errors():
            call = self._call(context)
            request = decode(requests.ReadRequest, ticket.ticket)
            losses: list[Loss] = []
            found = self._reading.batches(call.principal, request, losses)
            rows = self._rows(context, call, found, losses)
            call.hand_over()  # its schema is sent before the first row is asked for
            return fl.GeneratorStream(found.schema, rows)

    def _rows(
        self, context: fl.ServerCallContext, call: Call, found: Batches, losses: list[Loss]
    ) -> Iterator[Any]:
        # A generator that is never begun is never ended, so the place is taken inside.
        call.take_back()
        try:
            with (
                flight_errors(),
                self._calls.streams.one(call.principal, context.is_cancelled),
            ):
                rows = 0
                while (batch := self._next(context, call, found)) is not None:
                    rows += len(batch)
                    with call.peers_turn():
                        yield batch
                # The end is marked: to the client a connection that breaks looks like a stream
                # that has ended.
                lost = [requests.LostIds(*loss) for loss in losses]
                nothing = pa.RecordBatch.from_pylist([], schema=found.schema)
                with call.peers_turn():
                    yield nothing, encode(requests.EndOfRead(rows, lost))
        finally:
            self._calls.give_memory_back()

    def _next(
        self, context: fl.ServerCallContext, call: Call, found: Batches
    ) -> pa.RecordBatch | None:
        with self._calls.workers.one(call.principal, context.is_cancelled):
            call.check_standing()
            return next(found, None)

    def do_put(
        self,
        context: fl.ServerCallContext,
        descriptor: fl.FlightDescriptor,
        reader: fl.MetadataRecordBatchReader,
        writer: fl.FlightMetadataWriter,
    ) -> None:
        """Store rows as a stage and send its id; a stage whose id cannot be sent is dropped."""
        with flight_errors():
            call = self._call(context)
            if descriptor.descriptor_type != fl.DescriptorType.CMD:
                raise BadRequestError("a stage is written with a command, a StageRequest")
            request = decode(requests.StageRequest, descriptor.command)
            principal = call.principal
            may_publish(principal, request.topic)  # before a row of it is read
            assert self._writing is not None
            try:
                with self._calls.stages.one(principal, context.is_cancelled):
                    if request.waits:
                        _tell(call, writer, requests.Ready())
                    stage = self._writing.stage(call, request.topic, reader)
            finally:
                self._calls.give_memory_back()
            try:
                _tell(call, writer, stage)
            except BrokenStreamError:
                self._writing.drop(principal, stage)
                raise

    def do_exchange(self, *_arguments: object) -> None:
        """Refuse: there is nothing to exchange."""
        with flight_errors():
            raise BadRequestError("DoExchange is not offered")


def _sent(call: Call, answers: list[Any]) -> Iterator[Any]:
    """Yield the answers to a peer that may be slow to take them."""
    for answer in answers:
        with call.peers_turn():
            yield answer


def _tell(call: Call, writer: fl.FlightMetadataWriter, answer: Message) -> None:
    """Send an answer to a peer that stages rows."""
    try:
        with call.peers_turn():
            writer.write(encode(answer))
    except (pa.ArrowException, OSError):
        raise BrokenStreamError("the client disconnected while staging") from None


def _all(answers: Message | Iterable[Message]) -> list[Message]:
    return [answers] if isinstance(answers, Message) else list(answers)


def _topic_info(
    request: requests.TopicCountsRequest, name: str, messages: int, size: int
) -> fl.FlightInfo:
    read = requests.ReadRequest(start=request.start, end=request.end, topics=[name])
    endpoints = [fl.FlightEndpoint(encode(read), [])]
    descriptor = fl.FlightDescriptor.for_path(name)
    columns = schema_of(column_names(None, headers=False))
    return fl.FlightInfo(columns, descriptor, endpoints, messages, size)


def _described(descriptor: fl.FlightDescriptor) -> requests.ReadRequest:
    """Return the read that is meant by a command, or by a path of one topic's name."""
    if descriptor.descriptor_type == fl.DescriptorType.CMD:
        return decode(requests.ReadRequest, descriptor.command)
    if descriptor.descriptor_type != fl.DescriptorType.PATH or len(descriptor.path) != 1:
        raise BadRequestError("a descriptor is a ReadRequest, or a path of one topic's name")
    return requests.ReadRequest(topics=[descriptor.path[0].decode()])


def _as_cut(request: requests.ReadRequest) -> requests.CutRequest:
    return requests.CutRequest(
        start=request.start,
        end=request.end,
        topics=request.topics,
        fail_on_data_loss=request.fail_on_data_loss,
    )
