"""A link: a connection that is re-established when it breaks."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.client.blip.connection import BlipConnection, Receiver
from braidmq.client.connection import dial
from braidmq.client.errors import (
    AuthenticationFailed,
    ClientError,
    Closed,
    ConnectionFailed,
    ConnectionLost,
)
from braidmq.client.link import Dialer, Health, Link, Owner, backoff
from braidmq.client.options import Callback, Options
from braidmq.client.url import parse
from braidmq.wire.blip import frames
from tests.unit.client.blip.peer import Peer
from tests.unit.client.peer import die, quick

pytestmark = pytest.mark.asyncio


class RecordingOwner(Owner[BlipConnection]):
    """An owner that records the calls it gets."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.refuse: list[ClientError] = []

    async def prepare(self, connection: BlipConnection) -> None:
        self.calls.append("prepare")
        if not await connection.fence()[1]:
            raise connection.lost()
        if self.refuse:
            raise self.refuse.pop()

    def went_down(self) -> None:
        self.calls.append("down")

    def ended(self, error: ClientError) -> None:
        self.calls.append(f"end: {type(error).__name__}")


def dialer(peer: Peer, options: Options) -> Dialer[BlipConnection, Receiver]:
    return Dialer(parse(peer.url), options, partial(dial, BlipConnection))


@asynccontextmanager
async def linked(
    peer: Peer, owner: Owner[BlipConnection], options: Options | None = None
) -> AsyncIterator[Link[BlipConnection]]:
    link = Link(dialer(peer, options or Options(**quick())), owner, Receiver())
    await link.open()
    try:
        yield link
    finally:
        await link.close()


async def test_a_broken_connection_is_replaced_and_prepared() -> None:
    """Only the owner sees a new connection before it is prepared."""
    owner = RecordingOwner()
    async with Peer() as peer, linked(peer, owner) as link:
        first = await link.ready()
        peer.lines[0].die()
        await peer.until(lambda: len(peer.lines) == 2)
        second = await link.ready()

        assert first is not second
        assert ["prepare", "down", "prepare"] == owner.calls
        assert await second.settle()


async def test_a_link_retries_while_the_broker_is_down() -> None:
    """It connects once the broker is back."""
    async with Peer() as peer, linked(peer, Owner()) as link:
        await peer.stop()
        waiting = asyncio.create_task(link.ready())
        await peer.start()

        assert not (await waiting).is_lost


async def test_a_connection_that_breaks_during_preparation_is_replaced() -> None:
    """Preparation is part of connecting."""
    owner = RecordingOwner()
    async with Peer() as peer, linked(peer, owner) as link:
        peer.script(frames.PING, die)
        peer.lines[0].die()
        await peer.until(lambda: len(peer.lines) >= 3)
        del peer.scripts[frames.PING]
        await link.ready()

        assert owner.calls.count("prepare") >= 3
        assert 1 == owner.calls.count("down")


async def test_waiting_for_a_connection_times_out() -> None:
    """A call waits at most `offline_timeout` for a connection."""
    options = Options(**quick(offline_timeout=0.02))
    async with Peer() as peer, linked(peer, Owner(), options) as link:
        await peer.stop()
        while link.current is not None:  # noqa: ASYNC110 - each turn lets the loss arrive
            await asyncio.sleep(0)
        with pytest.raises(ConnectionFailed, match=r"no connection for 0.02 s"):
            await link.ready()


async def test_a_revoked_key_ends_the_link() -> None:
    """The link does not retry: that would hammer the broker or lock the client out."""
    owner = RecordingOwner()
    async with Peer() as peer, linked(peer, owner) as link:
        peer.refuse(frames.AUTH, 401, "invalid API key")
        peer.lines[0].die()
        await peer.until(lambda: len(peer.lines) == 2)
        for _ in range(2):
            with pytest.raises(AuthenticationFailed):
                await link.ready()

        assert "end: AuthenticationFailed" == owner.calls[-1]


async def test_a_failed_preparation_ends_the_link() -> None:
    """Unlike a lost connection, another error in preparation would only recur."""
    owner = RecordingOwner()
    async with Peer() as peer, linked(peer, owner) as link:
        owner.refuse = [ClientError("no")]
        peer.lines[0].die()
        await peer.until(lambda: len(peer.lines) == 2)
        with pytest.raises(ClientError, match="no"):
            await link.ready()


async def test_reconnecting_can_be_switched_off() -> None:
    """A lost connection then ends the link."""
    owner = RecordingOwner()
    async with Peer() as peer, linked(peer, owner, Options(reconnect=False)) as link:
        peer.lines[0].die()
        while link.end is None:  # noqa: ASYNC110 - each turn lets the loss arrive
            await asyncio.sleep(0)
        with pytest.raises(ConnectionLost):
            await link.ready()

        assert ["prepare", "down", "end: ConnectionLost"] == owner.calls


