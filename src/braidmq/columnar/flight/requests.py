"""Requests to the Flight endpoint and its answers: JSON, the same on both sides.

    a read        DoGet      ticket: `ReadRequest`; the last batch is empty, with `EndOfRead`
    a stage       DoPut      command: `StageRequest`; the last batch is empty, with
                             `EndOfStage`; the answer is a `Stage`, in the stream of metadata,
                             after a `Ready` if the client waits for one
    anything else DoAction   body: the request of `ACTIONS`; answers in one or more results

Nothing here connects, listens or reads a log.
"""

from collections.abc import Sequence
from typing import Annotated, Final, TypeVar

import msgspec

from braidmq.base.errors import BraidError
from braidmq.base.limits import MIB

REQUEST_BYTES_MAX: Final = 4 * MIB
"""A ticket, a command or a body: room for some ten thousand topic names."""

ID_MAX: Final = 2**63 - 1
BATCH_ROWS_MAX: Final = 65_536
READ_BATCH_BYTES: Final = MIB
"""Bytes of records in one batch; a larger record is sent alone."""

STAGE_BATCH_BYTES_MAX: Final = 64 * MIB
"""The largest batch of a stage; our client sends smaller ones, of `STAGE_BATCH_BYTES`."""

STAGE_BATCH_BYTES: Final = 4 * MIB
PAGE_TOPICS: Final = 1_000
"""Topics in one result of an action."""

assert STAGE_BATCH_BYTES < STAGE_BATCH_BYTES_MAX

Whole = Annotated[int, msgspec.Meta(ge=-ID_MAX, le=ID_MAX)]
"""Any number; the reader of the log checks its range, as it does for a directory."""

Id = Annotated[int, msgspec.Meta(ge=0, le=ID_MAX)]
StageId = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]


class BadRequestError(BraidError):
    """A request to the endpoint is malformed."""


class Message(msgspec.Struct, frozen=True):
    """The base of all requests and answers; answers of a later version may have more fields."""


class Request(Message, frozen=True, forbid_unknown_fields=True):
    """The base of all requests: an unknown field is an error, not silently ignored."""


class ReadRequest(Request, frozen=True):
    """Messages from `start` to before `end`; see `columnar.batches`. None means all."""

    start: Whole | None = None
    end: Whole | None = None
    topics: list[str] | None = None
    columns: list[str] | None = None
    headers: bool = False
    qos: Annotated[int, msgspec.Meta(ge=0, le=255)] | None = None
    fail_on_data_loss: bool = True
    batch_rows: Whole = BATCH_ROWS_MAX


class LostIds(Message, frozen=True):
    """Ids that a read has skipped."""

    first_id: Id
    last_id: Id
    reason: str


class EndOfRead(Message, frozen=True):
    """The mark at the end of a read: the number of rows before it, and the lost ids."""

    rows: Id
    losses: list[LostIds] = []


class OffsetsRequest(Request, frozen=True):
    """Where the durable log starts and ends."""


class OffsetsAnswer(Message, frozen=True):
    """The ids in the log: from `earliest` up to but not including `latest`."""

    earliest: Id
    latest: Id


class OffsetAtRequest(Request, frozen=True):
    """The id of the first message since a time, or behind the last one before it."""

    time_us: Whole


class NumberAnswer(Message, frozen=True):
    """One id."""

    offset: Id


class TopicsRequest(Request, frozen=True):
    """The topics of a range, and perhaps others; only those that the key may subscribe to."""

    start: Whole = 0
    end: Whole = ID_MAX


class TopicsAnswer(Message, frozen=True):
    """A page of topics, and the end of the range that was examined."""

    topics: list[str]
    end: Id


class TopicCountsRequest(Request, frozen=True):
    """The messages and payload bytes of each topic in a range."""

    start: Whole | None = None
    end: Whole | None = None
    fail_on_data_loss: bool = True


class TopicCountsAnswer(Message, frozen=True):
    """A page of topics with their messages and payload bytes."""

    counts: dict[str, tuple[Id, Id]]


class CutRequest(Request, frozen=True):
    """A range in parts; see `columnar.cut`."""

    start: Whole | None = None
    end: Whole | None = None
    topics: list[str] | None = None
    target_bytes: Whole | None = None
    parts: Whole | None = None
    fail_on_data_loss: bool = True


