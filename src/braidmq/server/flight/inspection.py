"""HTTP/2 as it passes: which streams of a connection are open, and what moves on them.

    a frame
    +--------+------+-------+--------+---------
    | length | type | flags | stream | payload       DATA of the peer: messages of gRPC
    +--------+------+-------+--------+---------      everything else is passed over
      u24      u8     u8      u32

    a stream    begins with the HEADERS of the peer, and ends with the END_STREAM or RST_STREAM
                of gRPC, or the RST_STREAM of the peer
    progress    64 KiB of DATA in either direction, the end of a message, HEADERS of gRPC; no
                other frame, since a peer can send those for ever

    held        what gRPC has got of a stream and no handler has taken: all but what it gave
                the peer leave to send anew (WINDOW_UPDATE), which it does as a handler reads;
                and at least what has come of a message that is unfinished

Bytes in, facts out: there is no socket here and no clock. What gRPC sends is trusted, and its
DATA is passed over by its length. What the peer sends is judged before it is passed on.
"""

from typing import Final

from braidmq.base.refusals import by_bound
from braidmq.server.flight.messages import Messages
from braidmq.transport.relay import RefusedBytesError

STREAMS_MAX: Final = 100
"""Open streams of a connection: each may have a thread of gRPC."""

PROGRESS_BYTES: Final = 65_536
"""So many bytes of a stream are progress, within a message too."""

FLIGHT_FRAME: Final = "flight_frame"
"""The reason of a refusal for a frame that is not of HTTP/2."""

FLIGHT_STREAMS: Final = "flight_streams"
"""The reason of a refusal for too many calls at a time."""

_HEAD_BYTES: Final = 9
_DATA: Final = 0
_HEADERS: Final = 1
_RST_STREAM: Final = 3
_WINDOW_UPDATE: Final = 8
_END_STREAM: Final = 0x1
_PADDED: Final = 0x8


class Stream:
    """One open call of a connection."""

    __slots__ = (
        "_granted",
        "_moved",
        "_received",
        "_seen",
        "_seen_at",
        "_turns",
        "held_bytes",
        "messages",
    )

    def __init__(self) -> None:
        self.messages = Messages()
        self.held_bytes = 0
        self._received = 0
        self._granted = 0
        self._turns = 0
        self._moved = 0
        self._seen = (-1, 0)
        self._seen_at = 0.0

    def turn(self) -> None:
        """Note that gRPC has sent headers."""
        self._turns += 1

    def answer(self, size: int) -> None:
        """Note that gRPC has sent bytes of messages."""
        self._moved += size

    def receive(self, data: memoryview) -> int:
        """Take bytes of messages from the peer; return by how much more is held.

        Raises:
            MessageError: A message is refused.
        """
        self.messages.take(data)
        self._moved += len(data)
        self._received += len(data)
        return self._held_anew()

    def grant(self, size: int) -> int:
        """Note that gRPC lets the peer send more; return by how much more is held."""
        self._granted += size
        return self._held_anew()

    def _held_anew(self) -> int:
        before = self.held_bytes
        untaken = self._received - self._granted
        self.held_bytes = max(self.messages.unfinished_bytes, untaken, 0)
        return self.held_bytes - before

    def silent_s(self, now: float) -> float:
        """Return for how long it has made no progress; called again and again."""
        turns, moved = self._turns + self.messages.ended, self._moved
        if turns != self._seen[0] or moved - self._seen[1] >= PROGRESS_BYTES:
            self._seen, self._seen_at = (turns, moved), now
        return now - self._seen_at