async def test_a_closed_link_stays_closed() -> None:
    """Even if it was about to reconnect."""
    async with Peer() as peer, linked(peer, Owner()) as link:
        await peer.stop()
        waiting = asyncio.create_task(link.ready())
        await asyncio.sleep(0)
        await link.close()

        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await link.ready()


async def test_a_link_that_was_closed_is_not_opened() -> None:
    """Not even dialled."""
    async with Peer() as peer:
        link = Link(dialer(peer, Options(**quick())), Owner(), Receiver())
        await link.close()
        with pytest.raises(Closed):
            await link.open()

        assert [] == peer.lines


async def test_a_first_connection_that_cannot_be_prepared_is_not_kept() -> None:
    """The caller gets the error, and the connection is closed."""
    owner = RecordingOwner()
    owner.refuse = [ClientError("no")]
    async with Peer() as peer:
        with pytest.raises(ClientError, match="no"):
            async with linked(peer, owner):
                pass
        await peer.until(lambda: not peer.open_lines())


async def test_callbacks_fire_on_the_first_loss_and_the_last_recovery() -> None:
    """A client with several connections reports one disconnect and one reconnect."""
    calls: list[str] = []
    back = asyncio.Event()

    def disconnected(error: ConnectionLost) -> None:
        calls.append(type(error).__name__)

    async def reconnected() -> None:
        calls.append("back")
        back.set()

    options = Options(**quick(on_disconnect=disconnected, on_reconnect=reconnected))
    async with Peer() as peer:
        shared = dialer(peer, options)
        links = [Link(shared, Owner(), Receiver()) for _ in range(2)]
        for link in links:
            await link.open()
        for line in peer.open_lines():
            line.die()
        await back.wait()

        assert ["ConnectionLost", "back"] == calls
        for link in links:
            await link.close()


async def test_a_loss_of_all_connections_is_logged_as_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Further losses are logged at INFO."""
    health = Health(Options())
    with caplog.at_level(logging.INFO, "braidmq.client"):
        for _ in range(2):
            health.broke(ConnectionLost("h:1", "reset"))

    assert [logging.WARNING, logging.INFO] == [record.levelno for record in caplog.records]
    assert {"lost the connection to h:1: reset; reconnecting"} == set(caplog.messages)


async def test_a_callback_that_raises_is_logged_and_harms_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The link reconnects all the same."""

    def careless(error: ConnectionLost) -> None:
        raise ZeroDivisionError

    options = Options(**quick(on_disconnect=careless))
    async with Peer() as peer, linked(peer, Owner(), options) as link:
        with caplog.at_level(logging.ERROR, "braidmq.client"):
            peer.lines[0].die()
            await peer.until(lambda: len(peer.lines) == 2)
            await link.ready()

        assert ["a callback raised"] == caplog.messages


async def test_a_link_that_ends_without_recovering_does_not_call_back() -> None:
    """Only a re-established connection triggers `on_reconnect`."""
    calls: list[str] = []
    called: Callback = lambda: calls.append("back")  # noqa: E731 - a one-line callback
    health = Health(Options(on_reconnect=called))
    health.broke(ConnectionLost("h:1", "reset"))
    health.healed(connected=False)
    await asyncio.sleep(0)

    assert [] == calls


async def test_a_connection_that_breaks_between_preparation_and_use_is_lost() -> None:
    """The owner is told, and the link tries again."""

    class Unlucky(RecordingOwner):
        async def prepare(self, connection: BlipConnection) -> None:
            await super().prepare(connection)
            if self.calls == ["prepare", "down", "prepare"]:
                connection.abort("bad luck")
                await connection.fence()[1]

    unlucky = Unlucky()
    async with Peer() as peer, linked(peer, unlucky) as link:
        peer.lines[0].die()
        await peer.until(lambda: len(peer.lines) == 3)
        await link.ready()

        assert ["prepare", "down"] * 2 + ["prepare"] == unlucky.calls


async def test_delays_double_up_to_the_maximum() -> None:
    """Without jitter, each delay is twice the one before, up to the maximum."""
    delays = backoff(0.1, 1.0, dice=lambda: 0.0)

    assert [0.1, 0.2, 0.4, 0.8, 1.0, 1.0] == pytest.approx([next(delays) for _ in range(6)])


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(0, 2000))
async def test_jitter_shortens_a_delay_by_at_most_half(jitter: float, attempts: int) -> None:
    """Jitter spreads clients that broke together; no number of attempts overflows."""
    delays = backoff(0.1, 5.0, dice=lambda: jitter)
    plain = backoff(0.1, 5.0, dice=lambda: 0.0)
    for _ in range(attempts):
        next(delays)
        next(plain)
    longest = next(plain)

    assert longest / 2 <= next(delays) <= longest


async def test_two_clients_do_not_reconnect_at_the_same_moment() -> None:
    """By default the jitter is random."""
    assert 1 < len({next(backoff(0.1, 1.0)) for _ in range(10)})
