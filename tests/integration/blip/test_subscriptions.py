"""Subscriptions: how long they live, whose they are, and who shares them."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip.peer import (
    Peer,
    ack,
    broker_at,
    connected,
    credit,
    key_config,
    not_found,
    poll,
    publish,
    unsubscribe,
    until,
    until_committed,
)

pytestmark = pytest.mark.asyncio

LEASE_S = 86_400
LEASE_QOS0_S = 300
TWO_KEYS = {"keys": [key_config("ada", "ada-key"), key_config("bob", "bob-key")]}


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with broker_at() as running:
        yield running


def moved(clock: FakeClock, seconds: float) -> FakeClock:
    """Return a clock for the next broker, *seconds* after the last."""
    return FakeClock(clock.now_us() + int(seconds * 1_000_000))


async def is_alive(peer: Peer, subscription: int) -> bool:
    answer = await peer.poll(subscription)
    return answer is None or answer.kind == 3


# Lifetime.


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscription_outlives_its_connection(broker: RunningBroker, qos: int) -> None:
    """What is published while nobody is connected is there for the next connection."""
    async with connected(broker) as first:
        subscription = await first.subscribe("t", qos)
    async with connected(broker) as second:
        await second.publish("t", b"meanwhile", qos=qos)
    async with connected(broker) as third:
        assert b"meanwhile" == (await third.take(subscription))[1]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_durable_subscription_survives_a_restart(tmp_path: Path, crash: bool) -> None:
    """Acknowledgements, open tags and the backlog are as they were, by the same id."""
    directory = tmp_path / "data"
    clock = FakeClock()
    async with broker_at(directory, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(6)))
        tags = [(await peer.take(subscription))[0] for _ in range(3)]
        await peer.acknowledge(subscription, tags[0], tags[2])
        if crash:
            shutil.copytree(directory, tmp_path / "copy")
            directory = tmp_path / "copy"
    async with broker_at(directory, moved(clock, 1)) as broker, connected(broker) as peer:
        assert (tags[1], b"1") == await peer.take(subscription)
        peer.send(ack(tags[0], subscription))
        await peer.expect(not_found(tags[0]))
        rest = [await peer.take(subscription) for _ in range(3)]
        assert [b"3", b"4", b"5"] == [message for _, message in rest]
        assert None is await peer.poll(subscription)


async def test_a_tag_is_open_after_a_restart_before_it_is_handed_out_again(
    tmp_path: Path,
) -> None:
    """A consumer that was cut off by the restart may still acknowledge what it had."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b", b"c")
        first, _ = await peer.take(subscription)
        second, _ = await peer.take(subscription)
    async with broker_at(tmp_path, moved(clock, 1)) as broker, connected(broker) as peer:
        peer.send(ack(second, subscription))
        await peer.expect_silence()
        peer.send(ack(second + 1, subscription))
        await peer.expect(not_found(second + 1))

        assert (first, b"a") == await peer.take(subscription)
        assert b"c" == (await peer.take(subscription))[1]
        assert None is await peer.poll(subscription)


async def test_a_memory_only_subscription_ends_with_the_broker(tmp_path: Path) -> None:
    """Only QoS 1 subscriptions survive a restart; the id of the other is 404, for ever."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))
        assert subscription < await peer.subscribe("t", 0)


async def test_a_backlog_far_beyond_the_window_survives_restarts(tmp_path: Path) -> None:
    """Read back from the log, in order, once each, with a restart in the middle of it."""
    clock = FakeClock()
    count = 400
    seen: list[bytes] = []
    async with (
        broker_at(tmp_path, clock, delivery={"window": 8}) as broker,
        connected(broker) as peer,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", *(b"%d" % number for number in range(count)))
    for _ in range(4):
        clock = moved(clock, 1)
        async with (
            broker_at(tmp_path, clock, delivery={"window": 8}) as broker,
            connected(broker) as peer,
        ):
            for _ in range(count // 4):
                tag, message = await peer.take(subscription)
                seen.append(message)
                peer.send(ack(tag, subscription))
            await peer.expect_silence()

    assert [b"%d" % number for number in range(count)] == seen


# Leases.


@pytest.mark.parametrize(("qos", "lease_s"), [(1, LEASE_S), (0, LEASE_QOS0_S)])
async def test_an_unused_subscription_ends(
    broker: RunningBroker, qos: int, lease_s: float
) -> None:
    """Unused for its lease it ends with a log line and a count, and answers 404."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", qos)
        broker.clock.advance(lease_s - 2)
        assert await is_alive(peer, subscription)
        with structlog.testing.capture_logs() as lines:
            broker.clock.advance(lease_s + 1)
        peer.send(poll(5, subscription), ack(6, subscription), credit(7, subscription, 1))
        await peer.expect(not_found(5), not_found(6), not_found(7))

        assert 1 == broker.daemon.status.metrics().subscriptions_ended["lease"]
        assert [subscription] == [
            line["subscription"] for line in lines if "lease" in line["event"]
        ]


async def test_the_lease_is_configured() -> None:
    """`blip.subscription_lease_s` and `blip.subscription_lease_qos0_s` decide."""
    leases = {"subscription_lease_s": 50, "subscription_lease_qos0_s": 20}
    async with broker_at(blip=leases) as broker, connected(broker) as peer:
        durable = await peer.subscribe("t", 1)
        volatile = await peer.subscribe("t", 0)
        broker.clock.advance(30)
        peer.send(poll(5, volatile))
        await peer.expect(not_found(5))
        assert await is_alive(peer, durable)
        broker.clock.advance(60)
        peer.send(poll(6, durable))
        await peer.expect(not_found(6))


