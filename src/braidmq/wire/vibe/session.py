"""A Vibe connection as the server sees it: bytes in, valid commands out.

The session itself answers what needs no broker (refusals) with a :class:`Reply`, and returns
everything else as a :class:`Request` whose fields were checked. It keeps no queue: the caller
takes one command at a time, so a command that must wait holds up everything after it. The
session knows neither permissions nor queues; whoever does may be asked (`judge_by`) before
something is done that takes time. What takes no permission is bounded: a command that takes no
payload is refused with a long one, and only a Publish may be as long as a frame.

The legal order is two sets, `_BEFORE_CONNECT` and `_REQUESTS`: what may come in each state
(docs/protocols/vibe.md shows the same table).

    NEW ----Connect---> CONNECTED      in NEW: Connect, Ping and Disconnect only
"""

import struct
from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be

from braidmq.base import refusals
from braidmq.wire.errors import FrameTooLargeError, WireError
from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.compression import UNDECIDED
from braidmq.wire.vibe.messages import read_decimal

NEW: Final = 0
CONNECTED: Final = 1

AUTH_FAILED: Final = "AUTH_FAILED"
INVALID_MESSAGE: Final = "INVALID_MESSAGE"
QUEUE_NOT_FOUND: Final = "QUEUE_NOT_FOUND"
QUEUE_EXISTS: Final = "QUEUE_EXISTS"
RATE_LIMITED: Final = "RATE_LIMITED"
SERVER_ERROR: Final = "SERVER_ERROR"
NOT_AUTHORIZED: Final = "NOT_AUTHORIZED"
INVALID_PAYLOAD: Final = "INVALID_PAYLOAD"
USER_EXISTS: Final = "USER_EXISTS"
USER_NOT_FOUND: Final = "USER_NOT_FOUND"
FORBIDDEN: Final = "FORBIDDEN"

AUTH_FAILURES_MAX: Final = 5
"""The fifth refused Connect is answered, then the connection is closed."""

RECEIPTS_HEADER: Final = "receipts"
RECEIPTS_WITH_TIME: Final = "timestamp"
"""A Connect with this header asks for the header `timestamp` in PublishAcks."""

PREFETCH_MAX: Final = 10_000
"""The highest prefetch: unacknowledged deliveries that one consumer may hold."""

REQUEUE_DELAY_MS_MAX: Final = 86_400_000
"""A day: the longest delay that a consumer may ask for before a redelivery."""

PUBLISH_SPARE_BYTES: Final = 256
"""A Publish must be this much shorter than the largest body: delivery adds headers."""

ERROR_TEXT_CHARS_MAX: Final = 200

NOT_ALLOWED: Final = "not allowed"
"""What a peer is told that lacks a permission."""

NO_PAYLOAD: Final = "this command takes no payload"

JUDGED_FROM_BYTES: Final = 4096
"""A longer payload is checked only if its command takes one and is permitted: it takes time."""

COMMAND_BYTES_MAX: Final = 128 * 1024
"""The longest body of a command that is no Publish: the longest id, and as much besides."""

Permits = Callable[[int, str], bool]
"""Says whether the peer may send a command of this type about this queue."""

KNOWN_QUEUES_MAX: Final = 1024
"""Valid queue names that each connection remembers, so that it checks each only once."""

KNOWN_QUEUE_BYTES_MAX: Final = 256
"""Longer names are checked every time, which bounds the memory of a connection."""

REPLY: Final = -1
"""The kind of a :class:`Reply`; no message has it."""

_DIGITS_MAX: Final = 9  # of any number in a header; enough for the largest bound

assert 10**_DIGITS_MAX > REQUEUE_DELAY_MS_MAX > PREFETCH_MAX
assert PUBLISH_SPARE_BYTES < frames.BODY_MAX_UNAUTHENTICATED
assert COMMAND_BYTES_MAX > messages.TEXT_BYTES_MAX > JUDGED_FROM_BYTES

_SETTING: Final = "vibe.max_message_bytes"
_TOO_LONG: Final = refusals.by_bound(
    "the body is too long for a command that is no Publish", COMMAND_BYTES_MAX, "bytes"
)
_BEFORE: Final = f"before Connect has succeeded; {refusals.FOR_GOOD}"

