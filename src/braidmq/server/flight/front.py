"""The front of the Flight endpoint: who may connect, before gRPC sees a byte.

gRPC accepts every connection, and takes a whole message in before the API key in its headers
can be judged. So gRPC listens on a Unix socket without a name, and the connections of the
endpoint's address come here: each takes a place at the door, has its TLS handshake here, and
stays a stranger, with a deadline and few bytes, until one of its calls has shown a key. Bytes
are moved by the threads of `braidmq.transport.relay`.

A call names the connection that it came by: each has a name on the Unix socket, which gRPC
reports as the call's peer.
"""

import asyncio
import os
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

from braidmq.base.limits import KIB, MIB
from braidmq.columnar.flight.requests import REQUEST_BYTES_MAX
from braidmq.server.flight.calls import Call
from braidmq.transport.accepting import Acceptor
from braidmq.transport.binding import shown
from braidmq.transport.door import Door, Place
from braidmq.transport.relay import Allowance, Relay, Relayed, watch_over

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""What every client of gRPC sends first."""

RELAYS: Final = 2
"""Threads that move the bytes of known peers; strangers have one of their own."""

STRANGER_REQUEST_BYTES: Final = REQUEST_BYTES_MAX + 64 * KIB
"""What a stranger may send at most: the first call of a connection may be a long one."""

STRANGERS_BYTES: Final = 32 * MIB
"""And all strangers together, beyond the few bytes that each may send in any case."""


class Inner:
    """The Unix socket that gRPC listens on: made by gRPC at `path`, then without a name.

    Only this process can connect to it, so no peer gets past the front.
    """

    def __init__(self) -> None:
        self._directory = tempfile.mkdtemp(prefix="braidmq-")  # which only this user may enter
        self.path = str(Path(self._directory) / "flight")
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
        name = f"braidmq-{os.getpid()}-{next(self._number)}"
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


class Visitor:
    """One connection of the endpoint's address."""

    def __init__(self, relayed: Relayed, place: Place, peer: str) -> None:
        self.relayed = relayed
        self.place = place
        self.peer = peer
        self.number = 0
        self.since_us = 0
        self.principal: str | None = None
        self.calls: set[Call] = set()
        self.deadline: asyncio.TimerHandle | None = None
        self._seen_bytes = -1
        self._seen_at = 0.0

    @property
    def moved(self) -> int:
        """Bytes that were moved in both directions."""
        return self.relayed.up.moved + self.relayed.down.moved

    def moved_for_one(self) -> int:
        """Return the bytes that were moved, if one call alone can have caused it."""
        return self.moved if len(self.calls) == 1 else 0

    def silent_s(self, now: float) -> float:
        """Return for how long nothing was moved; called again and again."""
        if self.moved != self._seen_bytes:
            self._seen_bytes, self._seen_at = self.moved, now
        return now - self._seen_at


class Front:
    """Accepts the endpoint's connections; everything but `arrived` is for the event loop."""

    def __init__(
        self,
        inner: Inner,
        *,
        door: Door,
        connections_max: int,
        handshake_timeout_s: float,
        tls: ssl.SSLContext | None,
        refused: Counter[str],
    ) -> None:
        self._inner = inner
        self._door = door
        self._connections_max = connections_max
        self._handshake_timeout_s = handshake_timeout_s
        self._tls = tls
        self._refused = refused
        self._loop: asyncio.AbstractEventLoop | None = None
        self._acceptor: Acceptor | None = None
        self._relays: list[Relay] = []
        self._visitors: dict[Relayed, Visitor] = {}  # the oldest first
        self._by_name: dict[str, Visitor] = {}
        self.welcome: Callable[[Visitor], None] = lambda _visitor: None
        """Is called with every new visitor."""

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
        """Close the connection that is missed least; return whether there was one.

        Clients connect again for their next call, so one without calls can be closed: that of a
        stranger, else one of the principal that has the most.
        """
        idle = [one for one in self._visitors.values() if not one.calls]
        strangers = (one for one in idle if one.principal is None)
        held = Counter(one.principal for one in self._visitors.values())
        greediest = max(idle, key=lambda one: held[one.principal], default=None)
        victim = next(strangers, greediest)
        if victim is None:
            return False
        self._refused["connections"] += 1
        self._leave(victim)
        victim.relayed.abort()
        return True

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
        relayed = Relayed(peer, preface=PREFACE, connect=self._connect, closed=self._closed)
        visitor = Visitor(relayed, place, shown(str(name[0]), int(name[1])))
        self._visitors[relayed] = visitor
        place.evict = relayed.abort
        visitor.deadline = self._loop.call_later(self._handshake_timeout_s, relayed.abort)
        self.welcome(visitor)
        self._relays[0].carry(relayed)

    def _left(self, relayed: Relayed) -> None:
        visitor = self._visitors.get(relayed)
        if visitor is not None:
            if visitor.principal is None:
                self._refused["unauthenticated"] += 1
            self._leave(visitor)

    def _leave(self, visitor: Visitor) -> None:
        self._visitors.pop(visitor.relayed, None)
        if visitor.deadline is not None:
            visitor.deadline.cancel()
        visitor.place.leave()

    def _welcome_known(self, visitor: Visitor) -> None:
        if visitor.deadline is not None:
            visitor.deadline.cancel()
        visitor.place.known()

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
        call.moved = visitor.moved_for_one
        call.abort = visitor.relayed.abort
        call.left = visitor.calls.discard
        visitor.calls.add(call)
        is_new = visitor.principal is None
        visitor.principal = call.principal.name
        if is_new:
            relays = self._relays[1:]
            visitor.relayed.open_up(relays[visitor.number % len(relays)])
            self._soon(lambda: self._welcome_known(visitor))

    def _soon(self, act: Callable[[], None]) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended, and its places with it
            self._loop.call_soon_threadsafe(act)
