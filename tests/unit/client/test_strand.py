"""Client behaviour that all strands share."""

import asyncio
from collections.abc import Iterator

import pytest

import braidmq
from braidmq.client import publishing
from tests.unit.client.peer import die, ignore, quick
from tests.unit.client.strands import AnyPeer, every_strand, offline

pytestmark = [pytest.mark.asyncio, every_strand]


async def test_publish_returns_when_the_broker_has_confirmed(strand: type[AnyPeer]) -> None:
    """The receipt never precedes the broker's confirmation."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.hold(peer.confirming)
        publishing_one = asyncio.create_task(client.publish("orders", b"1"))
        await peer.until(lambda: peer.held)

        assert not publishing_one.done()
        peer.release()
        receipt = await publishing_one
        assert ("orders", 1, True, False) == (
            receipt.topic,
            receipt.qos,
            receipt.durable,
            receipt.repeated,
        )
        assert [b"1"] == peer.payloads()


async def test_a_publish_has_an_unknown_outcome_when_the_broker_dies_before_confirming(
    strand: type[AnyPeer],
) -> None:
    """An unconfirmed message is not reported as stored, nor resent without `retry`."""
    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.once(peer.confirming, die)
        with pytest.raises(braidmq.OutcomeUnknown, match="lost the connection"):
            await client.publish("orders", b"1")
        await client.publish("orders", b"2")

        assert 1 == peer.payloads().count(b"2")
        assert peer.payloads().count(b"1") <= 1


async def test_retry_resends_what_was_not_confirmed(strand: type[AnyPeer]) -> None:
    """With `retry` a message may be stored twice; the receipt says that it was repeated."""
    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        peer.once(peer.confirming, die)
        receipt = await client.publish("orders", b"1", retry=True)
        peer.once(peer.confirming, die)
        (of_many,) = await client.publish_many("orders", [b"2"], retry=True)

        assert receipt.repeated
        assert isinstance(of_many, braidmq.Receipt)
        assert of_many.repeated
        assert {b"1", b"2"} == set(peer.payloads())


async def test_a_refused_publish_says_why_and_does_not_disturb_the_others(
    strand: type[AnyPeer],
) -> None:
    """Two publishes share a write; the broker refuses one of them."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        for code in peer.permanent:
            peer.once(peer.publishing, peer.refusing(code, "because"))
            refused, accepted = await asyncio.gather(
                client.publish("orders", b"1"),
                client.publish("orders", b"2"),
                return_exceptions=True,
            )

            assert isinstance(refused, braidmq.PublishRefused)
            assert not isinstance(refused, braidmq.OutcomeUnknown)
            assert (code, "because") == (refused.code, refused.text)
            assert isinstance(accepted, braidmq.Receipt)


async def test_retry_does_not_resend_a_forbidden_message(strand: type[AnyPeer]) -> None:
    """The broker would only refuse it again."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        for number, code in enumerate(peer.permanent, 1):
            peer.refuse(peer.publishing, code)
            with pytest.raises(braidmq.PublishRefused):
                await client.publish("orders", b"1", retry=True)

            assert number == peer.count(peer.publishing)


async def test_publishing_waits_while_the_broker_is_down(strand: type[AnyPeer]) -> None:
    """Nothing was sent yet, so waiting risks no duplicate."""
    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        await peer.stop()
        await offline(client)
        waiting = asyncio.create_task(client.publish("orders", b"1"))
        await peer.start()

        assert (await waiting).durable
        assert not (await waiting).repeated


async def test_a_publish_is_not_sent_when_the_broker_stays_down(strand: type[AnyPeer]) -> None:
    """After `offline_timeout` the error says that the message was certainly not stored."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(offline_timeout=0.02)) as client,
    ):
        await peer.stop()
        await offline(client)
        with pytest.raises(braidmq.NotSent, match="no connection for"):
            await client.publish("orders", b"1")
        errors = await client.publish_many("orders", [b"1", b"2"])

        assert [braidmq.NotSent] * 2 == [type(error) for error in errors]


async def test_a_retry_that_cannot_be_sent_leaves_the_outcome_unknown(
    strand: type[AnyPeer],
) -> None:
    """The first attempt may have been stored."""
    async with (
        strand() as peer,
        braidmq.connect(peer.url, **quick(offline_timeout=0.02)) as client,
    ):
        peer.hold(peer.confirming)
        one = asyncio.create_task(client.publish("orders", b"1", retry=True))
        many = asyncio.create_task(client.publish_many("orders", [b"2"], retry=True))
        await peer.until(lambda: peer.held)
        await peer.stop()
        with pytest.raises(braidmq.OutcomeUnknown):
            await one

        assert [braidmq.OutcomeUnknown] == [type(error) for error in await many]


