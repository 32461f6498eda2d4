"""The front of the Flight endpoint: who may connect, before gRPC sees a byte.

gRPC accepts every connection, and takes a whole message in before the API key in its headers
can be judged. So gRPC listens on a Unix socket without a name, and the connections of the
endpoint's address come here: each takes a place at the door, has its TLS handshake here, and
stays a stranger, with a deadline and few bytes, until one of its calls has shown a key. Bytes
are moved by the threads of `braidmq.transport.relay`, and inspected in passing: a connection is
closed before gRPC has got what it must not get (`inspection`, `visitors`).

A call names the connection that it came by: each has a name on the Unix socket, which gRPC
reports as the call's peer.
"""

import asyncio
import os
import secrets
import shutil
import socket
import ssl
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import structlog

from braidmq.base.errors import NoSocketError
from braidmq.base.limits import KIB, MIB
from braidmq.columnar.flight.requests import REQUEST_BYTES_MAX
from braidmq.server.flight.calls import Call
from braidmq.server.flight.visitors import Ledger, Visitor, to_leave, to_yield
from braidmq.transport.accepting import Acceptor
from braidmq.transport.binding import shown
from braidmq.transport.door import Door, Place
from braidmq.transport.relay import (
    Allowance,
    RefusedBytesError,
    Relay,
    Relayed,
    watch_over,
)

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client of gRPC sends first."""

RELAYS: Final = 2
"""Threads that move the bytes of known peers; strangers have one of their own."""

STRANGER_REQUEST_BYTES: Final = REQUEST_BYTES_MAX + 64 * KIB
"""What a stranger may send at most: the first call of a connection may be a long one."""

STRANGERS_BYTES: Final = 32 * MIB
"""And all strangers together, beyond the few bytes that each may send in any case."""


SOCKET: Final = "flight"
MEMORY_DIR: Final = Path("/dev/shm")  # noqa: S108 - the directory in it is for this user only

KNOWN_SHARE: Final = 8
"""One place in so many is for strangers: those with a key may hold all others."""

_log = structlog.get_logger(__name__)


def _directory_for_socket(data_dir: Path) -> Path:
    """Return a new directory, for this user only, in which a socket can be bound."""
    problems: list[str] = []
    for parent in (None, MEMORY_DIR, data_dir):
        try:
            path = Path(tempfile.mkdtemp(prefix="braidmq-", dir=parent))
        except OSError as error:
            problems.append(f"{parent or 'the temporary one'}: {error.strerror}")
            continue
        try:
            with socket.socket(socket.AF_UNIX) as trial:
                trial.bind(str(path / SOCKET))  # it may have no room, or too long a path
            (path / SOCKET).unlink()
        except OSError as error:
            problems.append(f"{path.parent}: {error.strerror or error}")
            shutil.rmtree(path, ignore_errors=True)
        else:
            return path
    raise NoSocketError(f"no directory has room for a socket: {'; '.join(problems)}")


class Inner:
    """The Unix socket that gRPC listens on: made by gRPC at `path`, then without a name.

    Only this process can connect to it, so no peer gets past the front.
    """

    def __init__(self, data_dir: Path) -> None:
        """Find a place for the socket: a start on a full disk must succeed.

        Raises:
            NoSocketError: No directory has room for it.
        """
        self._directory = _directory_for_socket(data_dir)
        self.path = str(self._directory / SOCKET)
        # What others cannot guess: a name that is taken would keep a connection out.
        self._token = secrets.token_hex(16)
        self._number = count(1)
        self._held = -1

    def hide(self) -> None:
        """Take the socket's name away; connections are made through a descriptor of it."""
        self._held = os.open(self.path, os.O_PATH)
        self.remove()

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self._directory, ignore_errors=True)

    def connect(self) -> tuple[socket.socket, str]:
        """Return a connection to gRPC, and the name by which gRPC knows its peer.

        Raises:
            OSError: gRPC cannot take it now, or there is no descriptor left.
        """
        # A name is never used twice: a call may ask for its connection after it was closed.
        name = f"braidmq-{self._token}-{next(self._number)}"
        inner = socket.socket(socket.AF_UNIX)
        try:
            inner.setblocking(False)  # noqa: FBT003 - the socket's signature
            inner.bind(f"\0{name}")
            inner.connect(f"/proc/self/fd/{self._held}")
        except OSError:
            inner.close()
            raise
        return inner, f"unix-abstract:{name}"

    def close(self) -> None:
        """Give the descriptor back."""
        if self._held >= 0:
            os.close(self._held)
            self._held = -1


