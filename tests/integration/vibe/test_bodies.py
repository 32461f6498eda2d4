"""Bodies: which headers, payloads, ids and queue names the broker accepts or refuses."""

import pytest

from braidmq.testing.broker import RunningBroker
from tests.integration.vibe.peer import (
    ACK,
    CONNECT_ACK,
    CREATE_QUEUE,
    DELETE_QUEUE,
    DELIVER,
    DISCONNECT,
    ERROR,
    LIST_QUEUES,
    PING,
    PONG,
    PUBLISH,
    PUBLISH_ACK,
    QUEUE_INFO,
    SUBSCRIBE,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE,
    UNSUBSCRIBE_ACK,
    Headers,
    body,
    connected,
    frame,
)

pytestmark = pytest.mark.asyncio

INVALID = "INVALID_MESSAGE"

JSON = {
    "absent": b"",
    "object": b'{"a" : 1 , "a":2}',
    "array": b"[1,2 ,3]",
    "number": b"-0.0e-10",
    "a huge number": b"1" * 400 + b"e999",
    "text": '"héllo \\u0041 \U0001f600"'.encode(),
    "a lone surrogate": b'"\\ud800"',
    "null": b"null",
    "spaces around": b" \n\t\r true \n",
    "depth 64": b"[" * 64 + b"]" * 64,
    "brackets in text": b'"' + b"[" * 100 + b'"',
}