class Inspection:
    """What passes on one connection, after its preface.

    `up` and `down` belong to the thread that carries the bytes. The facts may be read on any.
    """

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.held_bytes = 0
        self.moved = 0
        """Bytes of headers and messages so far, in both directions."""

        self._last = 0  # the highest id of a stream so far
        self._up = _Frames()
        self._down = _Frames()

    def up(self, data: memoryview) -> None:
        """Look at what the peer sends, before it is passed on.

        Raises:
            RefusedBytesError: It must not be.
        """
        frames = self._up
        at = 0
        while at < len(data):
            if not frames.left:
                at = frames.begin(data, at)
                if frames.is_begun:
                    self._begin_up(frames)
                continue
            part = data[at : at + frames.left]
            at += len(part)
            frames.left -= len(part)
            if frames.kind == _DATA:
                self._take(frames, part)

    def down(self, data: memoryview) -> None:
        """Look at what gRPC sends."""
        frames = self._down
        at, end = 0, len(data)
        while at < end:
            if frames.left:
                passed = min(frames.left, end - at)
                if frames.kind == _WINDOW_UPDATE:
                    self._grant(frames, data[at : at + passed])
                at += passed
                frames.left -= passed
                continue
            at = frames.begin(data, at)
            if frames.is_begun and frames.kind in (_DATA, _HEADERS, _RST_STREAM):
                self._begin_down(frames)

    def _begin_up(self, frames: "_Frames") -> None:
        if frames.kind == _HEADERS:
            self.moved += frames.left
            self._open(frames.stream)
        elif frames.kind == _RST_STREAM:
            self._close(frames.stream)
        elif frames.kind == _DATA:
            frames.is_padded = bool(frames.flags & _PADDED)
            frames.data_left = frames.left
            if frames.is_padded and not frames.left:
                raise RefusedBytesError(FLIGHT_FRAME, "a padded frame without its padding")

    def _begin_down(self, frames: "_Frames") -> None:
        self.moved += frames.left
        stream = self.streams.get(frames.stream)
        if stream is None:
            return
        if frames.kind == _DATA:
            stream.answer(frames.left)
        else:
            stream.turn()
        if frames.kind == _RST_STREAM or frames.flags & _END_STREAM:
            self._close(frames.stream)

    def _open(self, number: int) -> None:
        if number in self.streams:
            return  # trailers
        if number % 2 == 0:
            raise RefusedBytesError(FLIGHT_FRAME, f"a peer cannot open stream {number}")
        if number <= self._last:
            return  # it has ended, perhaps before the peer could know
        if len(self.streams) >= STREAMS_MAX:
            problem = "too many calls of one connection"
            raise RefusedBytesError(FLIGHT_STREAMS, by_bound(problem, STREAMS_MAX, "at a time"))
        self._last = number
        self.streams[number] = Stream()

    def _close(self, number: int) -> None:
        stream = self.streams.pop(number, None)
        if stream is not None:
            self.held_bytes -= stream.held_bytes

    def _grant(self, frames: "_Frames", part: memoryview) -> None:
        frames.payload += part
        if len(part) == frames.left:
            stream = self.streams.get(frames.stream)
            if stream is not None:
                self.held_bytes += stream.grant(int.from_bytes(frames.payload, "big"))
            frames.payload.clear()

    def _take(self, frames: "_Frames", part: memoryview) -> None:
        if frames.is_padded:
            frames.is_padded = False
            frames.data_left -= 1 + part[0]
            if frames.data_left < 0:
                raise RefusedBytesError(FLIGHT_FRAME, "a frame has more padding than bytes")
            part = part[1:]
        part = part[: frames.data_left]
        frames.data_left -= len(part)
        self.moved += len(part)
        stream = self.streams.get(frames.stream)
        if stream is None or not part:  # of a stream that has ended: gRPC drops it
            return
        self.held_bytes += stream.receive(part)


class _Frames:
    """One direction: the frame that passes now, and how much of it is left."""

    __slots__ = (
        "_head",
        "data_left",
        "flags",
        "is_begun",
        "is_padded",
        "kind",
        "left",
        "payload",
        "stream",
    )

    def __init__(self) -> None:
        self._head = bytearray()
        self.left = 0  # bytes of its payload, padding included
        self.kind = self.flags = self.stream = 0
        self.is_begun = False
        self.is_padded = False  # and the length of the padding comes next
        self.payload = bytearray()  # of a frame that is read whole
        self.data_left = 0  # bytes of its payload without padding

    def begin(self, data: memoryview, at: int) -> int:
        """Take the head of the next frame, or what there is of it; return where it ends."""
        head: bytearray | memoryview
        if not self._head and len(data) - at >= _HEAD_BYTES:
            head = data[at : at + _HEAD_BYTES]
            at += _HEAD_BYTES
        else:
            missing = _HEAD_BYTES - len(self._head)
            part = data[at : at + missing]
            at += len(part)
            self._head += part
            self.is_begun = len(self._head) == _HEAD_BYTES
            if not self.is_begun:
                return at
            head, self._head = self._head, bytearray()
        self.is_begun = True
        self.left = int.from_bytes(head[:3], "big")
        self.kind, self.flags = head[3], head[4]
        self.stream = int.from_bytes(head[5:], "big") & 0x7FFF_FFFF
        return at