class Front:
    """Accepts the endpoint's connections; everything but `arrived` is for the event loop."""

    def __init__(
        self,
        inner: Inner,
        *,
        door: Door,
        connections_max: int,
        handshake_timeout_s: float,
        memory_bytes: int,
        tls: ssl.SSLContext | None,
        refused: Counter[str],
    ) -> None:
        self._inner = inner
        self._door = door
        self._connections_max = connections_max
        self._handshake_timeout_s = handshake_timeout_s
        self._tls = tls
        self._refused = refused
        self._ledger = Ledger(memory_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acceptor: Acceptor | None = None
        self._relays: list[Relay] = []
        self._visitors: dict[Relayed, Visitor] = {}  # the oldest first
        self._by_name: dict[str, Visitor] = {}
        self.welcome: Callable[[Visitor], None] = lambda _visitor: None
        """Is called with every new visitor."""

        self.met: Callable[[str], None] = lambda _reason: None
        """Is told the limit for which a connection was closed."""

    def start(self, bound: socket.socket) -> None:
        """Accept connections on *bound*."""
        self._loop = asyncio.get_running_loop()
        strangers = Allowance(STRANGER_REQUEST_BYTES, STRANGERS_BYTES)
        self._relays = [Relay("braidmq-flight-strangers", strangers)]
        self._relays += [Relay(f"braidmq-flight-relay-{n}") for n in range(RELAYS)]
        self._acceptor = Acceptor(
            bound, admit=self._admit, take=self._take, short=self._door.shed
        )
        self._acceptor.start()

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._acceptor is not None:
            self._acceptor.close()

    def visitors(self) -> list[Visitor]:
        """Return the open connections, the oldest first."""
        return list(self._visitors.values())

    def close(self) -> None:
        """Close every connection and end the threads; from another thread than the loop's."""
        for relay in self._relays:
            relay.close()
        self._inner.close()

    # Accepting.

    def _admit(self, address: str) -> Place:
        is_full = len(self._visitors) >= self._connections_max and not self._make_room()
        place = Place(None, address, "connections") if is_full else self._door.enter(address)
        if place.refusal:
            self._refused[place.refusal] += 1
        return place

    def _make_room(self) -> bool:
        """Close the connection that is missed least; return whether there was one."""
        victim = to_leave(self._visitors.values())
        if victim is not None:
            self._evict(victim)
        return victim is not None

    def _evict(self, victim: Visitor) -> None:
        self._refused["connections"] += 1
        self._leave(victim)
        victim.relayed.abort()

    def _take(self, raw: socket.socket, place: Place) -> None:
        assert self._loop is not None
        try:
            name = raw.getpeername()
            watch_over(raw)
            peer: socket.socket = raw
            if self._tls is not None:
                peer = self._tls.wrap_socket(
                    raw, server_side=True, do_handshake_on_connect=False
                )
        except OSError:  # the peer is gone already
            raw.close()
            place.leave()
            return

        def make(visitor: Visitor) -> Relayed:
            return Relayed(
                peer,
                preface=PREFACE,
                connect=self._connect,
                closed=self._closed,
                inspect_up=visitor.up,
                inspect_down=visitor.down,
            )

        visitor = Visitor(self._ledger, place, shown(str(name[0]), int(name[1])), make)
        relayed = visitor.relayed
        self._visitors[relayed] = visitor
        self._ledger.enter(visitor)
        place.evict = relayed.abort
        visitor.deadline = self._loop.call_later(self._handshake_timeout_s, relayed.abort)
        self.welcome(visitor)
        self._relays[0].carry(relayed)

    def _left(self, relayed: Relayed) -> None:
        visitor = self._visitors.get(relayed)
        if visitor is not None:
            if relayed.refusal is not None:
                self._tell_refusal(visitor, relayed.refusal)
            elif visitor.principal is None:
                self._refused["unauthenticated"] += 1
            self._leave(visitor)

    def _tell_refusal(self, visitor: Visitor, refusal: RefusedBytesError) -> None:
        self._refused[refusal.reason] += 1
        self.met(refusal.reason)
        if visitor.principal is not None:  # strangers could fill the disk with lines
            _log.warning(
                f"a Flight connection is closed: {refusal}",
                limit=refusal.reason,
                principal=visitor.name,
                peer=visitor.peer,
            )

    def _leave(self, visitor: Visitor) -> None:
        self._visitors.pop(visitor.relayed, None)
        self._ledger.leave(visitor)
        if visitor.deadline is not None:
            visitor.deadline.cancel()
        visitor.place.leave()

    def _welcome_known(self, visitor: Visitor) -> None:
        if visitor.deadline is not None:
            visitor.deadline.cancel()
        visitor.place.known()
        if visitor.relayed not in self._visitors:
            return  # it has left meanwhile
        known = sum(one.principal is not None for one in self._visitors.values())
        share = self._connections_max // KNOWN_SHARE
        if known > max(1, self._connections_max - max(1, share)):
            self._evict(to_yield(self._visitors.values(), visitor))

    # On the threads of relays and calls.

    def _connect(self, relayed: Relayed) -> socket.socket:
        inner, name = self._inner.connect()
        visitor = self._visitors.get(relayed)
        if visitor is None:
            inner.close()
            raise ConnectionAbortedError("the connection was closed meanwhile")
        relayed.name = name
        self._by_name[name] = visitor
        return inner

    def _closed(self, relayed: Relayed) -> None:
        self._by_name.pop(relayed.name, None)
        self._soon(lambda: self._left(relayed))

    def arrived(self, call: Call, name: str) -> None:
        """Note that a call with a known key came by the connection of that name.

        Runs on a thread of gRPC.
        """
        visitor = self._by_name.get(name)
        if visitor is None:  # it was closed meanwhile
            return
        call.left = visitor.calls.discard
        visitor.calls.add(call)
        is_new = visitor.principal is None
        visitor.principal = call.principal
        if is_new:
            relays = self._relays[1:]
            visitor.relayed.open_up(relays[visitor.number % len(relays)])
            self._soon(lambda: self._welcome_known(visitor))

    def _soon(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and its places with it
            self._loop.call_soon_threadsafe(act)
