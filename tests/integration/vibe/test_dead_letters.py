"""Dead letters: every reason, their queues, and that they are never dead-lettered again."""

import hashlib
from pathlib import Path

import pytest

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at
from tests.integration.vibe.peer import Message, Peer, connected, stats

pytestmark = pytest.mark.asyncio


def death(letter: Message) -> tuple[str, str, str]:
    return (
        letter.headers["deathReason"],
        letter.headers["deathQueue"],
        letter.headers["deathAttempts"],
    )


async def reject(peer: Peer, queue: str, message_id: str = "m") -> None:
    """Publish a message, take it, and reject it."""
    await peer.publish(queue, b"1", message_id, mine="x")
    await peer.subscribe(queue)
    await peer.delivered()
    await peer.settle(message_id, queue, result="reject")
    await peer.unsubscribe(queue)


@pytest.mark.parametrize("mode", ["RoundRobin", "FanOutWithAck", "PriorityBased"])
async def test_a_message_becomes_a_dead_letter_after_its_last_attempt(
    broker: RunningBroker, dialect: str, mode: str
) -> None:
    """By default after three; the dead letter keeps its id, payload and headers."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as dlq:
        await peer.create("q", deliveryMode=mode)
        await dlq.subscribe("dlq.q")
        await peer.subscribe("q")
        await dlq.publish("q", b'{"a": 1}', "m", mine="x", timestamp="then")
        for attempt, wait_s in ((1, 32), (2, 34), (3, 38)):
            assert attempt == (await peer.delivered()).attempts
            broker.clock.advance(wait_s)
        letter = await dlq.delivered()

        assert ("m", "dlq.q", b'{"a": 1}') == letter[1:4]
        assert {
            "mine": "x",
            "timestamp": "then",
            "deliveryAttempts": "1",
            "deathReason": "maxRetries",
            "deathQueue": "q",
            "deathAttempts": "3",
        } == letter.headers
        await peer.expect_silence()
        assert (0, 0) == await peer.counts("q")


@pytest.mark.parametrize("held", [True, False])
async def test_an_expired_message_becomes_a_dead_letter(
    broker: RunningBroker, dialect: str, held: bool
) -> None:
    """Whether or not a consumer holds messages of the queue."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as dlq:
        await peer.create("q", messageTtl=5000)
        await dlq.subscribe("dlq.q")
        if held:
            await peer.subscribe("q", 1)
            await dlq.publish("q", b"0", "m0")
            await peer.delivered()
        await dlq.publish("q", b"1", "m1")
        broker.clock.advance(4.9)
        await dlq.expect_silence()
        broker.clock.advance(40)
        wanted = {("m0", "1"), ("m1", "0")} if held else {("m1", "0")}
        got = set()
        for _ in wanted:
            letter = await dlq.delivered()
            assert ("expired", "q") == death(letter)[:2]
            got.add((letter.id, death(letter)[2]))

        assert wanted == got
        assert (0, 0) == await dlq.counts("q")


async def test_rejected_and_overflowing_messages_become_dead_letters(
    broker: RunningBroker, dialect: str
) -> None:
    """With the right deathReason, deathQueue and deathAttempts."""
    async with connected(broker, dialect) as peer:
        await reject(peer, "q")
        await peer.create("small", maxQueueSize=1)
        await peer.publish("small", b"0")
        await peer.publish("small", b"1", "over")
        await peer.subscribe("dlq.q")
        await peer.subscribe("dlq.small")
        got = [await peer.delivered() for _ in range(2)]

        assert {"m": ("rejected", "q", "1"), "over": ("overflow", "small", "0")} == {
            letter.id: death(letter) for letter in got
        }


@pytest.mark.parametrize(
    "payload", [b"\xff" * 800_000, b'"' + b"x" * (1024 * 1024) + b'"'], ids=["base64", "JSON"]
)
async def test_a_message_too_large_for_a_frame_becomes_a_dead_letter(
    broker: RunningBroker, dialect: str, payload: bytes
) -> None:
    """A large Blip message, or one that base64 makes too large; it never blocks the queue."""
    async with connected(broker, dialect) as peer, blip.connected(broker) as source:
        subscription = await source.subscribe("dlq.q")
        await peer.create("q")
        await source.publish("q", payload)
        await peer.publish("q", b"1", "small")
        await peer.subscribe("q")
        assert "small" == (await peer.delivered()).id
        await peer.expect_silence()

        assert (0, 1) == await peer.counts("q")
        assert payload == (await source.take(subscription))[1]
        assert 1 == stats(broker).dead_lettered


