"""Subscriptions: their lifetime, their owner, and the consumers that share them."""

import shutil
from pathlib import Path

import pytest
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


def clock_after(clock: FakeClock, seconds: float) -> FakeClock:
    """Return a clock for the next broker, *seconds* later than *clock*."""
    return FakeClock(clock.now_us() + int(seconds * 1_000_000))


async def is_alive(peer: Peer, subscription: int) -> bool:
    answer = await peer.poll(subscription)
    return answer is None or answer.kind == 3


# Lifetime.


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_subscription_outlives_its_connection(broker: RunningBroker, qos: int) -> None:
    """The next connection gets what was published while no consumer was connected."""
    async with connected(broker) as first:
        subscription = await first.subscribe("t", qos)
    async with connected(broker) as second:
        await second.publish("t", b"meanwhile", qos=qos)
    async with connected(broker) as third:
        assert b"meanwhile" == (await third.take(subscription))[1]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_durable_subscription_survives_a_restart(tmp_path: Path, crash: bool) -> None:
    """Under the same id, with its acknowledgements, open tags and backlog."""
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
    async with broker_at(directory, clock_after(clock, 1)) as broker, connected(broker) as peer:
        assert (tags[1], b"1") == await peer.take(subscription)
        peer.send(ack(tags[0], subscription))
        await peer.expect(not_found(tags[0]))
        rest = [await peer.take(subscription) for _ in range(3)]
        assert [b"3", b"4", b"5"] == [message for _, message in rest]
        assert None is await peer.poll(subscription)


async def test_a_subscription_does_not_outlive_the_permission_to_read(tmp_path: Path) -> None:
    """What a key may no longer read, it does not get through a subscription from before."""
    clock = FakeClock()
    before = {"keys": [key_config("ada", "k", publish=["t"], subscribe=["t"])]}
    async with (
        broker_at(tmp_path, clock, auth=before) as broker,
        connected(broker, key="k") as peer,
    ):
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"secret")
    after = {"keys": [key_config("ada", "k", publish=["t"], subscribe=["other"])]}
    async with (
        broker_at(tmp_path, clock_after(clock, 1), auth=after) as broker,
        connected(broker, key="k") as peer,
    ):
        peer.send(poll(7, subscription), credit(8, subscription, 1))
        await peer.expect(not_found(7), not_found(8))


async def test_a_tag_is_still_open_after_a_restart(
    tmp_path: Path,
) -> None:
    """A consumer cut off by the restart may still acknowledge the messages it held."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", b"a", b"b", b"c")
        first, _ = await peer.take(subscription)
        second, _ = await peer.take(subscription)
    async with broker_at(tmp_path, clock_after(clock, 1)) as broker, connected(broker) as peer:
        peer.send(ack(second, subscription))
        await peer.expect_silence()
        peer.send(ack(second + 1, subscription))
        await peer.expect(not_found(second + 1))

        assert (first, b"a") == await peer.take(subscription)
        assert b"c" == (await peer.take(subscription))[1]
        assert None is await peer.poll(subscription)


async def test_a_memory_only_subscription_ends_with_the_broker(tmp_path: Path) -> None:
    """Only QoS 1 subscriptions survive a restart; the other's id is 404 and never reused."""
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
    async with broker_at(tmp_path) as broker, connected(broker) as peer:
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))
        assert subscription < await peer.subscribe("t", 0)


async def test_a_backlog_far_beyond_the_window_survives_restarts(tmp_path: Path) -> None:
    """Read back from the log in order, once each, with restarts in between."""
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
        clock = clock_after(clock, 1)
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
async def test_an_unused_subscription_ends_with_its_lease(
    broker: RunningBroker, qos: int, lease_s: float
) -> None:
    """The broker logs and counts the end; from then on the id is 404."""
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


async def test_the_lease_is_configurable() -> None:
    """By `blip.subscription_lease_s` and `blip.subscription_lease_qos0_s`."""
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


@pytest.mark.parametrize("use", ["POLL", "ACK", "CREDIT", "unspent credit"])
async def test_use_renews_the_lease(broker: RunningBroker, use: str) -> None:
    """POLL, ACK, CREDIT and unspent credit count as use."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t")
        await peer.publish("t", *[b"x"] * 4)
        tags = [(await peer.take(subscription))[0] for _ in range(3)]
        if use == "unspent credit":
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
            if use != "unspent credit":
                await peer.expect_silence()
        await until_committed(broker)

        assert 1 == broker.daemon.status.metrics().subscriptions


async def test_a_delivery_alone_does_not_renew_the_lease(broker: RunningBroker) -> None:
    """An abandoned subscription ends even while messages for it arrive."""
    async with connected(broker) as peer:
        subscription = await peer.subscribe("t", 0)
        for _ in range(4):
            broker.clock.advance(100)
            await peer.publish("t", b"x")
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


async def test_downtime_does_not_count_towards_the_lease(tmp_path: Path) -> None:
    """While the broker was down, no client could use its subscription."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S * 0.5)
    clock = clock_after(clock, 7 * LEASE_S)
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        clock.advance(LEASE_S * 0.4)
        assert await is_alive(peer, subscription)


async def test_idle_time_before_a_restart_counts_towards_the_lease(tmp_path: Path) -> None:
    """Otherwise a broker that restarts daily would never end an unused subscription."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S * 0.6)
    clock = clock_after(clock, 10)
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        clock.advance(LEASE_S * 0.6)
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


async def test_the_end_of_a_lease_survives_a_restart(tmp_path: Path) -> None:
    """A client that once got a 404 never gets anything else."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker) as peer:
        subscription = await peer.subscribe("t")
        clock.advance(LEASE_S + 1)
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))
    async with broker_at(tmp_path, clock_after(clock, 1)) as broker, connected(broker) as peer:
        peer.send(poll(5, subscription))
        await peer.expect(not_found(5))


# Ownership.


async def test_a_subscription_of_another_principal_is_404() -> None:
    """To POLL, ACK, UNSUBSCRIBE and CREDIT it does not exist."""
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


async def test_another_connection_of_the_same_principal_may_continue(tmp_path: Path) -> None:
    """The principal owns the subscription, not the connection, before and after a restart."""
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
    """Each message goes to one of them; together they get everything exactly once."""
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


async def test_a_disconnected_consumers_messages_are_pushed_to_another_with_credit(
    broker: RunningBroker,
) -> None:
    """The messages of a consumer that disconnects go to the ones that wait."""
    async with connected(broker) as one:
        subscription = await one.subscribe("t")
        async with connected(broker) as two:
            await two.publish("t", b"a")
            tag, _ = await two.take(subscription)
            one.send(credit(5, subscription, 3))
            await one.expect_silence()
        await one.expect(publish(tag, "t", b"a"))