class CutAnswer(Message, frozen=True):
    """Parts: start, end, messages, payload bytes."""

    parts: Sequence[tuple[Id, Id, Id, Id]]


class AdvanceRequest(Request, frozen=True):
    """The id after so many messages; see `columnar.advance`."""

    start: Whole
    topics: list[str] | None = None
    messages: Whole = ID_MAX
    payload_bytes: Whole = ID_MAX
    fail_on_data_loss: bool = True


class OpenCursorRequest(Request, frozen=True):
    """Open a cursor, creating it at `start` if needed; None is the end of the log."""

    name: str
    start: Whole | None = None


class CursorPlace(Message, frozen=True):
    """The initial and current position of a cursor, and whether it was just created."""

    name: str
    initial: Id
    position: Id
    created: bool


class MoveCursorRequest(Request, frozen=True):
    """Move a cursor: everything before `offset` is done."""

    name: str
    offset: Id


class RemoveCursorRequest(Request, frozen=True):
    """Remove a cursor."""

    name: str


class CursorsRequest(Request, frozen=True):
    """The cursors that the key may move; all of them if it is an admin's."""


class CursorRow(Message, frozen=True):
    """One cursor: its principal, initial and current position, and its lag in ids."""

    name: str
    principal: str
    initial: Id
    position: Id
    lag: Id


class CursorsAnswer(Message, frozen=True):
    """The cursors."""

    cursors: list[CursorRow]


class Done(Message, frozen=True):
    """The answer to a request that has no result."""


class StageRequest(Request, frozen=True):
    """Rows for a later commit, for one topic or for the topics that a column names.

    With `waits` the client sends none before the endpoint's `Ready`: what comes while a stage
    has no place is held in memory, and counts towards a quota.
    """

    topic: str | None = None
    waits: bool = False


class Ready(Message, frozen=True):
    """A stage has its place, and its rows may come."""


class EndOfStage(Message, frozen=True):
    """The mark at the end of a stage: the number of rows before it."""

    rows: Id


class Stage(Message, frozen=True):
    """Rows that the broker stores durably until they are committed or dropped."""

    id: StageId
    rows: Id


class SinkKey(Request, frozen=True):
    """The identity of a batch: committing it again changes nothing."""

    query: str
    sink: str
    batch: Id


class CommitRequest(Request, frozen=True):
    """Commit exactly these stages as the batch: their rows become messages."""

    key: SinkKey
    stages: list[StageId]


class SinkCommit(Message, frozen=True):
    """The number of messages of the batch, and whether it was committed before."""

    messages: Id
    repeated: bool


class AbortRequest(Request, frozen=True):
    """Drop these stages."""

    stages: list[StageId]


ACTIONS: Final[dict[str, type[Request]]] = {
    "offsets": OffsetsRequest,
    "offset_at": OffsetAtRequest,
    "offset_behind": OffsetAtRequest,
    "topics": TopicsRequest,
    "topic_counts": TopicCountsRequest,
    "cut": CutRequest,
    "advance": AdvanceRequest,
    "open_cursor": OpenCursorRequest,
    "move_cursor": MoveCursorRequest,
    "remove_cursor": RemoveCursorRequest,
    "cursors": CursorsRequest,
    "commit": CommitRequest,
    "abort": AbortRequest,
}
"""The actions by name, each with the request in its body."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


def encode(message: Message) -> bytes:
    """Return the JSON of a request or an answer.

    Raises:
        BadRequestError: A text holds lone surrogates.
    """
    try:
        return msgspec.json.encode(message)
    except UnicodeEncodeError:
        raise BadRequestError("a text holds lone surrogates") from None


def decode(
    kind: type[AnyMessage], data: bytes | memoryview, *, bytes_max: int = REQUEST_BYTES_MAX
) -> AnyMessage:
    """Return the message in *data*; no bytes at all are a request without fields.

    Raises:
        BadRequestError: It is too long, not JSON, or not of that kind.
    """
    if len(data) > bytes_max:
        raise BadRequestError(f"is too long: {len(data)} bytes, the limit is {bytes_max}")
    try:
        return msgspec.json.decode(data or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"is not a {kind.__name__}: {error}") from None