@pytest.mark.parametrize("use", ["POLL", "ACK", "CREDIT", "held credit"])
async def test_use_renews_the_lease(broker: RunningBroker, use: str) -> None:
    """POLL, ACK, CREDIT and held credit are use."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *[b"x"] * 4)
        tags = [(await peer.take(subscription))[0] for _ in range(3)]
        if use == "held credit":
            await peer.publish("t")
            peer.send(credit(5, subscription, 1000))
            await peer.next()
        for _ in range(3):
            broker.clock.advance(LEASE_S * 0.7)
            if use == "POLL":
                peer.send(poll(5, subscription))
                await peer.next()
            elif use == "ACK":
                peer.send(ack(tags.pop(), subscription))
            elif use == "CREDIT":
                peer.send(credit(5, subscription, 0))
            if use != "held credit":
                await peer.expect_silence()
        await until_committed(broker)

        assert 1 == broker.daemon.status.metrics().subscriptions


async def test_a_delivery_alone_does_not_renew_the_lease(broker: RunningBroker) -> None:
    """Messages that come in are no use: an abandoned subscription ends all the same."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
        for _ in range(4):
            broker.clock.advance(100)
            await peer.publish("t", b"x")
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


async def test_downtime_does_not_count(tmp_path: Path) -> None:
    """A broker that was down for a week did not give anybody a chance to use anything."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S * 0.5)
    clock = moved(clock, 7 * LEASE_S)
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        clock.advance(LEASE_S * 0.4)
        assert await is_alive(peer, subscription)


async def test_idle_time_before_a_restart_counts(tmp_path: Path) -> None:
    """Otherwise a broker that restarts daily would never end a subscription."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S * 0.6)
    clock = moved(clock, 10)
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        clock.advance(LEASE_S * 0.6)
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


async def test_an_ended_lease_is_a_record(tmp_path: Path) -> None:
    """The end survives a restart: a client cannot be told 404 and then something else."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S + 1)
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))
    async with broker_at(tmp_path, moved(clock, 1)) as broker, connected(broker) as peer:
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


# Ownership.


async def test_a_subscription_of_another_principal_is_404() -> None:
    """POLL, ACK, UNSUBSCRIBE and CREDIT of another's subscription: as if it did not exist."""
    async with (
        broker_at(auth=TWO_KEYS) as broker,
        connected(broker, key="ada-key") as ada,
        connected(broker, key="bob-key") as bob,
    ):
        subscription = await ada.subscribe("t")
        await ada.publish("t", b"hers", b"hers too")
        tag, _ = await ada.take(subscription)
        bob.send(
            poll(5, subscription),
            ack(tag, subscription),
            unsubscribe(6, subscription),
            credit(7, subscription, 10),
        )
        await bob.expect(not_found(5), not_found(tag), not_found(6), not_found(7))
        await ada.acknowledge(subscription, tag)
        assert b"hers too" == (await ada.take(subscription))[1]


async def test_another_connection_of_the_same_principal_goes_on(tmp_path: Path) -> None:
    """It is the principal that owns it, not the connection, and not after a restart only."""
    async with broker_at(tmp_path, auth=TWO_KEYS) as broker:
        async with connected(broker, key="ada-key") as ada:
            subscription = await ada.subscribe("t")
            await ada.publish("t", b"1", b"2")
        async with connected(broker, key="ada-key") as ada:
            tag, message = await ada.take(subscription)
            assert b"1" == message
            await ada.acknowledge(subscription, tag)
    async with (
        broker_at(tmp_path, auth=TWO_KEYS) as broker,
        connected(broker, key="ada-key") as ada,
        connected(broker, key="bob-key") as bob,
    ):
        bob.send(poll(5, subscription))
        await bob.expect(not_found(5))
        assert b"2" == (await ada.take(subscription))[1]


# Competing consumers.


async def test_connections_on_one_id_compete(broker: RunningBroker) -> None:
    """Each message goes to one of them; together they get everything once."""
    async with connected(broker) as one, connected(broker) as two:
        subscription = await one.subscribe("t")
        await one.publish("t", *(b"%d" % number for number in range(10)))
        seen = []
        for _ in range(5):
            seen.append((await one.take(subscription))[1])
            seen.append((await two.take(subscription))[1])

        assert [b"%d" % number for number in range(10)] == seen
        assert None is await one.poll(subscription)
        assert None is await two.poll(subscription)


async def test_credit_is_shared_fairly(broker: RunningBroker) -> None:
    """Consumers with credit take turns."""
    async with connected(broker) as one, connected(broker) as two, connected(broker) as source:
        subscription = await one.subscribe("t")
        one.send(credit(5, subscription, 100))
        two.send(credit(5, subscription, 100))
        await one.expect_silence()
        await two.expect_silence()
        await source.publish("t", *(b"%d" % number for number in range(20)))
        await until(lambda: broker.daemon.status.metrics().messages_delivered == 20)
        for peer in (one, two):
            got = [await peer.next() for _ in range(10)]
            assert 10 == len({answer.correlation_id for answer in got})
            await peer.expect_silence()


async def test_what_one_consumer_lost_another_one_with_credit_is_pushed(
    broker: RunningBroker,
) -> None:
    """A consumer that goes away gives its messages to those that wait."""
    async with connected(broker) as one:
        subscription = await one.subscribe("t")
        async with connected(broker) as two:
            await two.publish("t", b"a")
            tag, _ = await two.take(subscription)
            one.send(credit(5, subscription, 3))
            await one.expect_silence()
        await one.expect(publish(tag, "t", b"a"))