_BEFORE_CONNECT: Final = frozenset({messages.CONNECT, messages.PING, messages.DISCONNECT})

_ON_A_QUEUE: Final = frozenset(
    {
        messages.PUBLISH,
        messages.SUBSCRIBE,
        messages.UNSUBSCRIBE,
        messages.CREATE_QUEUE,
        messages.DELETE_QUEUE,
        messages.QUEUE_INFO,
    }
)

_ON_USERS: Final = frozenset(range(messages.CREATE_USER, messages.GET_USER_PERMISSIONS + 1))

_REQUESTS: Final = (
    _BEFORE_CONNECT | _ON_A_QUEUE | _ON_USERS | {messages.ACK, messages.LIST_QUEUES}
)

_WITH_PAYLOAD: Final = _ON_USERS | {messages.PUBLISH, messages.CREATE_QUEUE}

_COMPRESSIONS: Final[dict[str, int]] = {"gzip": frames.GZIP, "brotli": frames.BROTLI}

_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_DELIVER_1_0: Final = struct.Struct(
    ">I"  # length
    "B"  # version
    "B"  # type
    "H"  # length of the id
)
_DELIVER_1_1: Final = struct.Struct(
    ">I"  # length
    "B"  # flags
    "B"  # version
    "B"  # type
    "H"  # length of the id
)
_DELIVER_FIXED_BYTES: Final = 1 + 1 + 2 + 2 + 4  # all but id, queue, payload and headers
_NO_ERROR: Final = bytes(4)  # the two error fields that dialect 1.0 always has


class Command:
    """A peer's request; `kind` is the message type, or REPLY."""

    def __init__(self, kind: int, request_id: str, queue: str) -> None:
        self.kind: int = kind
        self.id: str = request_id
        self.queue: str = queue


class Reply(Command):
    """The session's own answer; with `closes`, send it and then close."""

    def __init__(self, data: bytes, *, closes: bool) -> None:
        super().__init__(REPLY, "", "")
        self.data: bytes = data
        self.closes: bool = closes


class Request(Command):
    """Everything else: a message of a known type with valid fields."""

    def __init__(
        self, kind: int, request_id: str, queue: str, payload: bytes, headers: dict[str, str]
    ) -> None:
        # Not through Command.__init__: on the hot path a second call is measurable.
        self.kind: int = kind
        self.id: str = request_id
        self.queue: str = queue
        self.payload: bytes = payload
        self.headers: dict[str, str] = headers


