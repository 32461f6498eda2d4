"""Streams: prebuilt requests in, replies out, and the time between the two.

The client must not be the bottleneck: requests are built before the clock starts, replies go
into memory that has been touched before, and they are checked after it stops.
"""

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

CHUNK_BYTES: Final = 256 * 1024
"""Maximum bytes per call on a socket."""

SILENCE_S_MAX: Final = 20.0
"""A run without any progress for this long has failed."""

RUN_S_MAX: Final = 300.0
"""A run that takes longer has failed, whatever its progress."""


class BrokenRunError(Exception):
    """A run failed in a way that makes its figures meaningless."""


@dataclass(frozen=True)
class Elapsed:
    """The time of a run, and the CPU time of the client."""

    seconds: float
    cpu_s: float


class Clock:
    """Runs from its making on."""

    def __init__(self) -> None:
        self._started, self._cpu_started = time.perf_counter(), time.process_time()

    def elapsed(self) -> Elapsed:
        """Return the time so far."""
        return Elapsed(
            time.perf_counter() - self._started, time.process_time() - self._cpu_started
        )


@dataclass(frozen=True)
class Sample:
    """One run: number of messages, time, and CPU time of both sides."""

    messages: int
    seconds: float
    server_cpu_s: float
    client_cpu_s: float

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds


class Replies(Protocol):
    """The replies on a socket; `progress` grows to `goal`."""

    goal: int
    progress: int

    def receive(self, source: socket.socket) -> None:
        """Read what is available."""

    def verify(self) -> None:
        """Raise BrokenRunError if the replies are wrong."""


class ExpectedReplies:
    """Replies whose every byte is known in advance; progress is in bytes."""

    def __init__(self, expected: bytes) -> None:
        self._expected = expected
        # Written once now: pages that are first touched during the run would be measured too.
        self._received = bytearray(b"\xff") * len(expected)
        self._view = memoryview(self._received)
        self.goal = len(expected)
        self.progress = 0

    def receive(self, source: socket.socket) -> None:
        """Read what is available."""
        count = source.recv_into(self._view[self.progress : self.progress + CHUNK_BYTES])
        _check_open(count)
        self.progress += count

    def verify(self) -> None:
        """Compare every byte."""
        if self._received != self._expected:
            pairs = zip(self._received, self._expected, strict=True)
            at = next(i for i, (one, other) in enumerate(pairs) if one != other)
            told = bytes(self._received[max(0, at - 64) : at + 64])
            raise BrokenRunError(f"reply differs at byte {at} of {self.goal}: {told!r}")


class CountedReplies:
    """Replies that each contain a mark exactly once; progress is in marks."""

    def __init__(self, mark: bytes, goal: int) -> None:
        self._mark = mark
        self._buffer = bytearray(b"\xff") * CHUNK_BYTES
        self._view = memoryview(self._buffer)
        self._kept = 0  # bytes of a mark that may have been cut
        self.goal = goal
        self.progress = 0

    def receive(self, source: socket.socket) -> None:
        """Read what is available."""
        count = source.recv_into(self._view[self._kept :])
        _check_open(count)
        end = self._kept + count
        self.progress += self._buffer.count(self._mark, 0, end)
        # One byte less than a mark: no mark can be counted twice.
        self._kept = min(end, len(self._mark) - 1)
        self._view[: self._kept] = self._view[end - self._kept : end]

    def verify(self) -> None:
        """Raise BrokenRunError if there were more than expected."""
        if self.progress > self.goal:
            raise BrokenRunError(f"{self.progress} replies, expected {self.goal}")


class Requests:
    """A block of bytes that is sent a number of times."""

    def __init__(self, block: bytes, repeats: int = 1) -> None:
        self._block = memoryview(block)
        self.goal = len(block) * repeats
        self.sent = 0

    def ahead_of(
        self, replies: int, *, request_bytes: int, reply_bytes: int = 1
    ) -> Callable[[int], int]:
        """Return how much may be sent, given the progress of replies: *replies* more than came.

        *reply_bytes* is the progress that one reply makes.
        """
        return lambda progress: min(
            self.goal, (progress // reply_bytes + replies) * request_bytes
        )

    def send(self, target: socket.socket, limit: int) -> None:
        """Send what the socket accepts, at most *limit* bytes in total."""
        at = self.sent % len(self._block)
        self.sent += target.send(self._block[at : at + min(CHUNK_BYTES, limit - self.sent)])


def connect(address: str) -> socket.socket:
    """Return a connected socket with a timeout."""
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=SILENCE_S_MAX)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def read_until(source: socket.socket, end: bytes) -> bytes:
    """Return what arrives up to and including *end*, which must come last."""
    data = b""
    while not data.endswith(end):
        piece = source.recv(CHUNK_BYTES)
        _check_open(len(piece))
        data += piece
    return data


def read_exactly(source: socket.socket, size: int) -> bytes:
    """Return the next *size* bytes."""
    data = b""
    while len(data) < size:
        piece = source.recv(size - len(data))
        _check_open(len(piece))
        data += piece
    return data


def exchange(
    requests: Requests,
    target: socket.socket,
    replies: Replies,
    source: socket.socket | None = None,
    allowed: Callable[[int], int] | None = None,
) -> Elapsed:
    """Send all requests and receive all replies; return the time from first to last.

    The replies come on *source*, by default the target, and are verified once the clock has
    stopped. *allowed* says how many bytes may have been sent, given the replies' progress;
    without it nothing waits.
    """
    source = target if source is None else source
    clock = Clock()
    while replies.progress < replies.goal:
        limit = requests.goal if allowed is None else allowed(replies.progress)
        writers = [target] if requests.sent < limit else []
        readable, writable, _ = select.select([source], writers, [], SILENCE_S_MAX)
        if readable:
            replies.receive(source)
        if writable:
            requests.send(target, limit)
        if not readable and not writable:
            raise BrokenRunError(f"silence after {replies.progress} of {replies.goal}")
        if clock.elapsed().seconds > RUN_S_MAX:
            raise BrokenRunError(f"{replies.progress} of {replies.goal} in {RUN_S_MAX:.0f} s")
    elapsed = clock.elapsed()
    replies.verify()
    return elapsed


def _check_open(count: int) -> None:
    if count == 0:
        raise BrokenRunError("the server closed the connection")
