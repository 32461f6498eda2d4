"""CreateQueue, DeleteQueue, QueueInfo and ListQueues in both dialects."""

import json
from typing import Any

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at, key_config
from tests.integration.vibe.peer import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    ERROR,
    QUEUE_INFO,
    V1_0,
    V1_1,
    Message,
    Peer,
    connected,
)

pytestmark = pytest.mark.asyncio

MODES = ["RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased"]
STRATEGIES = ["DropOldest", "DropNewest", "BlockPublisher", "RedirectToDlq"]

DEFAULTS = {
    "name": "q",
    "messageCount": 0,
    "inFlight": 0,
    "subscriberCount": 0,
    "deliveryMode": "RoundRobin",
    "maxSize": 0,
    "createdAt": "2027-01-15T08:00:00Z",
    "messageTtl": None,
    "enableDeadLetterQueue": True,
    "deadLetterQueueName": "dlq.q",
    "overflowStrategy": "RedirectToDlq",
    "maxRetryAttempts": 3,
    "durable": True,
}


async def create(peer: Peer, headers: dict[str, str], payload: bytes = b"") -> Message:
    return await peer.ask(CREATE_QUEUE, "q", payload, headers)


@pytest.mark.parametrize("declared", [True, False])
async def test_a_queue_has_the_default_options(broker: RunningBroker, declared: bool) -> None:
    """They are the same whether a client declared the queue or merely used it."""
    async with connected(broker, V1_0) as peer:
        if declared:
            answer = await peer.ask(CREATE_QUEUE, "q", message_id="create_1")
            assert (CREATE_QUEUE, "create_1", b"") == (answer.kind, answer.id, answer.payload)
        else:
            await peer.subscribe("q")
            await peer.unsubscribe("q")

        assert DEFAULTS == await peer.info("q")


async def test_dialect_1_1_has_numbers_and_time_spans(broker: RunningBroker) -> None:
    """1.0 has names for enums and TTLs in ms; 1.1 has integers and hh:mm:ss."""
    options = {
        "deliveryMode": "PriorityBased",
        "overflowStrategy": "DropNewest",
        "messageTtl": "93784005",
        "maxQueueSize": "10",
    }
    async with connected(broker, V1_0) as old, connected(broker, V1_1) as new:
        assert CREATE_QUEUE == (await create(old, options)).kind
        changed: dict[str, Any] = {
            "deliveryMode": "PriorityBased",
            "overflowStrategy": "DropNewest",
            "messageTtl": 93_784_005,
            "maxSize": 10,
        }
        assert DEFAULTS | changed == await old.info("q")
        in_numbers = {"deliveryMode": 3, "overflowStrategy": 1, "maxSize": 10}
        assert DEFAULTS | in_numbers | {"messageTtl": "1.02:03:04.0050000"} == await new.info(
            "q"
        )