async def test_publish_many_bounds_the_chunks_in_flight(
    strand: type[AnyPeer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the broker confirms nothing, a long generator is not read further."""
    monkeypatch.setattr(publishing, "CHUNK_COUNT", 50)
    read = 0

    def payloads() -> Iterator[bytes]:
        nonlocal read
        for read in range(1000):  # noqa: B007 - the assertion reads it
            yield b"1"

    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.hold(peer.confirming)
        sending = asyncio.create_task(client.publish_many("orders", payloads()))
        await peer.until(lambda: peer.held)
        for _ in range(1000):
            await asyncio.sleep(0)

        assert publishing.FLIGHTS_MAX * publishing.CHUNK_COUNT - 1 == read
        peer.release()
        results = await sending
        assert [braidmq.Receipt] * 1000 == [type(result) for result in results]
        assert 1000 == len(peer.payloads())


async def test_a_cancelled_publish_does_not_disturb_the_others(strand: type[AnyPeer]) -> None:
    """Publishers share a connection, and no partial frame is left on it."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.hold(peer.confirming)
        large = b"1" * 100_000
        tasks = [asyncio.create_task(client.publish("orders", large)) for _ in range(20)]
        await peer.until(lambda: peer.held)
        for task in tasks[::2]:
            task.cancel()
        peer.release()
        await asyncio.gather(*tasks, return_exceptions=True)

        assert all(task.result().durable for task in tasks[1::2])
        assert {large} == set(peer.payloads())


async def test_cancelling_a_publish_that_waits_for_buffer_space_sends_no_partial_frame(
    strand: type[AnyPeer],
) -> None:
    """A cancelled publish has sent its whole frame or nothing: the stream stays readable."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.lines[0].pause_reading()
        large = b"1" * strand.large
        tasks = [asyncio.create_task(client.publish("orders", large)) for _ in range(40)]
        for _ in range(200):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        peer.lines[0].resume_reading()

        assert (await client.publish("orders", b"2")).durable
        assert len(peer.payloads()) < 40
        assert {large, b"2"} == set(peer.payloads())
        assert 1 == len(peer.lines)


async def test_ping_measures_a_round_trip(strand: type[AnyPeer]) -> None:
    """It is a fence, too: it waits until everything sent before is committed."""
    async with strand() as peer, braidmq.connect(peer.url, **quick()) as client:
        assert 0 < await client.ping() < 10
        peer.once(peer.ping, die)
        with pytest.raises(braidmq.ConnectionLost):
            await client.ping()


async def test_draining_waits_for_publishes_in_flight_and_refuses_new_work(
    strand: type[AnyPeer],
) -> None:
    """After a drain, closing loses nothing."""
    async with strand() as peer, braidmq.connect(peer.url) as client:
        peer.hold(peer.confirming)
        in_flight = asyncio.create_task(client.publish("orders", b"1"))
        await peer.until(lambda: peer.held)
        draining = [asyncio.create_task(client.drain()) for _ in range(2)]
        await asyncio.sleep(0)
        for attempt in (client.publish("orders", b"2"), client.publish_many("orders", [b"3"])):
            with pytest.raises(braidmq.Closed, match="draining"):
                await attempt
        with pytest.raises(braidmq.Closed, match="draining"):
            client.subscribe("orders")

        assert not any(task.done() for task in draining)
        peer.release()
        await asyncio.gather(*draining)
        assert in_flight.done()


async def test_a_publish_after_the_connection_ended_is_not_sent(strand: type[AnyPeer]) -> None:
    """Without reconnecting, the message is certainly not stored."""
    async with strand() as peer, braidmq.connect(peer.url, reconnect=False) as client:
        peer.lines[0].die()
        await offline(client)
        await client.drain()
        with pytest.raises(braidmq.NotSent, match="lost the connection"):
            await client.publish("orders", b"1")


async def test_closing_does_not_wait_forever(strand: type[AnyPeer]) -> None:
    """After `close_timeout` the client gives up on a broker that confirms nothing."""
    async with strand() as peer:
        async with braidmq.connect(peer.url, close_timeout=0.02) as client:
            peer.script(peer.confirming, ignore)
            peer.script(peer.ping, ignore)
            unconfirmed = asyncio.create_task(client.publish("orders", b"1"))
            await peer.until(lambda: peer.count(peer.confirming))
        await peer.until(lambda: not peer.open_lines())
        with pytest.raises(braidmq.OutcomeUnknown):
            await unconfirmed


async def test_a_closed_client_raises_closed(strand: type[AnyPeer]) -> None:
    """Publish, ping and subscribe all raise it; closing again does nothing."""
    async with strand() as peer:
        client = await braidmq.connect(peer.url)
        await client.close()
        await client.close()
        for attempt in (client.publish("orders", b"1"), client.ping()):
            with pytest.raises(braidmq.Closed):
                await attempt
        with pytest.raises(braidmq.Closed):
            client.subscribe("orders")


async def test_callbacks_report_disconnect_and_reconnect(strand: type[AnyPeer]) -> None:
    """Each is called once; `on_disconnect` gets the error that broke the connection."""
    lost: asyncio.Queue[braidmq.ConnectionLost] = asyncio.Queue()
    back = asyncio.Event()
    options = quick(on_disconnect=lost.put_nowait, on_reconnect=back.set)
    async with strand() as peer, braidmq.connect(peer.url, **options):
        peer.lines[0].die()

        assert isinstance(await lost.get(), braidmq.ConnectionLost)
        await back.wait()
        assert 2 == len(peer.lines)
