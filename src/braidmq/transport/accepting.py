"""Accepting: connections of a bound TCP socket, each with its place at the door.

The event loop's own servers accept whatever the kernel has queued, and close what is refused a
turn later: for that long, strangers hold any number of descriptors. Here a connection without a
place is closed before anything is made for it, and one turn accepts a bounded number.
"""

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final

from braidmq.transport.door import Place

BACKLOG: Final = 1024
"""Connections that the kernel may queue between two turns of the loop."""

ACCEPTS_PER_TURN: Final = 8
"""Further ones wait until these had a turn. A stranger can be evicted only by connections that
are accepted after it, so this also gives each the time to send its first bytes."""

PAUSE_S: Final = 0.2
"""How long a listener waits when the process or the system has no descriptor or memory left."""

_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """Accepts on *bound*: *admit* gives each address a place, *make* each place a protocol.

    *short* is called when there are no descriptors left. The protocol gives the place back when
    its connection is lost. With *take* instead of *make*, the socket itself is handed out with
    its place, and both are the taker's.
    """

    def __init__(
        self,
        bound: socket.socket,
        *,
        admit: Callable[[str], Place],
        make: Callable[[Place], asyncio.Protocol] | None = None,
        take: Callable[[socket.socket, Place], None] | None = None,
        short: Callable[[], None] = lambda: None,
    ) -> None:
        self._bound = bound
        self._admit = admit
        assert (make is None) != (take is None)
        self._make = make
        self._take = self._start if take is None else take
        self._short = short
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._is_open = False

    def start(self) -> None:
        """Listen, and accept connections."""
        self._bound.listen(BACKLOG)
        self._is_open = True
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def close(self) -> None:
        """Accept no more connections, and close the socket; those that are open go on."""
        if self._pause is not None:
            self._pause.cancel()
        elif self._is_open:
            self._loop.remove_reader(self._bound.fileno())
        self._is_open = False
        self._bound.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            try:
                raw, address = self._bound.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno in _SHORT:
                    self._wait()
                    return
                continue  # the peer is gone already; its error is reported here
            raw.setblocking(False)  # noqa: FBT003 - the socket's signature
            # A socket for IPv6 and IPv4 shows IPv4 peers as mapped addresses.
            place = self._admit(str(address[0]).removeprefix("::ffff:"))
            if place.refusal:
                raw.close()
                continue
            self._take(raw, place)

    def _start(self, raw: socket.socket, place: Place) -> None:
        starting = self._loop.create_task(self._carry(raw, place))
        self._starting.add(starting)
        starting.add_done_callback(self._starting.discard)

    async def _carry(self, raw: socket.socket, place: Place) -> None:
        make = self._make
        assert make is not None
        try:
            transport, _ = await self._loop.connect_accepted_socket(lambda: make(place), raw)
        except OSError:  # the peer is gone already
            raw.close()
            place.leave()
            return
        place.evict = transport.abort
        if place.is_evicted:
            transport.abort()

    def _wait(self) -> None:
        # The socket stays readable, so without a pause the loop would spin.
        self._loop.remove_reader(self._bound.fileno())
        self._pause = self._loop.call_later(PAUSE_S, self._go_on)
        self._short()

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._bound.fileno(), self._accept)
        self._accept()