class Session:
    """One connection's protocol state."""

    def __init__(self, body_max: int = frames.BODY_MAX) -> None:
        self.state: int = NEW
        self.compression: int = frames.RAW
        self.tells_times: bool = False  # PublishAcks say when their messages were accepted
        self._body_max: int = body_max
        self._publish_max: int = body_max - PUBLISH_SPARE_BYTES
        self._decoder = frames.FrameDecoder(min(frames.BODY_MAX_UNAUTHENTICATED, body_max))
        self._negotiated: int = frames.RAW
        self._auth_failures: int = 0
        self._generated_ids: int = 0
        self._is_lost: bool = False
        self._known_queues: dict[bytes, str] = {}
        self._decoder.bounds_ratio = True
        self._decoder.judge = self._wanted_bytes
        self._permits: Permits | None = None

    def judge_by(self, permits: "Permits") -> None:
        """Ask *permits* about a command before what is expensive to decompress or to check."""
        self._permits = permits

    @property
    def dialect(self) -> int:
        """The peer's dialect, which its first frame decides."""
        return self._decoder.dialect

    @property
    def held_bytes(self) -> int:
        """Bytes received that were not yet returned as a command."""
        return self._decoder.held_bytes

    @property
    def unpacked_bytes(self) -> int:
        """Bytes that compressed bodies have made so far: what they cost, unlike their size."""
        return self._decoder.unpacked_bytes

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_command` asks for it; ignore it after lost framing."""
        if not self._is_lost:
            self._decoder.receive_data(data)

    def next_command(self) -> Command | None:
        """Return the next command, or None if more bytes are needed; never raise.

        If the framing is lost, the last command is a Reply that closes; after it, only None.
        """
        if self._is_lost:
            return None
        data: bytes | None = None
        try:
            data = self._decoder.next_body()
            if data is None:
                return None
            if self._decoder.is_unwanted:
                self._decoder.is_unwanted = False
                return self._refuse_unread(data)
            if self.state == CONNECTED:
                command = self._plain_publish(data)
                if command is not None:
                    return command
            return self._judge(messages.read_body(data), len(data))
        except FrameTooLargeError as error:
            why = f"of {_SETTING}; {refusals.OPERATOR}" if self.state == CONNECTED else _BEFORE
            return self._lose(data, f"{error}, {why}")
        except WireError as error:
            return self._lose(data, str(error))

    def negotiate(self, headers: dict[str, str]) -> str:
        """Choose a compression from a Connect's headers, for :meth:`connected` to confirm.

        It is the first one in the client's list that we support; none in dialect 1.0. Whether
        the peer wants to know the times of its publishes is noted as well.
        """
        self.tells_times = headers.get(RECEIPTS_HEADER) == RECEIPTS_WITH_TIME
        self._negotiated = frames.RAW
        if self.dialect != frames.DIALECT_1_1:
            return ""
        for listed in headers.get("supported-compression", "").split(","):
            name = listed.strip().lower()
            if name in _COMPRESSIONS:
                self._negotiated = _COMPRESSIONS[name]
                return name
        return ""

    def connected(self, request_id: str, headers: dict[str, str]) -> bytes:
        """Accept the peer; return the ConnectAck with *headers* and the chosen compression."""
        self.state = CONNECTED
        self._decoder.body_max = self._body_max
        self.compression = frames.RAW  # the ConnectAck itself is raw, on a reconnect as well
        answered = dict(headers)
        for name, compression in _COMPRESSIONS.items():
            if compression == self._negotiated:
                answered["negotiated-compression"] = name
        data = self.reply(messages.CONNECT_ACK, request_id, headers=answered)
        self.compression = self._negotiated
        return data

    def refused(self, request_id: str) -> tuple[bytes, bool]:
        """Return the reply to a refused Connect, and whether to close after it."""
        self._auth_failures += 1
        data = self.error(request_id, AUTH_FAILED, "invalid credentials")
        return data, self._auth_failures >= AUTH_FAILURES_MAX

    def reply(
        self,
        kind: int,
        request_id: str,
        queue: str = "",
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return a frame in this peer's dialect, compressed if that was negotiated."""
        dialect = self._decoder.dialect
        body = messages.write_body(
            kind, request_id, queue, payload, headers, with_errors=dialect == frames.DIALECT_1_0
        )
        return frames.encode(dialect, body, self.compression)

    def error(self, request_id: str, code: str, text: str, queue: str = "") -> bytes:
        """Return an Error frame for this peer; a long text is truncated."""
        # Texts may quote a peer's header: bound them, and replace what UTF-8 cannot encode.
        text = text[:ERROR_TEXT_CHARS_MAX].encode(errors="replace").decode()
        body = messages.write_body(
            messages.ERROR,
            request_id,
            queue,
            error_code=code,
            error_message=text,
            with_errors=True,
        )
        return frames.encode(self._decoder.dialect, body, self.compression)

    def deliver(
        self, message_id: str, queue: bytes, payload: bytes, headers_block: bytes
    ) -> bytes:
        """Return a Deliver frame; *headers_block* is what `messages.encode_headers` made."""
        raw_id = message_id.encode()
        id_bytes = len(raw_id)
        length = (
            _DELIVER_FIXED_BYTES + id_bytes + len(queue) + len(payload) + len(headers_block)
        )
        rest = [raw_id, _U16.pack(len(queue)), queue, _U32.pack(len(payload)), payload]
        rest.append(headers_block)
        if self._decoder.dialect == frames.DIALECT_1_0:
            length += len(_NO_ERROR)
            head = _DELIVER_1_0.pack(length, messages.VERSION, messages.DELIVER, id_bytes)
            return b"".join([head, *rest, _NO_ERROR])
        if self.compression != frames.RAW and length >= frames.COMPRESS_FROM_BYTES:
            start = bytes([messages.VERSION, messages.DELIVER]) + _U16.pack(id_bytes)
            body = b"".join([start, *rest])
            return frames.encode(frames.DIALECT_1_1, body, self.compression)
        head = _DELIVER_1_1.pack(
            length, frames.RAW, messages.VERSION, messages.DELIVER, id_bytes
        )
        return b"".join([head, *rest])

    def _plain_publish(self, data: bytes) -> Request | None:
        """Return a valid Publish to a known queue, or None: `_judge` handles all other bodies.

        This is the hot path. It reads the layout that `messages` draws in one pass, and never
        refuses: anything unusual goes the long way, so each refusal is worded in one place.
        """
        size = len(data)
        if not 12 <= size <= self._publish_max or data[1] != messages.PUBLISH:  # noqa: PLR2004 - all fields absent
            return None
        id_end: int = 4 + (data[2] << 8 | data[3])
        queue_at: int = id_end + 2
        if data[0] != messages.VERSION or id_end == 4 or size < queue_at:  # noqa: PLR2004 - where an id begins
            return None
        queue_end: int = queue_at + (data[id_end] << 8 | data[id_end + 1])
        payload_at: int = queue_end + 4
        if size < payload_at + 2:
            return None
        queue = self._known_queues.get(data[queue_at:queue_end])
        payload_bytes: int = read_i32_be(data, queue_end)
        payload_end: int = payload_at + payload_bytes
        if queue is None or payload_bytes < 0 or size < payload_end + 2:
            return None
        payload = data[payload_at:payload_end]
        if payload_bytes > JUDGED_FROM_BYTES and not self._permitted(messages.PUBLISH, queue):
            return None
        if payload_bytes > 0 and not messages.is_json(payload):
            return None
        headers: dict[str, str] = {}
        count: int = data[payload_end] << 8 | data[payload_end + 1]
        if count > messages.HEADERS_MAX:
            return None
        if count > 0:
            messages.read_headers(data, payload_end, headers)
            if "" in headers:
                return None
        try:
            request_id = data[4:id_end].decode()
        except UnicodeDecodeError:
            return None
        return Request(messages.PUBLISH, request_id, queue, payload, headers)

    def _judge(self, body: messages.Body, body_bytes: int) -> Command:
        # The order of these checks decides which error a peer with several mistakes sees.
        kind = body.type
        if self.state == NEW and kind not in _BEFORE_CONNECT:
            return self._refuse(body, AUTH_FAILED, "Connect first")
        text = body.fault
        if not text and kind not in _REQUESTS:
            text = f"unknown command type {kind}"
        if not text:
            text = self._queue_fault(kind, body.queue)
        if not text and len(body.payload) > JUDGED_FROM_BYTES:
            if kind not in _WITH_PAYLOAD:
                text = NO_PAYLOAD
            elif not self._permitted(kind, body.queue):
                return self._refuse(body, _code_of_forbidden(kind), NOT_ALLOWED)
        if not text and kind != messages.PUBLISH and body_bytes > COMMAND_BYTES_MAX:
            return self._refuse_long(body.id)
        if not text and body.payload and not messages.is_json(body.payload):
            text = "the payload is not JSON"
        if not text and kind == messages.PUBLISH and body_bytes > self._publish_max:
            text = f"a Publish of {body_bytes} bytes, limit is {self._publish_max}"
            text = f"{text}, of {_SETTING}; {refusals.OPERATOR}"
        if not text:
            text = _header_fault(kind, body.headers)
        if text:
            return self._refuse(body, INVALID_MESSAGE, text)
        return Request(kind, body.id, body.queue, body.payload, body.headers)

    # Permission before what is expensive.

    def _permitted(self, kind: int, queue: str) -> bool:
        return self._permits is None or self.state != CONNECTED or self._permits(kind, queue)

    def _wanted_bytes(self, start: bytes) -> int:
        """Say by the beginning of a compressed body how much of it is wanted: 0 is none."""
        kind, queue, payload_bytes = messages.read_start(start)
        if kind == messages.UNREAD:
            return UNDECIDED
        if not queue and kind in _ON_A_QUEUE:
            return COMMAND_BYTES_MAX  # it is refused, and if it is short, like a raw one
        if kind in _WITH_PAYLOAD:
            if not self._permitted(kind, queue):
                return 0
            return self._body_max if kind == messages.PUBLISH else COMMAND_BYTES_MAX
        return COMMAND_BYTES_MAX if payload_bytes <= JUDGED_FROM_BYTES else 0

    def _refuse_unread(self, start: bytes) -> Reply:
        kind, queue, payload_bytes = messages.read_start(start)
        code = INVALID_MESSAGE
        text = self._queue_fault(kind, queue)
        if kind not in _REQUESTS:
            text = f"unknown command type {kind}"
        elif not text and kind in _WITH_PAYLOAD and not self._permitted(kind, queue):
            code = _code_of_forbidden(kind)
            text = NOT_ALLOWED
        elif not text and kind not in _WITH_PAYLOAD and payload_bytes > JUDGED_FROM_BYTES:
            text = NO_PAYLOAD
        request_id = messages.read_id(start)
        if not text:
            return self._refuse_long(request_id)
        return Reply(
            self.error(request_id or self._generate_id(), code, text, queue), closes=False
        )

    def _refuse_long(self, request_id: str) -> Reply:
        # As for every body beyond the limit; that it was read to here has cost enough.
        self._is_lost = True
        answer = self.error(request_id or self._generate_id(), INVALID_MESSAGE, _TOO_LONG)
        return Reply(answer, closes=True)

    def _queue_fault(self, kind: int, queue: str) -> str:
        # Also for commands that need no queue: a name that is given must be valid.
        if not queue:
            return "a queue name is required" if kind in _ON_A_QUEUE else ""
        raw = queue.encode()
        if raw in self._known_queues:
            return ""
        if not messages.is_queue_name(queue):
            return "bad queue name"
        if len(raw) <= KNOWN_QUEUE_BYTES_MAX:
            if len(self._known_queues) >= KNOWN_QUEUES_MAX:
                self._known_queues.clear()
            self._known_queues[raw] = queue
        return ""

    def _refuse(self, body: messages.Body, code: str, text: str) -> Reply:
        request_id = body.id or self._generate_id()
        return Reply(self.error(request_id, code, text, body.queue), closes=False)

    def _lose(self, data: bytes | None, text: str) -> Reply:
        self._is_lost = True
        request_id = messages.read_id(data) if data is not None else ""
        answer = self.error(request_id or self._generate_id(), INVALID_MESSAGE, text)
        return Reply(answer, closes=True)

    def _generate_id(self) -> str:
        self._generated_ids += 1
        return f"err-{self._generated_ids}"


def _code_of_forbidden(kind: int) -> str:
    """Return the code of a refusal for want of a permission."""
    return NOT_AUTHORIZED if kind in _ON_USERS else AUTH_FAILED


def _header_fault(kind: int, headers: dict[str, str]) -> str:
    """Say what is wrong with the headers that a command depends on, or ""."""
    if kind == messages.SUBSCRIBE:
        prefetch = headers.get("prefetch")
        if (
            prefetch is not None
            and not 1 <= read_decimal(prefetch, _DIGITS_MAX) <= PREFETCH_MAX
        ):
            return f"prefetch is not an integer from 1 to {PREFETCH_MAX}"
    elif kind == messages.ACK:
        result = headers.get("result")
        if result not in {None, "reject", "requeue"}:
            return "result is neither reject nor requeue"
        delay = headers.get("delayMs") if result == "requeue" else None
        if (
            delay is not None
            and not 0 <= read_decimal(delay, _DIGITS_MAX) <= REQUEUE_DELAY_MS_MAX
        ):
            return f"delayMs is not an integer from 0 to {REQUEUE_DELAY_MS_MAX}"
    return ""