async def test_queue_info_has_current_counts(broker: RunningBroker, dialect: str) -> None:
    """messageCount counts waiting messages; inFlight and subscriberCount come on top."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        for number in range(5):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 2)
        await peer.payloads(2)
        await other.subscribe("q", 1)
        await other.payloads(1)
        found = await peer.info("q")

        assert (2, 3, 2) == (
            found["messageCount"],
            found["inFlight"],
            found["subscriberCount"],
        )


OPTIONS: dict[str, tuple[dict[str, str], object, dict[str, object]]] = {
    "a mode by name": ({"deliveryMode": "FanOutWithAck"}, None, {"deliveryMode": MODES[1]}),
    "a mode in lower case": (
        {"deliveryMode": "prioritybased"},
        None,
        {"deliveryMode": MODES[3]},
    ),
    "a mode by number in a header": ({"deliveryMode": "2"}, None, {"deliveryMode": MODES[2]}),
    "a mode by number in JSON": ({}, {"mode": 1}, {"deliveryMode": MODES[1]}),
    "a mode by name in JSON": ({}, {"mode": "PriorityBased"}, {"deliveryMode": MODES[3]}),
    "a mode in JSON by the original's key": (
        {},
        {"deliveryMode": 1},
        {"deliveryMode": MODES[1]},
    ),
    "a size": ({"maxQueueSize": "7"}, None, {"maxSize": 7}),
    "a size in JSON": ({}, {"maxQueueSize": 7}, {"maxSize": 7}),
    "a TTL in ms": ({"messageTtl": "1500"}, None, {"messageTtl": 1500}),
    "a TTL of 0": ({"messageTtl": "0"}, None, {}),
    "a TTL in JSON ms": ({}, {"messageTtl": 1500}, {"messageTtl": 1500}),
    "a TTL as a span": ({}, {"messageTtl": "00:01:30"}, {"messageTtl": 90_000}),
    "a TTL of days": ({}, {"messageTtl": "2.00:00:00.25"}, {"messageTtl": 172_800_250}),
    "no TTL in JSON": ({}, {"messageTtl": None}, {}),
    "no dead letters": (
        {"enableDeadLetterQueue": "False"},
        None,
        {"enableDeadLetterQueue": False},
    ),
    "no dead letters in JSON": (
        {},
        {"enableDeadLetterQueue": False},
        {"enableDeadLetterQueue": False},
    ),
    "a dead-letter queue": ({"deadLetterQueueName": "g"}, None, {"deadLetterQueueName": "g"}),
    "a dead-letter queue in JSON": (
        {},
        {"deadLetterQueueName": "g"},
        {"deadLetterQueueName": "g"},
    ),
    "a strategy": (
        {"overflowStrategy": "dropoldest"},
        None,
        {"overflowStrategy": STRATEGIES[0]},
    ),
    "a strategy by number": ({}, {"overflowStrategy": 2}, {"overflowStrategy": STRATEGIES[2]}),
    "attempts": ({"maxRetryAttempts": "9"}, None, {"maxRetryAttempts": 9}),
    "attempts in JSON": ({}, {"maxRetryAttempts": 9}, {"maxRetryAttempts": 9}),
    "not durable": ({"durable": "false"}, None, {"durable": False}),
    "a header and JSON": (
        {"maxQueueSize": "7", "deliveryMode": "RoundRobin"},
        {"maxQueueSize": 8, "mode": 3, "maxRetryAttempts": 4},
        {"maxSize": 7, "maxRetryAttempts": 4},
    ),
    "unknown options": ({"colour": "red"}, {"colour": "red"}, {}),
    "JSON null": ({}, None, {}),
    "an empty object": ({}, {}, {}),
    "everything null": ({}, dict.fromkeys(["mode", "maxQueueSize", "durable"]), {}),
}


@pytest.mark.parametrize("how", OPTIONS)
async def test_options_come_from_headers_or_json(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """In both dialects, as integers or names or [d.]hh:mm:ss[.f]; headers win over JSON."""
    headers, given, changed = OPTIONS[how]
    payload = b"" if given is None else json.dumps(given).encode()
    async with connected(broker, dialect) as peer, connected(broker, V1_0) as reader:
        assert CREATE_QUEUE == (await create(peer, headers, payload)).kind

        assert DEFAULTS | changed == await reader.info("q")


BAD_OPTIONS: dict[str, tuple[dict[str, str], object]] = {
    "deliveryMode": ({"deliveryMode": "Anycast"}, None),
    "deliveryMode 4": ({"deliveryMode": "4"}, None),
    "deliveryMode empty": ({"deliveryMode": ""}, None),
    "mode 4": ({}, {"mode": 4}),
    "mode true": ({}, {"mode": True}),
    "maxQueueSize 0": ({"maxQueueSize": "0"}, None),
    "maxQueueSize -1": ({}, {"maxQueueSize": -1}),
    "maxQueueSize 1.5": ({}, {"maxQueueSize": 1.5}),
    "maxQueueSize text": ({}, {"maxQueueSize": "many"}),
    "maxRetryAttempts 0": ({"maxRetryAttempts": "0"}, None),
    "messageTtl -5": ({"messageTtl": "-5"}, None),
    "messageTtl as a span in a header": ({"messageTtl": "00:00:10"}, None),
    "messageTtl 25 hours": ({}, {"messageTtl": "25:00:00"}),
    "enableDeadLetterQueue": ({"enableDeadLetterQueue": "maybe"}, None),
    "enableDeadLetterQueue 1": ({}, {"enableDeadLetterQueue": 1}),
    "deadLetterQueueName": ({"deadLetterQueueName": "no good"}, None),
    "deadLetterQueueName itself": ({"deadLetterQueueName": "q"}, None),
    "overflowStrategy": ({"overflowStrategy": "Explode"}, None),
    "durable": ({"durable": "2"}, None),
    "payload an array": ({}, [1]),
}


@pytest.mark.parametrize("how", BAD_OPTIONS)
async def test_a_bad_value_is_refused_by_name(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """INVALID_MESSAGE names the option; no queue is created."""
    headers, given = BAD_OPTIONS[how]
    payload = b"" if given is None else json.dumps(given).encode()
    async with connected(broker, dialect) as peer:
        answer = await create(peer, headers, payload)

        assert (ERROR, "q", "INVALID_MESSAGE") == (answer.kind, answer.queue, answer.error_code)
        assert how.split(maxsplit=1)[0] in answer.error_message
        assert [] == await peer.names()


@pytest.mark.parametrize(
    "again",
    [
        {"maxQueueSize": "5"},
        {"maxQueueSize": "5", "deliveryMode": "roundrobin", "maxRetryAttempts": "3"},
        {"maxQueueSize": "5", "overflowStrategy": "RedirectToDlq"},
        {"maxQueueSize": "5", "deadLetterQueueName": "dlq.q"},
        {"maxQueueSize": "5", "messageTtl": "0"},
    ],
)
async def test_an_existing_queue_may_be_declared_again(
    broker: RunningBroker, dialect: str, again: dict[str, str]
) -> None:
    """It succeeds if the effective options are the same, however they are written."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", maxQueueSize=5)
        await peer.publish("q", b"1")

        assert CREATE_QUEUE == (await create(peer, again)).kind
        assert (1, 0) == await peer.counts("q")


