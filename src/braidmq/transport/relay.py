"""Relaying: bytes of accepted connections, to and from a server that has a socket of its own.

    peer ──TCP──▶ TLS, if any ──▶ Relayed ──Unix socket──▶ the server

A server that accepts by itself cannot be told whom to accept, nor how much to read from whom.
So it listens on a Unix socket that only this process can reach, and every connection to it is
one of these. Until `open_up` a peer is a stranger: nothing is connected to the server before
the peer has sent its preface, and no more bytes than its allowance are passed on.

What the bytes mean is not known here. Whoever makes a connection may look at each chunk, in
either direction, before it is passed on, and refuse it: then the connection is closed without.

A relay is a thread with its connections; the event loop never touches their bytes. What happens
to a connection happens on the thread of its relay: others use `post`.
"""

import errno
import socket
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from selectors import EVENT_READ, EVENT_WRITE, DefaultSelector
from threading import Thread
from typing import Final

from braidmq.base.errors import BraidError

CHUNK_BYTES: Final = 256 * 1024
"""What is moved at once, and the most that waits in each direction of a connection."""

ROUNDS_MAX: Final = 4
"""Chunks of one direction before the others have their turn."""

STRANGER_BYTES: Final = 64 * 1024
"""What any stranger may send: settings, headers and a small request fit."""

KEEPALIVE_S: Final = 60
"""A peer that is silent for this long is probed; see `braidmq.transport.tcp`."""

Socket = socket.socket | ssl.SSLSocket
_AGAIN: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


Inspect = Callable[[memoryview], None]
"""Looks at a chunk before it is passed on; raises `RefusedBytesError` if it must not be."""


