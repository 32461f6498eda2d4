"""Accepting connections, with real sockets."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from braidmq.transport import accepting
from braidmq.transport.accepting import ACCEPTS_PER_TURN, Acceptor
from braidmq.transport.binding import bind_tcp
from braidmq.transport.door import Door, Place
from tests.integration.blip.peer import until

pytestmark = pytest.mark.asyncio


class Guest(asyncio.Protocol):
    """A connection that keeps its place until it is lost."""

    def __init__(self, place: Place, guests: list["Guest"]) -> None:
        self.place = place
        self._guests = guests
        guests.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self.place.leave()
        self._guests.remove(self)


class ShortSocket(socket.socket):
    """A socket whose next accepts fail with these error numbers."""

    failures: list[int]

    def accept(self) -> tuple[socket.socket, object]:
        if self.failures:
            raise OSError(self.failures.pop(0), "no more")
        return super().accept()


class Hall:
    """An acceptor and its guests."""

    def __init__(self, door: Door) -> None:
        self.door = door
        self.guests: list[Guest] = []
        self.refused: list[str] = []
        self.short = 0
        bound = bind_tcp("test", "127.0.0.1", 0)
        self.address: tuple[str, int] = bound.getsockname()
        self.bound = ShortSocket(fileno=bound.detach())
        self.bound.failures = []
        self.acceptor = Acceptor(
            self.bound,
            admit=self._admit,
            make=lambda place: Guest(place, self.guests),
            short=self._shed,
        )

    def _admit(self, address: str) -> Place:
        place = self.door.enter(address)
        if place.refusal:
            self.refused.append(place.refusal)
        return place

    def _shed(self) -> None:
        self.short += 1
        self.door.shed()


@asynccontextmanager
async def hall(*, connections: int = 100, strangers: int = 100) -> AsyncIterator[Hall]:
    """Yield an acceptor that accepts, and close all its connections in the end."""
    opened = Hall(Door(connections=connections, strangers=strangers))
    opened.acceptor.start()
    try:
        yield opened
    finally:
        opened.acceptor.close()
        opened.door.close()
        await until(lambda: not opened.guests)


def came(peer: socket.socket) -> bytes:
    """Wait for the end of a connection; b"" if it was closed, also by a reset."""
    peer.settimeout(10)
    try:
        return peer.recv(1)
    except ConnectionResetError:
        return b""


async def test_each_connection_has_a_place() -> None:
    """From accept until it is lost."""
    async with hall() as opened:
        peers = [socket.create_connection(opened.address) for _ in range(3)]
        await until(lambda: len(opened.guests) == 3)
        assert (3, {"127.0.0.1"}) == (
            opened.door.count(),
            {guest.place.address for guest in opened.guests},
        )
        for peer in peers:
            peer.close()
        await until(lambda: not opened.guests)

        assert 0 == opened.door.count()


async def test_a_connection_without_a_place_is_closed() -> None:
    """Nothing is made for it."""
    async with hall(connections=1) as opened:
        with socket.create_connection(opened.address):
            await until(lambda: opened.guests)
            opened.guests[0].place.known()
            with socket.create_connection(opened.address) as refused:
                assert b"" == await asyncio.to_thread(came, refused)

            assert 1 == len(opened.guests)
        assert ["connections"] == opened.refused


async def test_a_stranger_is_closed_for_a_newcomer() -> None:
    """Also if it is evicted in the turn in which it was accepted."""
    async with hall(strangers=2) as opened:
        peers = [socket.create_connection(opened.address) for _ in range(40)]
        for evicted in peers[:-2]:
            assert b"" == await asyncio.to_thread(came, evicted)
        await until(lambda: len(opened.guests) == 2)

        assert (2, []) == (opened.door.count(), opened.refused)
        for peer in peers:
            peer.close()


async def test_a_turn_accepts_a_bounded_number() -> None:
    """The rest stays in the kernel until those had a turn."""
    async with hall() as opened:
        peers = [socket.create_connection(opened.address) for _ in range(2 * ACCEPTS_PER_TURN)]
        while not opened.door.count():  # noqa: ASYNC110 - turn by turn
            await asyncio.sleep(0)
        assert ACCEPTS_PER_TURN == opened.door.count()
        await until(lambda: len(opened.guests) == len(peers))
        for peer in peers:
            peer.close()


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
async def test_without_descriptors_it_waits_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Strangers leave, and the listener neither spins nor stops."""
    monkeypatch.setattr(accepting, "PAUSE_S", 0.01)
    async with hall() as opened:
        with socket.create_connection(opened.address) as stranger:
            await until(lambda: opened.guests)
            opened.bound.failures = [number]
            with socket.create_connection(opened.address):
                assert b"" == await asyncio.to_thread(came, stranger)
                await until(lambda: len(opened.guests) == 1)

        assert 1 == opened.short


async def test_it_can_be_closed_while_it_waits() -> None:
    """A stop does not wait for descriptors."""
    async with hall() as opened:
        opened.bound.failures = [errno.EMFILE]
        with socket.create_connection(opened.address):
            await until(lambda: opened.short)


async def test_a_peer_that_is_gone_already_is_passed_over() -> None:
    """Its error is not the listener's."""
    async with hall() as opened:
        opened.bound.failures = [errno.ECONNABORTED, errno.EPROTO]
        with socket.create_connection(opened.address):
            await until(lambda: opened.guests)

        assert [] == opened.bound.failures