@pytest.mark.parametrize("how", JSON)
async def test_json_is_relayed_byte_for_byte(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """The broker does not re-encode it; an absent payload stays absent."""
    async with connected(broker, dialect) as peer:
        await peer.publish("q", JSON[how])
        await peer.subscribe("q")

        assert JSON[how] == (await peer.delivered()).payload


NOT_JSON = {
    "text without quotes": b"hello",
    "NaN": b"NaN",
    "Infinity": b"[-Infinity]",
    "two values": b"1 2",
    "a leading zero": b"01",
    "a trailing comma": b"[1,]",
    "not UTF-8": b'"\xff"',
    "an encoded surrogate": b'"\xed\xa0\x80"',
    "a byte order mark": b"\xef\xbb\xbf1",
    "only a space": b" ",
    "depth 65": b"[" * 65 + b"]" * 65,
    "a control character": b'"\x01"',
    "cut": b'{"a":',
}


@pytest.mark.parametrize("how", NOT_JSON)
async def test_a_payload_that_is_not_json_is_refused(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """It must be RFC 8259 JSON in UTF-8, nested at most 64 deep; the connection stays open."""
    async with connected(broker, dialect) as peer:
        for _ in range(2):  # the second time the queue exists
            answer = await peer.ask(PUBLISH, "q", NOT_JSON[how])
            assert (ERROR, "q", INVALID) == (answer.kind, answer.queue, answer.error_code)
            await peer.create("q")
        await peer.expect_silence()

        assert (0, 0) == await peer.counts("q")


HEADERS: dict[str, tuple[Headers, dict[str, str]]] = {
    "an empty value": ([("k", "")], {"k": ""}),
    "a repeated key": ([("k", "1"), ("o", "2"), ("k", "3")], {"k": "3", "o": "2"}),
    "other scripts": ([("ключ", "値")], {"ключ": "値"}),
    "100 of them": (
        [(f"k{number}", "v") for number in range(100)],
        {f"k{number}": "v" for number in range(100)},
    ),
    "a long value": ([("k", "v" * 60_000)], {"k": "v" * 60_000}),
}


@pytest.mark.parametrize("how", HEADERS)
async def test_headers_are_kept(broker: RunningBroker, dialect: str, how: str) -> None:
    """An empty value stays an empty string; the last value of a repeated key wins."""
    sent, kept = HEADERS[how]
    async with connected(broker, dialect) as peer:
        assert PUBLISH_ACK == (await peer.ask(PUBLISH, "q", b"1", sent)).kind
        await peer.subscribe("q")
        got = dict((await peer.delivered()).headers)
        assert "1" == got.pop("deliveryAttempts")
        assert got.pop("timestamp")

        assert kept == got


FAULTS = {
    "an empty key": body(PUBLISH, "m", "q", b"1", [("", "v")]),
    "an empty key among others": body(PUBLISH, "m", "q", b"1", [("a", "v"), ("", "")]),
    "101 headers": body(PUBLISH, "m", "q", b"1", [(f"k{n}", "v") for n in range(101)]),
    "the same header 101 times": body(PUBLISH, "m", "q", b"1", [("k", "v")] * 101),
    "version 0": body(PUBLISH, "m", "q", b"1", version=0),
    "version 2": body(PUBLISH, "m", "q", b"1", version=2),
    "version 255": body(PING, "m", "q", version=255),
    "no queue": body(PUBLISH, "m", "", b"1"),
    "a Subscribe without a queue": body(SUBSCRIBE, "m"),
    "an Unsubscribe without a queue": body(UNSUBSCRIBE, "m"),
    "a CreateQueue without a queue": body(CREATE_QUEUE, "m"),
    "a DeleteQueue without a queue": body(DELETE_QUEUE, "m"),
    "a QueueInfo without a queue": body(QUEUE_INFO, "m"),
    "a CreateQueue that is not JSON": body(CREATE_QUEUE, "m", "q", b"x"),
    "a CreateUser that is not JSON": body(50, "m", "", b"x"),
    "prefetch 0": body(SUBSCRIBE, "m", "q", headers={"prefetch": "0"}),
    "prefetch 10,001": body(SUBSCRIBE, "m", "q", headers={"prefetch": "10001"}),
    "prefetch -1": body(SUBSCRIBE, "m", "q", headers={"prefetch": "-1"}),
    "prefetch many": body(SUBSCRIBE, "m", "q", headers={"prefetch": "many"}),
    "prefetch empty": body(SUBSCRIBE, "m", "q", headers={"prefetch": ""}),
    "an Ack with another result": body(ACK, "m", headers={"result": "accept"}),
    "an Ack with a bad delay": body(ACK, "m", headers={"result": "requeue", "delayMs": "-1"}),
    "an Ack with too long a delay": body(
        ACK, "m", headers={"result": "requeue", "delayMs": "86400001"}
    ),
}


@pytest.mark.parametrize("how", FAULTS)
async def test_bad_values_are_refused_and_the_connection_stays_open(
    broker: RunningBroker, dialect: str, how: str
) -> None:
    """INVALID_MESSAGE with the request's id, and with its queue if it named one."""
    async with connected(broker, dialect) as peer:
        peer.send(frame(dialect, FAULTS[how]))
        answer = await peer.next()

        assert (ERROR, "m", INVALID) == (answer.kind, answer.id, answer.error_code)
        assert ("q" if b"\0\x01q" in FAULTS[how][:8] else "") == answer.queue
        assert answer.error_message
        await peer.expect_silence()
        assert [] == await peer.names()


async def test_the_refusal_of_an_empty_id_has_a_generated_one(
    broker: RunningBroker, dialect: str
) -> None:
    """INVALID_MESSAGE, with a different id each time."""
    async with connected(broker, dialect) as peer:
        peer.send(*(peer.frame(kind, "", "q", b"1") for kind in (PUBLISH, PING, 77)))
        answers = [await peer.next() for _ in range(3)]

        assert [INVALID] * 3 == [answer.error_code for answer in answers]
        assert 3 == len({answer.id for answer in answers} - {""})
        await peer.expect_silence()


GOOD_NAMES = [
    "q",
    "A-b_c.9",
    "...",
    "-",
    "x" * 256,
    "очередь",
    "列٣",
    "\U0001d49c" * 256,
]


@pytest.mark.parametrize("name", GOOD_NAMES)
async def test_a_queue_name_has_letters_digits_hyphens_underscores_and_dots(
    broker: RunningBroker, dialect: str, name: str
) -> None:
    """1 to 256 characters; letters are Unicode's L*, digits are Nd."""
    async with connected(broker, dialect) as peer:
        await peer.publish(name, b"1")
        await peer.subscribe(name)

        assert name == (await peer.delivered()).queue


BAD_NAMES = ["x" * 257, "a b", "a/b", "a*", "q\n", "½", "²", "e\u0301", "a\0", "😀", "{}"]


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_any_other_queue_name_is_refused(
    broker: RunningBroker, dialect: str, name: str
) -> None:
    """INVALID_MESSAGE, and no queue is created."""
    kinds = [PUBLISH, SUBSCRIBE, UNSUBSCRIBE, CREATE_QUEUE, DELETE_QUEUE, QUEUE_INFO]
    async with connected(broker, dialect) as peer:
        answers = [await peer.ask(kind, name) for kind in kinds]

        assert [INVALID] * len(kinds) == [answer.error_code for answer in answers]
        assert [] == await peer.names()


SERVER_TO_CLIENT = [
    CONNECT_ACK,
    PONG,
    PUBLISH_ACK,
    SUBSCRIBE_ACK,
    UNSUBSCRIBE_ACK,
    DELIVER,
    ERROR,
]


@pytest.mark.parametrize("kind", [*SERVER_TO_CLIENT, 3, 9, 27, 44, 49, 57, 98, 100, 255])
async def test_an_unknown_type_is_refused(
    broker: RunningBroker, dialect: str, kind: int
) -> None:
    """INVALID_MESSAGE "unknown command type N", for server-to-client types as well."""
    async with connected(broker, dialect) as peer:
        answer = await peer.ask(kind, "q")

        assert (ERROR, "q") == (answer.kind, answer.queue)
        assert (INVALID, f"unknown command type {kind}") == answer.error
        await peer.expect_silence()


async def test_answers_name_the_queue_of_the_request(
    broker: RunningBroker, dialect: str
) -> None:
    """Every answer has the request's id, and its queue if it named one."""
    async with connected(broker, dialect) as peer:
        kinds = [CREATE_QUEUE, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, QUEUE_INFO, DELETE_QUEUE, PING]
        for kind in kinds:
            answer = await peer.ask(kind, "q", message_id=f"the {kind}")
            assert (f"the {kind}", "q") == (answer.id, answer.queue)
        assert "" == (await peer.ask(PING)).queue
        assert "" == (await peer.ask(LIST_QUEUES)).queue


async def test_ack_and_disconnect_have_no_answer(broker: RunningBroker, dialect: str) -> None:
    """After a Disconnect the broker closes the connection."""
    async with connected(broker, dialect) as peer:
        peer.ack("whatever")
        await peer.expect_silence()
        peer.send(peer.frame(DISCONNECT, "d"), peer.frame(PING, "never answered"))
        await peer.expect_close()