async def test_the_dialects_differ_on_a_declaration_with_other_options(
    broker: RunningBroker,
) -> None:
    """1.0 answers QUEUE_EXISTS; 1.1 succeeds and keeps the existing options."""
    async with connected(broker, V1_0) as old, connected(broker, V1_1) as new:
        await old.create("q", maxQueueSize=5)
        refused = await create(old, {"maxQueueSize": "6"})
        assert (ERROR, "q", "QUEUE_EXISTS") == (refused.kind, refused.queue, refused.error_code)
        assert "QUEUE_EXISTS" == (await create(old, {})).error_code
        assert CREATE_QUEUE == (await create(new, {"maxQueueSize": "6"})).kind

        assert 5 == (await new.info("q"))["maxSize"]


async def test_a_deleted_queue_is_gone_and_its_dead_letters_stay(
    broker: RunningBroker, dialect: str
) -> None:
    """Its waiting messages, messages in flight and subscriptions are gone."""
    async with connected(broker, dialect) as peer, connected(broker, dialect) as other:
        for number in range(4):
            await peer.publish("q", b"%d" % number, f"m{number}")
        await peer.subscribe("q", 2)
        await peer.payloads(2)
        peer.ack("m0", result="reject")
        await peer.payloads(1)
        await peer.expect_silence()
        answer = await other.ask(DELETE_QUEUE, "q", message_id="delete_1")
        assert (DELETE_QUEUE, "delete_1", "q") == (answer.kind, answer.id, answer.queue)
        assert ["dlq.q"] == await other.names()
        assert (1, 0) == await other.counts("dlq.q")
        await peer.settle("m1")
        await other.publish("q", b"9")
        await peer.expect_silence()
        assert (1, 0) == await other.counts("q")
        await peer.subscribe("q")

        assert [b"9"] == await peer.payloads(1)
        await peer.expect_silence()


@pytest.mark.parametrize("kind", [DELETE_QUEUE, QUEUE_INFO])
async def test_an_unknown_queue_is_an_error_in_1_0_only(
    broker: RunningBroker, dialect: str, kind: int
) -> None:
    """QUEUE_NOT_FOUND in 1.0; in 1.1 success and a reply without a payload."""
    async with connected(broker, dialect) as peer:
        answer = await peer.ask(kind, "q")

        assert "q" == answer.queue
        if dialect == V1_0:
            assert (ERROR, "QUEUE_NOT_FOUND") == (answer.kind, answer.error_code)
        else:
            assert (kind, b"") == (answer.kind, answer.payload)


async def test_queue_names_are_sorted_by_code_point(
    broker: RunningBroker, dialect: str
) -> None:
    """Dead-letter queues included; not by any alphabet, nor by UTF-16."""
    names = ["Z", "a", "b.1", "dlq.a", "é", "\ufb00", "\U0001d49c"]
    async with connected(broker, dialect) as peer:
        assert [] == await peer.names()
        for name in reversed(names):
            if not name.startswith("dlq."):
                await peer.publish(name, b"1", "m")
        await peer.subscribe("a")
        await peer.delivered()
        peer.ack("m", result="reject")
        await peer.expect_silence()

        assert names == await peer.names()


async def test_only_visible_queues_are_listed(dialect: str) -> None:
    """Those that match either pattern of the key; an administrator sees all."""
    keys = [
        key_config("ada", "ada-key", publish=["a*"], subscribe=["b*"]),
        key_config("boss", "boss-key", publish=[], subscribe=[], admin=True),
    ]
    async with broker_at(auth={"keys": keys}) as broker, connected(broker, dialect) as owner:
        for name in ("a1", "b1", "c1", "dlq.a1"):
            await owner.create(name)
        async with connected(broker, dialect, headers={"authToken": "ada-key"}) as ada:
            assert ["a1", "b1"] == await ada.names()
        async with connected(broker, dialect, headers={"authToken": "boss-key"}) as boss:
            assert ["a1", "b1", "c1", "dlq.a1"] == await boss.names()


async def test_a_queue_that_is_not_durable_delivers_its_messages(
    broker: RunningBroker, dialect: str
) -> None:
    """They keep the publisher's ids."""
    async with connected(broker, dialect) as peer:
        await peer.create("q", durable="false")
        await peer.publish("q", b"1", "m")
        await peer.subscribe("q")

        assert ("m", b"1") == ((got := await peer.delivered()).id, got.payload)