class RefusedBytesError(BraidError):
    """Bytes must not be passed on, so their connection is closed; *reason* names the limit."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class Allowance:
    """Bytes that strangers may send beyond `STRANGER_BYTES`: *each* at most, and all together.

    A first request may be long, so strangers share some room for it, and give it back when they
    are known or gone. Belongs to one relay's thread.
    """

    def __init__(self, each: int, together: int) -> None:
        self.each = each
        self.left = together

    def room(self, relayed: "Relayed") -> int:
        """Return how many bytes a stranger may send now."""
        free = STRANGER_BYTES - relayed.received
        return free if free > 0 else min(self.each - relayed.borrowed, self.left)

    def charge(self, relayed: "Relayed", count: int) -> None:
        """Count what a stranger has sent."""
        relayed.received += count
        more = max(0, relayed.received - STRANGER_BYTES) - relayed.borrowed
        relayed.borrowed += more
        self.left -= more

    def give_back(self, relayed: "Relayed") -> None:
        """Take back what a stranger has borrowed."""
        self.left += relayed.borrowed
        relayed.borrowed = 0


class Flow:
    """One direction of a connection."""

    __slots__ = ("has_ended", "inspect", "is_over", "moved", "unsent")

    def __init__(self, inspect: Inspect | None = None) -> None:
        self.inspect = inspect
        self.unsent: bytes | memoryview = b""
        self.moved = 0
        self.has_ended = False  # the source will send nothing more
        self.is_over = False  # and the other side was told


class Relayed:
    """One connection: the peer's socket, and once it has sent the preface, the server's.

    *connect* opens the server's; *closed* is called on the relay's thread at the end. There,
    too, *inspect_up* and *inspect_down* look at what is passed on after the preface.
    """

    def __init__(
        self,
        peer: Socket,
        *,
        preface: bytes,
        connect: Callable[["Relayed"], socket.socket],
        closed: Callable[["Relayed"], None],
        inspect_up: Inspect | None = None,
        inspect_down: Inspect | None = None,
    ) -> None:
        self.peer = peer
        self.server: socket.socket | None = None
        self.preface = preface
        self.connect = connect
        self.closed = closed
        self.refusal: RefusedBytesError | None = None  # why it was closed, if bytes were
        self.name = ""  # of its end of the server's socket
        self.up = Flow(inspect_up)
        self.down = Flow(inspect_down)
        self.received = 0  # as a stranger, and how much of it is borrowed
        self.borrowed = 0
        self.is_stranger = True
        self.is_aborted = False
        self.is_closed = False
        self.must_write = False  # TLS has something to send before it can go on
        self.is_shaken = not isinstance(peer, ssl.SSLSocket)
        self.masks = {"peer": 0, "server": 0}
        self.relay: Relay | None = None

    def refuse(self, refusal: RefusedBytesError) -> None:
        """Close the connection at once, for what was passed on already; from any thread."""
        self.refusal = refusal
        self.abort()

    def abort(self) -> None:
        """Close the connection at once; from any thread."""
        self.is_aborted = True  # if it is being handed over, the next relay sees this
        self._on_relay(lambda relay: relay.close_one(self))

    def open_up(self, relay: "Relay") -> None:
        """Let the peer send without a bound, carried by *relay*; from any thread."""
        self._on_relay(lambda old: old.hand_over(self, relay))

    def _on_relay(self, act: Callable[["Relay"], None]) -> None:
        relay = self.relay
        assert relay is not None

        def run() -> None:
            # It may have been handed over meanwhile.
            if self.relay is relay:
                act(relay)
            else:
                self._on_relay(act)

        relay.post(run)


class Relay:
    """A thread that carries connections; those of strangers only with an *allowance*."""

    def __init__(self, name: str, allowance: Allowance | None = None) -> None:
        self._allowance = allowance
        self._selector = DefaultSelector()
        self._bell, self._ear = socket.socketpair()
        for end in (self._bell, self._ear):
            end.setblocking(False)  # noqa: FBT003 - the socket's signature
        self._selector.register(self._ear, EVENT_READ, None)
        self._posted: deque[Callable[[], None]] = deque()
        self._connections: set[Relayed] = set()
        self._hungry: dict[Relayed, None] = {}  # strangers that may not send now
        self._chunk = memoryview(bytearray(CHUNK_BYTES))
        self._is_closing = False
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def post(self, act: Callable[[], None]) -> None:
        """Run *act* on the relay's thread, soon."""
        self._posted.append(act)
        with suppress(OSError):  # it is full, so the thread will wake anyway; or it has ended
            self._bell.send(b"\0")

    def carry(self, relayed: Relayed) -> None:
        """Carry a connection from now on; from any thread."""
        relayed.relay = self
        self.post(lambda: self._adopt(relayed))

    def close(self) -> None:
        """Close every connection and end the thread."""

        def finish() -> None:
            self._is_closing = True
            for relayed in list(self._connections):
                self.close_one(relayed)

        self.post(finish)
        self._thread.join()

    # On the thread.

    def _run(self) -> None:
        while not self._is_closing:
            for key, mask in self._selector.select():
                if key.data is None:
                    with suppress(BlockingIOError):
                        self._ear.recv(4096)
                else:
                    relayed, side = key.data
                    # What a side has sent goes one way, what it has room for comes the other.
                    reads, writes = bool(mask & EVENT_READ), bool(mask & EVENT_WRITE)
                    up, down = (reads, writes) if side == "peer" else (writes, reads)
                    self._move(relayed, up=up, down=down)
            while self._posted:
                self._posted.popleft()()
        self._selector.close()
        self._bell.close()
        self._ear.close()

    def _adopt(self, relayed: Relayed) -> None:
        self._connections.add(relayed)
        if self._is_closing or relayed.is_aborted:
            self.close_one(relayed)
        else:
            self._move(relayed)

    def hand_over(self, relayed: Relayed, relay: "Relay") -> None:
        """Give a connection to *relay*, for which its peer is no stranger; on this thread."""
        if relayed.is_closed or not relayed.is_stranger:
            return
        relayed.is_stranger = False
        self._connections.discard(relayed)
        self._unregister(relayed)
        self._return_allowance(relayed)
        relay.carry(relayed)

    def close_one(self, relayed: Relayed) -> None:
        """Close a connection; on this thread."""
        if relayed not in self._connections:
            return
        self._connections.discard(relayed)
        self._unregister(relayed)
        relayed.is_closed = True
        relayed.peer.close()
        if relayed.server is not None:
            relayed.server.close()
        self._return_allowance(relayed)
        relayed.closed(relayed)

    def _return_allowance(self, relayed: Relayed) -> None:
        self._hungry.pop(relayed, None)
        if self._allowance is not None and relayed.borrowed:
            self._allowance.give_back(relayed)
            waiting, self._hungry = self._hungry, {}
            for one in waiting:
                self.post(partial(self._move, one))

    def _move(self, relayed: Relayed, *, up: bool = True, down: bool = True) -> None:
        if relayed not in self._connections:
            return
        try:
            more = self._shake_hands(relayed) and self._pump(relayed, up=up, down=down)
        except RefusedBytesError as error:
            relayed.refusal = error
            self.close_one(relayed)
            return
        except (OSError, ValueError):  # a side has broken off, or does not speak TLS
            self.close_one(relayed)
            return
        if relayed.up.is_over and relayed.down.is_over:
            self.close_one(relayed)
            return
        self._watch(relayed)
        if more:
            self.post(partial(self._move, relayed))

    def _shake_hands(self, relayed: Relayed) -> bool:
        if not relayed.is_shaken:
            assert isinstance(relayed.peer, ssl.SSLSocket)
            try:
                relayed.peer.do_handshake()
            except _AGAIN as error:
                relayed.must_write = isinstance(error, ssl.SSLWantWriteError)
                return False
            relayed.is_shaken, relayed.must_write = True, False
        return True

    def _pump(self, relayed: Relayed, *, up: bool, down: bool) -> bool:
        """Move what can be moved; return whether there is more that no event will tell of."""
        if relayed.server is None:
            if not self._greet(relayed):
                return False
            up = down = True
        assert relayed.server is not None
        more = False
        if up or isinstance(relayed.peer, ssl.SSLSocket):
            more = self._flow(relayed, relayed.up, relayed.peer, relayed.server)
        if down:
            self._flow(relayed, relayed.down, relayed.server, relayed.peer)
        if relayed.down.is_over:
            relayed.up.is_over = True  # the server has closed: there is no one to send to
        # Decrypted bytes wait in this process.
        return more and isinstance(relayed.peer, ssl.SSLSocket)

    def _greet(self, relayed: Relayed) -> bool:
        """Connect to the server once the peer has sent the preface."""
        missing = len(relayed.preface) - len(relayed.up.unsent)
        count = _receive(relayed.peer, self._chunk[:missing])
        if count is None:
            return False
        if count == 0:
            raise ConnectionAbortedError(errno.ECONNABORTED, "the peer has closed")
        relayed.up.unsent = bytes(relayed.up.unsent) + self._chunk[:count]
        if not relayed.preface.startswith(relayed.up.unsent):
            raise ConnectionAbortedError(errno.ECONNABORTED, "another protocol")
        if count < missing:
            return self._greet(relayed)
        relayed.server = relayed.connect(relayed)
        return True

    def _flow(self, relayed: Relayed, flow: Flow, source: Socket, sink: Socket) -> bool:
        for _ in range(ROUNDS_MAX):
            if flow.unsent:
                sent = _send(sink, flow.unsent)
                flow.moved += sent
                flow.unsent = flow.unsent[sent:]
                if flow.unsent:
                    return False
            if flow.has_ended:
                if not flow.is_over:
                    flow.is_over = True
                    _end(sink)
                return False
            size = self._may_read(relayed, flow)
            count = _receive(source, self._chunk[:size]) if size else None
            if count is None:
                return False
            if count == 0:
                flow.has_ended = True
                continue
            if self._allowance is not None and relayed.is_stranger and flow is relayed.up:
                self._allowance.charge(relayed, count)
            if flow.inspect is not None:
                flow.inspect(self._chunk[:count])
            sent = _send(sink, self._chunk[:count])
            flow.moved += sent
            if sent < count:
                flow.unsent = bytes(self._chunk[sent:count])
                return False
        return True

    def _may_read(self, relayed: Relayed, flow: Flow) -> int:
        if flow is relayed.down or not relayed.is_stranger or self._allowance is None:
            return CHUNK_BYTES
        size = min(self._allowance.room(relayed), CHUNK_BYTES)
        if size == 0:
            self._hungry[relayed] = None
        return size

    def _watch(self, relayed: Relayed) -> None:
        """Have the selector wake this thread when something can be moved again."""
        up, down = relayed.up, relayed.down
        reads = not up.has_ended and relayed not in self._hungry
        if relayed.server is not None:
            reads = reads and not up.unsent
        writes = bool(down.unsent) or relayed.must_write
        self._register(relayed, "peer", relayed.peer, _mask(reads=reads, writes=writes))
        if relayed.server is not None:
            reads = not down.has_ended and not down.unsent
            mask = _mask(reads=reads, writes=bool(up.unsent))
            self._register(relayed, "server", relayed.server, mask)

    def _register(self, relayed: Relayed, side: str, end: Socket, mask: int) -> None:
        before = relayed.masks[side]
        if mask == before:
            return
        relayed.masks[side] = mask
        if not before:
            self._selector.register(end, mask, (relayed, side))
        elif not mask:
            self._selector.unregister(end)
        else:
            self._selector.modify(end, mask, (relayed, side))

    def _unregister(self, relayed: Relayed) -> None:
        self._register(relayed, "peer", relayed.peer, 0)
        if relayed.server is not None:
            self._register(relayed, "server", relayed.server, 0)


def watch_over(peer: socket.socket) -> None:
    """Have the kernel notice a peer that has vanished, and send small frames at once."""
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 2 * KEEPALIVE_S * 1000)


def _mask(*, reads: bool, writes: bool) -> int:
    return (EVENT_READ if reads else 0) | (EVENT_WRITE if writes else 0)


def _receive(source: Socket, room: memoryview) -> int | None:
    """Return how many bytes came into *room*, 0 at the end, None if there are none now."""
    count = 0
    try:
        while count < len(room):
            got = source.recv_into(room[count:])
            count += got
            if not got or not isinstance(source, ssl.SSLSocket):  # TLS gives a record at a time
                break
    except _AGAIN:
        return count or None
    except ssl.SSLZeroReturnError:
        return count
    return count


def _send(sink: Socket, data: bytes | memoryview) -> int:
    try:
        return sink.send(data)
    except _AGAIN:
        return 0


def _end(sink: Socket) -> None:
    """Tell a side that nothing more will come."""
    if isinstance(sink, ssl.SSLSocket):
        return  # closing it tells the peer
    with suppress(OSError):  # it is gone already
        sink.shutdown(socket.SHUT_WR)