async def test_the_dead_letter_queue_may_have_another_name(
    broker: RunningBroker, dialect: str
) -> None:
    """Set by deadLetterQueueName."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", deadLetterQueueName="graves")
        await reject(peer, "q")
        assert ["graves", "q"] == await peer.names()
        await peer.subscribe("graves")

        assert ("rejected", "q", "1") == death(await peer.delivered())


@pytest.mark.parametrize(("length", "hashed"), [(252, False), (253, True), (256, True)])
async def test_a_long_dead_letter_name_becomes_a_hash(
    broker: RunningBroker, dialect: str, length: int, hashed: bool
) -> None:
    """A name over 256 characters becomes `dlq.` + SHA-256 hex."""
    name = "é" * length
    async with connected(broker, dialect) as peer:
        await reject(peer, name)
        rest = hashlib.sha256(name.encode()).hexdigest() if hashed else name
        await peer.subscribe(f"dlq.{rest}")

        assert name == death(await peer.delivered())[1]


async def test_dead_letters_are_ordinary_messages_without_limits(
    broker: RunningBroker, dialect: str
) -> None:
    """No size, TTL or attempt limit; the broker ignores those of a CreateQueue."""
    async with connected(broker, dialect) as peer:
        await peer.ask(40, "dlq.q", headers={"maxRetryAttempts": "1", "messageTtl": "1000"})
        for number in range(3):
            await reject(peer, "q", f"m{number}")
        await peer.subscribe("dlq.q")
        for _ in range(3):
            await peer.delivered()
        for attempt in range(2, 12):
            broker.clock.advance(150)
            got = [(await peer.delivered()).attempts for _ in range(3)]
            assert [attempt] * 3 == got
        found = await peer.info("dlq.q")

        assert (0, None, 3) == (found["maxSize"], found["messageTtl"], found["inFlight"])


@pytest.mark.parametrize("strategy", ["DropOldest", "DropNewest", "RedirectToDlq"])
@pytest.mark.parametrize("is_first", [True, False])
async def test_a_queue_that_comes_to_hold_letters_obeys_no_limit(
    broker: RunningBroker, dialect: str, strategy: str, *, is_first: bool
) -> None:
    """Also one that was declared with limits, before or after another names it."""
    async with connected(broker, dialect) as peer:
        if not is_first:
            await peer.create("q", deadLetterQueueName="graves")
        await peer.create("graves", maxQueueSize=1, overflowStrategy=strategy, messageTtl=1000)
        if is_first:
            await peer.create("q", deadLetterQueueName="graves")
        for number in range(2):
            await reject(peer, "q", f"m{number}")
        await peer.publish("graves", b"3", "m2")
        for _ in range(3):
            broker.clock.advance(2)
            await peer.expect_silence()

        assert (3, 0) == await peer.counts("graves")
        assert ["graves", "q"] == await peer.names()


@pytest.mark.parametrize("name", ["dlq.q", "graves", "declared"])
async def test_dead_letters_are_never_dead_lettered_again(
    broker: RunningBroker, dialect: str, name: str
) -> None:
    """The broker drops and counts a rejected one; it creates no dlq.dlq queue."""
    async with connected(broker, dialect) as peer:
        if name == "declared":
            await peer.create("declared", maxRetryAttempts=2)
        options = {} if name == "dlq.q" else {"deadLetterQueueName": name}
        await peer.create("q", **options)
        await reject(peer, "q")
        await peer.subscribe(name)
        await peer.delivered()
        await peer.settle("m", result="reject")

        assert sorted({"q", name}) == await peer.names()
        assert (0, 0) == await peer.counts(name)
        assert {"rejected": 1} == stats(broker).dropped.by_reason


async def test_without_dead_letters_messages_are_dropped_and_counted(
    broker: RunningBroker, dialect: str
) -> None:
    """By the reason for each drop."""
    async with connected(broker, dialect) as peer:
        await peer.create(
            "q", enableDeadLetterQueue="false", maxRetryAttempts=1, messageTtl=60_000
        )
        await reject(peer, "q")
        await peer.subscribe("q")
        await peer.publish("q", b"2", "m2")
        await peer.delivered()
        broker.clock.advance(33)
        await peer.expect_silence()
        await peer.unsubscribe("q")
        await peer.publish("q", b"3", "m3")
        broker.clock.advance(61)
        await peer.subscribe("q")
        await peer.expect_silence()

        assert {"rejected": 1, "maxRetries": 1} == stats(broker).dropped.by_reason
        assert 1 == stats(broker).expired
        assert ["q"] == await peer.names()
        assert (0, 0) == await peer.counts("q")


async def test_dead_letters_survive_a_restart(tmp_path: Path, dialect: str) -> None:
    """One record creates the dead letter and settles the original message."""
    clock = FakeClock()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        await reject(peer, "q")
        await peer.expect_silence()
    async with broker_at(tmp_path, clock) as broker, connected(broker, dialect) as peer:
        assert (0, 0) == await peer.counts("q")
        await peer.subscribe("dlq.q")

        assert ("rejected", "q", "1") == death(await peer.delivered())
