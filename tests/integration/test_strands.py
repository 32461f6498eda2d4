"""Across strands: a message published on Blip or Vibe reaches the other, byte for byte."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from braidmq.testing.broker import RunningBroker
from braidmq.testing.clock import FakeClock
from tests.integration.blip import peer as blip
from tests.integration.blip.peer import broker_at, nack
from tests.integration.vibe.peer import ERROR, PUBLISH, SUBSCRIBE, Message, core
from tests.integration.vibe_peer import BODY_MAX, Peer, ack, connected

pytestmark = pytest.mark.asyncio

JSON = [
    b'{"a":1}',
    b' { "a" :\t1 ,\r\n "b" : [ ] } \n',
    b'"\xc3\xa9 \xf0\x9f\x98\x80 <&\'+> \\u00e9 \\/"',
    b"1.0E+2",
    b"123456789012345678901234567890.0000",
    b'{"a":1,"a":2}',
    b'"\\ud800"',
    b"null",
    b'""',
    b"[" * 64 + b"]" * 64,
]
NOT_JSON = [
    b"\x00",
    b"\xff\xfe\xfd",
    b"plain text",
    b"{",
    b"NaN",
    b"1 2",
    b"'a'",
    b'"\xff"',
    b"\xef\xbb\xbf{}",
    b"[" * 65 + b"]" * 65,
    bytes(range(256)) * 100,
]


@pytest_asyncio.fixture
async def vibe(broker: RunningBroker) -> AsyncIterator[Peer]:
    async with connected(broker) as peer:
        yield peer


@pytest_asyncio.fixture
async def other(broker: RunningBroker) -> AsyncIterator[blip.Peer]:
    async with blip.connected(broker) as peer:
        yield peer


@asynccontextmanager
async def both(data_dir: Path, clock: FakeClock) -> AsyncIterator[tuple[Peer, blip.Peer]]:
    """Run a broker with a peer on each strand, for tests that restart it."""
    async with (
        broker_at(data_dir, clock) as running,
        connected(running) as vibe,
        blip.connected(running) as other,
    ):
        yield vibe, other


async def expect_queue_full(peer: blip.Peer, topic: str, payload: bytes, qos: int = 1) -> None:
    """Assert that the broker refuses a Blip publish to a full queue."""
    peer.send(blip.publish(77, topic, payload, qos))
    await peer.expect(nack(77, 500, "queue full"))


# Payloads.


@pytest.mark.parametrize("qos", [0, 1])
async def test_json_reaches_vibe_unchanged(vibe: Peer, other: blip.Peer, qos: int) -> None:
    """White space, escapes and the spelling of numbers stay the same."""
    await vibe.subscribe("q")
    await other.publish("q", *JSON, qos=qos)
    found = await vibe.deliveries(len(JSON))

    assert JSON == [one.payload for one in found]
    assert not any("contentEncoding" in one.headers for one in found)


@pytest.mark.parametrize("qos", [0, 1])
async def test_other_bytes_reach_vibe_in_base64(vibe: Peer, other: blip.Peer, qos: int) -> None:
    """As a JSON string; a header says so."""
    await vibe.subscribe("q")
    await other.publish("q", *NOT_JSON, qos=qos)
    found = await vibe.deliveries(len(NOT_JSON))

    wanted = [b'"' + base64.b64encode(payload) + b'"' for payload in NOT_JSON]
    assert wanted == [one.payload for one in found]
    assert {"base64"} == {one.headers["contentEncoding"] for one in found}


async def test_vibe_payloads_reach_blip_unchanged(vibe: Peer, other: blip.Peer) -> None:
    """An absent payload arrives as an empty one."""
    subscription = await other.subscribe("q")
    for payload in [*JSON, b""]:
        await vibe.publish("q", payload, priority="high", key="value")

        assert payload == (await other.take(subscription))[1]


async def test_a_base64_string_from_a_vibe_publisher_is_not_decoded(
    vibe: Peer, other: blip.Peer
) -> None:
    """Payloads are carried verbatim; a publisher cannot set `contentEncoding`."""
    await vibe.subscribe("q")
    subscription = await other.subscribe("q")
    await vibe.publish("q", b'"/w=="', contentEncoding="base64")

    assert b'"/w=="' == (await other.take(subscription))[1]
    found = await vibe.delivered()
    assert (b'"/w=="', False) == (found.payload, "contentEncoding" in found.headers)


@pytest.mark.parametrize("qos", [0, 1])
async def test_an_empty_blip_payload_is_absent_on_vibe(
    vibe: Peer, other: blip.Peer, qos: int
) -> None:
    """Not the empty string in base64."""
    await vibe.subscribe("q")
    await other.publish("q", b"", qos=qos)
    found = await vibe.delivered()

    assert (b"", {"deliveryAttempts", "timestamp"}) == (found.payload, set(found.headers))


async def test_a_backlog_is_delivered_like_fresh_messages(tmp_path: Path) -> None:
    """Read back from the log, before and after a restart."""
    clock = FakeClock()
    async with both(tmp_path, clock) as (vibe, other):
        await vibe.create("q")
        await other.publish("q", *JSON, *NOT_JSON)
        await vibe.publish("q", b"[1 ]", "mine", key="value", empty="")
        await vibe.subscribe("q")
        before = await vibe.deliveries(len(JSON) + len(NOT_JSON) + 1)
    async with broker_at(tmp_path, clock) as second, connected(second) as vibe:
        await vibe.subscribe("q")
        after = await vibe.deliveries(len(before))

    assert JSON == [found.payload for found in before[: len(JSON)]]
    assert ("mine", b"[1 ]", "value", "") == _own(before[-1])
    assert _without_attempts(before) == _without_attempts(after)


def _own(found: Message) -> tuple[str, bytes, str, str]:
    return found.id, found.payload, found.headers["key"], found.headers["empty"]


def _without_attempts(found: list[Message]) -> list[tuple[str, bytes, dict[str, str]]]:
    for one in found:
        del one.headers["deliveryAttempts"]
    return [(one.id, one.payload, one.headers) for one in found]


async def test_a_message_whose_base64_outgrows_a_frame_becomes_a_dead_letter(
    vibe: Peer, other: blip.Peer
) -> None:
    """Too large for Vibe, but Blip can read it from the dead-letter queue."""
    letters = await other.subscribe("dlq.q")
    await vibe.subscribe("q")
    payload = b"\xff" * (BODY_MAX * 4 // 5)
    await other.publish("q", payload)
    await vibe.expect_silence()

    assert (0, 0) == await vibe.counts("q")
    assert (1, 0) == await vibe.counts("dlq.q")
    assert payload == (await other.take(letters))[1]


# Names and ids.


async def test_a_durable_blip_message_has_the_brokers_id(vibe: Peer, other: blip.Peer) -> None:
    """In decimal; the same number is its delivery tag on Blip."""
    await vibe.subscribe("q")
    subscription = await other.subscribe("q")
    await other.publish("q", b"1")
    tag, _ = await other.take(subscription)
    found = await vibe.delivered()

    assert str(tag) == found.id
    await vibe.settle(found.id)
    assert (0, 0) == await vibe.counts("q")


async def test_a_memory_only_message_has_a_numbered_id(vibe: Peer, other: blip.Peer) -> None:
    """Blip QoS 0 in a queue: `m-<n>`, unique; an Ack of it has no effect."""
    await vibe.subscribe("q")
    await other.publish("q", b"1", b"2", qos=0)
    found = await vibe.deliveries(2)

    assert [b"1", b"2"] == [one.payload for one in found]
    numbers = [one.id.removeprefix("m-") for one in found]
    assert int(numbers[0]) < int(numbers[1])
    assert ["m-" + number for number in numbers] == [one.id for one in found]
    await vibe.settle(found[0].id)
    assert (0, 0) == await vibe.counts("q")


async def test_a_memory_only_message_waits_for_a_consumer(vibe: Peer, other: blip.Peer) -> None:
    """In memory, in the order of arrival."""
    await vibe.create("q")
    await other.publish("q", b"1", b"2", qos=0)
    assert (2, 0) == await vibe.counts("q")
    await vibe.subscribe("q")

    assert [b"1", b"2"] == await vibe.payloads(2)


@pytest.mark.parametrize("topic", ["a/b", "a b", "²", "\n", "x" * 257, "a\x00b"])
async def test_a_topic_that_is_not_a_queue_name_stays_on_blip(
    vibe: Peer, other: blip.Peer, topic: str
) -> None:
    """Blip delivers it; Vibe refuses the name and does not list it."""
    subscription = await other.subscribe(topic)
    await other.publish(topic, b"1")
    publish = await vibe.ask(PUBLISH, topic, b"2")
    subscribe = await vibe.ask(SUBSCRIBE, topic)

    refused = (ERROR, "INVALID_MESSAGE")
    assert [refused] * 2 == [(one.kind, one.error_code) for one in (publish, subscribe)]
    assert b"1" == (await other.take(subscription))[1]
    assert None is await other.poll(subscription)
    assert [] == await vibe.names()


async def test_a_blip_publish_does_not_create_a_queue(vibe: Peer, other: blip.Peer) -> None:
    """The broker keeps nothing for queues that were never declared."""
    await other.subscribe("q")
    await other.publish("q", b"before")
    await other.publish("q", b"before", qos=0)
    assert [] == await vibe.names()
    await vibe.subscribe("q")
    await other.publish("q", b'"after"')

    assert b'"after"' == (await vibe.delivered()).payload
    await vibe.expect_silence()


async def test_a_queue_keeps_messages_from_its_declaration_on(tmp_path: Path) -> None:
    """From any strand, with or without a consumer, even across a restart."""
    clock = FakeClock()
    async with both(tmp_path, clock) as (vibe, other):
        await other.publish("q", b"0")
        await vibe.create("q")
        await other.publish("q", b"1")
        await vibe.publish("q", b"2")
    async with both(tmp_path, clock) as (vibe, other):
        await other.publish("q", b"3")
        await vibe.subscribe("q")

        assert [b"1", b"2", b"3"] == await vibe.payloads(3)


async def test_each_strand_has_its_own_copy(vibe: Peer, other: blip.Peer) -> None:
    """An acknowledgement on one strand does not count on the other."""
    subscription = await other.subscribe("q")
    await vibe.subscribe("q")
    await vibe.publish("q", b"1", "m")
    await vibe.delivered()
    await vibe.settle("m")
    tag, payload = await other.take(subscription)

    assert b"1" == payload
    await other.acknowledge(subscription, tag)
    assert None is await other.poll(subscription)


async def test_a_dead_letter_from_blip_can_be_read_on_vibe(broker: RunningBroker) -> None:
    """The headers state the reason; the payload is encoded for Vibe."""
    async with connected(broker) as vibe, blip.connected(broker) as other:
        subscription = await other.subscribe("t")
        await other.publish("t", b"\xff")
        for seconds in (5, 10, 20, 40, 60):
            await other.take(subscription)
            broker.clock.advance(seconds)
        await vibe.subscribe("dlq.t")
        letter = await vibe.delivered()

        assert b'"/w=="' == letter.payload
        assert ("maxRetries", "t", "5") == (
            letter.headers["deathReason"],
            letter.headers["deathQueue"],
            letter.headers["deathAttempts"],
        )


# Full queues and memory-only queues.


@pytest.mark.parametrize(
    "options",
    [
        {"overflowStrategy": "DropNewest"},
        {"overflowStrategy": "RedirectToDlq", "enableDeadLetterQueue": "false"},
    ],
)
@pytest.mark.parametrize("qos", [0, 1])
async def test_a_full_queue_refuses_blip_too(
    vibe: Peer, other: blip.Peer, options: dict[str, str], qos: int
) -> None:
    """NACK 500 "queue full", and nothing is stored, until there is room."""
    await vibe.create("q", maxQueueSize=1, **options)
    await other.publish("q", b"1", qos=qos)
    await expect_queue_full(other, "q", b"2", qos)
    await vibe.subscribe("q")
    found = await vibe.delivered()
    vibe.send(ack(found.id))
    await vibe.fence()
    await other.publish("q", b"3", qos=qos)

    assert b"3" == (await vibe.delivered()).payload
    await vibe.expect_silence()


async def test_a_full_queue_redirects_blip_too(vibe: Peer, other: blip.Peer) -> None:
    """The new message becomes a dead letter, and its publisher gets no error."""
    await vibe.create("q", maxQueueSize=1)
    await other.publish("q", b"1", b"2")
    await vibe.subscribe("dlq.q")
    letter = await vibe.delivered()

    assert (b"2", "overflow", "0") == (
        letter.payload,
        letter.headers["deathReason"],
        letter.headers["deathAttempts"],
    )
    assert (1, 0) == await vibe.counts("q")


async def test_a_full_queue_blocks_a_blip_publisher_too(
    broker: RunningBroker, vibe: Peer, other: blip.Peer
) -> None:
    """BlockPublisher: the publish waits, and so does the fence behind it."""
    await vibe.create("q", maxQueueSize=1, overflowStrategy="BlockPublisher")
    other.send(*(blip.publish(1, "q", str(number).encode()) for number in range(20)))
    other.send(blip.ping(2))
    await blip.until(lambda: core(broker).queues.by_name["q"].blocked)
    await vibe.subscribe("q", 1)
    for number in range(20):
        found = await vibe.delivered()
        assert str(number).encode() == found.payload
        vibe.send(ack(found.id))

    await other.expect(blip.pong(2))


async def test_a_memory_only_queue_is_empty_after_a_restart(tmp_path: Path) -> None:
    """Its declaration survives; its messages, from any strand, do not."""
    clock = FakeClock()
    async with both(tmp_path, clock) as (vibe, other):
        await vibe.create("q", durable="false")
        subscription = await other.subscribe("q")
        await other.publish("q", b"1")
        await vibe.publish("q", b"2", "mine")
        assert (2, 0) == await vibe.counts("q")
        # Effective QoS 0 on Blip as well: there is no tag to acknowledge.
        seen = [await other.poll(subscription) for _ in range(2)]
        assert [b"1", b"2"] == [one.payload[-1:] for one in seen if one is not None]
        assert [0, 0] == [one.payload[0] for one in seen if one is not None]
        await vibe.subscribe("q")
        found = await vibe.deliveries(2)
        assert [b"1", b"2"] == [one.payload for one in found]
        assert "mine" == found[1].id
        await vibe.publish("q", b"3")
    async with broker_at(tmp_path, clock) as second, connected(second) as vibe:
        assert ["q"] == await vibe.names()
        await vibe.subscribe("q")
        await vibe.expect_silence()
