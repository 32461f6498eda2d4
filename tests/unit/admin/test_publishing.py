"""Publishing over HTTP: how payloads are read, what is refused, and when it is answered."""

import asyncio
import base64
import json
from collections.abc import Callable

import jsonschema_rs
import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from starlette.types import ASGIApp, Message, Scope

import braidmq
from braidmq.admin import publishing
from braidmq.admin.http.app import build_app
from braidmq.admin.http.refusals import QueueFullError
from braidmq.admin.http.requests import BODY_BYTES_MAX
from braidmq.admin.messages import ShownMessage
from braidmq.admin.publishing import (
    BASE64_PATTERN,
    LARGE_AT_ONCE_MAX,
    PAYLOAD_BYTES_MAX,
    Posted,
    payload_of,
    read_posted,
)
from braidmq.broker.topics import HEADER_BYTES_MAX
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from braidmq.wire.vibe.messages import HEADERS_MAX
from braidmq.wire.vibe.queue_options import QueueOptions
from tests.unit.admin.queue_broker import engine_of, status_of
from tests.unit.admin.world import ADMIN, ORDERS, World, shown_bytes

DROP_NEWEST, BLOCK_PUBLISHER = 1, 2
POSTING = "/api/topics/in.a/messages"


def published(world: World, topic: str = "in.a") -> list[ShownMessage]:
    """Return the messages of a topic that are in the log."""
    if world.engine.broker.topics.find(topic) is None:
        return []
    page = world.status.messages.page(
        topic, from_offset=None, time_us=None, limit=100, newest_first=False
    )
    return asyncio.run(page).messages


async def post(
    world: World | RunningBroker, topic: str, payload: bytes, **headers: str
) -> int | None:
    status = world.status if isinstance(world, World) else status_of(world)
    return await status.publishing.publish(topic, payload, headers=headers, qos=1, priority=2)


def test_publishing_needs_the_permission(client: TestClient, world: World) -> None:
    """An administrator's key does not imply it, and neither does subscribing."""
    answers = [
        client.post("/api/topics/orders.a/messages", headers=ORDERS, json={"payload": 1}),
        client.post(POSTING, headers=ADMIN, json={"payload": 1}),
    ]

    assert [403, 403] == [answer.status_code for answer in answers]
    assert 0 == world.engine.broker.stats.published


BODIES = {
    b'{"payload": "text"}': (b"text", {}, 1, 1),
    b'{"payload": {"n":  1}}': (b'{"n":  1}', {}, 1, 1),
    b'{"payload": 1e999}': (b"1e999", {}, 1, 1),
    b'{"payload": null}': (b"null", {}, 1, 1),
    b'{"payload_base64": "AP8="}': (b"\x00\xff", {}, 1, 1),
    b'{"payload": "", "headers": {"k": "v"}, "qos": 0, "priority": 3}': (b"", {"k": "v"}, 0, 3),
    '{"payload": "\u00fc\\n"}'.encode(): ("\u00fc\n".encode(), {}, 1, 1),
    b'{"payload": "text", "encoding": "text"}': (b"text", {}, 1, 1),
    b'{"payload": "text", "encoding": "json"}': (b'"text"', {}, 1, 1),
    b'{"payload": 1, "offset": 7, "origin": "vibe"}': (b"1", {}, 1, 1),
}


@pytest.mark.parametrize(("body", "expected"), BODIES.items())
def test_a_posted_message_is_published(
    client: TestClient,
    world: World,
    body: bytes,
    expected: tuple[bytes, dict[str, str], int, int],
) -> None:
    """A string is its text, other JSON its own bytes; a memory-only message has no offset."""
    answer = client.post(POSTING, headers=ORDERS, content=body)
    is_stored = expected[2] == 1

    assert (201, {"offset": 1 if is_stored else None}) == (answer.status_code, answer.json())
    assert 1 == world.engine.broker.stats.published
    assert ([expected] if is_stored else []) == [
        (shown_bytes(one), one.headers, one.qos, one.priority) for one in published(world)
    ]


@pytest.mark.parametrize("payload", [b"text", b'"text"', b'{"n":  1}', b"\x00\xff", b"", b"7"])
def test_a_shown_message_can_be_posted_again(
    client: TestClient, world: World, payload: bytes
) -> None:
    """Unchanged, with every field; the payload is the same to the byte."""
    world.publish("orders.a", payload)
    (stored,) = published(world, "orders.a")
    body = msgspec.json.encode(stored)
    answer = client.post(POSTING, headers=ORDERS, content=body)

    assert 201 == answer.status_code
    assert [(payload, stored.headers, stored.qos, stored.priority)] == [
        (shown_bytes(one), one.headers, one.qos, one.priority) for one in published(world)
    ]


BAD_BODIES = [
    b"",
    b"[]",
    b"{}",
    b'{"payload": 1, "payload_base64": ""}',
    b'{"payload": 1, "offsets": 7}',
    b'{"payload": 1, "encoding": "hex"}',
    b'{"payload": "begin", "truncated": true}',
    b'{"payload_base64": "!"}',
    b'{"payload_base64": 1}',
    b'{"payload": 1, "qos": 2}',
    b'{"payload": 1, "qos": true}',
    b'{"payload": 1, "priority": 4}',
    b'{"payload": 1, "headers": {"k": 1}}',
    b'{"payload": 1, "headers": {"": "v"}}',
    b'{"payload": "\\ud800"}',
    b'{"payload": "\xff"}',
    b'{"payload": {"k": "\xff"}}',
    b'{"payload": 1, "' + 9_999 * b"k" + b'": 1}',
    b'{"payload": NaN}',
    b'{"payload": ' + 5000 * b"[" + 5000 * b"]" + b"}",
    json.dumps({"payload": 1, "headers": {"k": 70_000 * "v"}}).encode(),
]


@pytest.mark.parametrize("body", BAD_BODIES, ids=range(len(BAD_BODIES)))
def test_a_bad_message_is_refused_in_one_line(
    client: TestClient, world: World, body: bytes
) -> None:
    """400, short, and nothing is published."""
    answer = client.post(POSTING, headers=ORDERS, content=body)

    assert 400 == answer.status_code
    assert len(answer.json()["error"]) < 250
    assert 0 == world.engine.broker.stats.published


def posted_headers(headers: dict[str, str]) -> bytes:
    return json.dumps({"payload": 1, "headers": headers}).encode()


@pytest.mark.parametrize(
    "headers",
    [
        {HEADER_BYTES_MAX * "k": "v"},
        {"k": HEADER_BYTES_MAX * "v"},
        {"k" + HEADER_BYTES_MAX // 2 * "ö": ""},
        {str(i): "v" for i in range(HEADERS_MAX)},
        # A dead letter is posted again as it was shown; the broker's own headers do not count.
        {**{str(i): "v" for i in range(HEADERS_MAX)}, "deathReason": "rejected"},
    ],
    ids=["name", "value", "utf8", "number", "dead letter"],
)
def test_headers_may_be_as_many_and_as_long_as_the_limits(
    client: TestClient, world: World, headers: dict[str, str]
) -> None:
    """The same limits as on Vibe, so that every consumer can be told of them."""
    answer = client.post(POSTING, headers=ORDERS, content=posted_headers(headers))

    assert 201 == answer.status_code
    kept = {k: v for k, v in headers.items() if k != "deathReason"}
    assert [kept] == [one.headers for one in published(world)]


@pytest.mark.parametrize(
    ("headers", "limit"),
    [
        ({(HEADER_BYTES_MAX + 1) * "k": ""}, "65535 bytes"),
        ({HEADER_BYTES_MAX // 2 * "ö" + "kk": ""}, "65535 bytes"),
        ({"k": (HEADER_BYTES_MAX + 1) * "v"}, "65536 bytes"),
        ({str(i): "v" for i in range(HEADERS_MAX + 1)}, "at most 100"),
    ],
    ids=["name", "utf8", "value", "number"],
)
def test_more_or_longer_headers_are_refused(
    client: TestClient, world: World, headers: dict[str, str], limit: str
) -> None:
    """400, with the limit, and nothing is published."""
    answer = client.post(POSTING, headers=ORDERS, content=posted_headers(headers))

    assert 400 == answer.status_code
    assert limit in answer.json()["error"]
    assert 0 == world.engine.broker.stats.published


def test_a_payload_may_be_as_large_as_the_limit_and_no_larger() -> None:
    """The limit holds for the decoded bytes."""
    largest = base64.b64encode(bytes(PAYLOAD_BYTES_MAX)).decode()
    posted = read_posted(json.dumps({"payload_base64": largest}).encode())

    assert PAYLOAD_BYTES_MAX == len(payload_of(posted))
    with pytest.raises(HTTPException) as raised:
        payload_of(
            Posted(payload_base64=base64.b64encode(bytes(PAYLOAD_BYTES_MAX + 1)).decode())
        )
    assert 413 == raised.value.status_code


def test_a_body_without_a_length_is_accepted_as_well(client: TestClient, world: World) -> None:
    """It may be large, so it waits its turn among the large ones."""
    answer = client.post(POSTING, headers=ORDERS, content=iter([b'{"payload"', b": 1}"]))

    assert 201 == answer.status_code
    assert [b"1"] == [shown_bytes(one) for one in published(world)]


def test_a_body_beyond_the_limit_is_413(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it states its length or not, it is not kept in memory."""
    monkeypatch.setattr(publishing, "POST_BYTES_MAX", 99)
    body = json.dumps({"payload": 100 * "x"}).encode()
    answers = [
        client.post(POSTING, headers=ORDERS, content=content)
        for content in (body, iter([body]))
    ]

    assert [413, 413] == [answer.status_code for answer in answers]
    assert 0 == world.engine.broker.stats.published


class Poster:
    """A client that posts a message without a stated length when the test says so."""

    def __init__(self, app: ASGIApp) -> None:
        self.awaited = asyncio.Event()  # the application waits for the body
        self.send = asyncio.Event()
        self.status = 0
        scope: Scope = {
            "type": "http",
            "method": "POST",
            "path": POSTING,
            "raw_path": POSTING.encode(),
            "query_string": b"",
            "headers": [
                (b"authorization", ORDERS["Authorization"].encode()),
                (b"host", b"localhost"),
            ],
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def _receive(self) -> Message:
        self.awaited.set()
        await self.send.wait()
        return {"type": "http.request", "body": b'{"payload": 1}', "more_body": False}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


@pytest.mark.asyncio
async def test_only_a_few_large_bodies_are_read_at_once(world: World) -> None:
    """The others wait, unread, until one is done: this bounds the memory."""
    app = build_app(world.status, loopback=True)
    posters = [Poster(app) for _ in range(LARGE_AT_ONCE_MAX + 1)]
    async with asyncio.timeout(20):
        for poster in posters[:LARGE_AT_ONCE_MAX]:
            await poster.awaited.wait()
        for _ in range(100):  # turns of the loop, in which the last one could begin
            await asyncio.sleep(0)
        assert not posters[-1].awaited.is_set()
        for poster in posters:
            poster.send.set()
            await poster.task

    assert [201] * len(posters) == [poster.status for poster in posters]


def test_a_large_body_is_read_on_a_thread(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not block the event loop; a small one is not worth a thread."""
    on_thread: list[bool] = []
    taken: Callable[[bytes], tuple[Posted, bytes]] = publishing.taken

    def noted(body: bytes) -> tuple[Posted, bytes]:
        on_thread.append(asyncio._get_running_loop() is None)  # noqa: SLF001 - the public function raises
        return taken(body)

    monkeypatch.setattr(publishing, "taken", noted)
    large = json.dumps({"payload": BODY_BYTES_MAX * "x"}).encode()
    for content in (large, b'{"payload": 1}'):
        assert 201 == client.post(POSTING, headers=ORDERS, content=content).status_code

    assert [True, False] == on_thread


def test_a_full_queue_is_409(client: TestClient, world: World) -> None:
    """With the reason."""
    world.declare("in.a", max_size=1, overflow=DROP_NEWEST)
    world.publish("in.a", b"1")
    answer = client.post(POSTING, headers=ORDERS, json={"payload": 1})

    assert (409, {"error": QueueFullError.text}) == (answer.status_code, answer.json())


@given(st.text("Az09+/", max_size=9), st.text("=", max_size=3), st.sampled_from(["", *"\n-_A"]))
def test_the_pattern_of_base64_matches_what_is_accepted(
    begun: str, filled: str, end: str
) -> None:
    """The description and the broker agree."""
    assume(
        len(begun) % 4 or not filled
    )  # some versions of Python accept padding where none is due
    text = begun + filled + end
    posted = Posted(payload_base64=text)
    try:
        payload_of(posted)
    except HTTPException:
        is_accepted = False
    else:
        is_accepted = True

    assert is_accepted == jsonschema_rs.is_valid({"pattern": BASE64_PATTERN}, text)


@pytest.mark.asyncio
async def test_a_published_message_is_durable_and_delivered() -> None:
    """To subscribers of any strand, with the origin of HTTP."""
    async with running_broker() as broker, braidmq.connect(broker.url()) as client:
        async with client.subscribe("t", qos=1) as incoming:
            offset = await post(broker, "t", b"hello", k="v")
            assert offset is not None
            assert offset <= engine_of(broker).broker.committed_id
            message = await anext(aiter(incoming))
            await message.ack()
        stored = await status_of(broker).messages.one("t", offset)

        assert (b"hello", b"hello", "http", 2, {"k": "v"}) == (
            message.payload,
            shown_bytes(stored),
            stored.origin,
            stored.priority,
            stored.headers,
        )


@pytest.mark.asyncio
async def test_a_repeat_is_recognised() -> None:
    """By the same header as on other strands; it gets the same offset."""
    world = World()
    offsets = [await post(world, "t", b"x", dedupId="1") for _ in range(3)]

    assert 1 == len(set(offsets))
    assert 1 == world.engine.broker.stats.published


@pytest.mark.asyncio
async def test_a_repeat_is_recognised_while_both_wait_for_room() -> None:
    """A client timed out and retries; room for two does not make two messages of one."""
    world = World()
    queues = world.status.queues
    await queues.create("q", QueueOptions(max_size=2, overflow=BLOCK_PUBLISHER))
    world.publish("q", b"1", b"2")
    waiting = [asyncio.ensure_future(post(world, "q", b"x", dedupId="1")) for _ in range(2)]
    for _ in range(100):  # turns of the loop, in which both begin to wait
        await asyncio.sleep(0)
    await queues.purge("q")
    first, second = await asyncio.gather(*waiting)

    assert first == second
    assert 1 == world.engine.broker.stats.duplicates


@pytest.mark.asyncio
async def test_a_memory_only_message_has_no_offset() -> None:
    """It goes to current subscribers, and is not in the log."""
    world = World()
    given = await world.status.publishing.publish("t", b"x", headers={}, qos=0, priority=1)

    assert None is given
    assert 1 == world.engine.broker.stats.published
    assert 0 == world.wal.committed_id


@pytest.mark.asyncio
async def test_a_full_queue_refuses_blocks_or_redirects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it was declared."""
    monkeypatch.setattr(publishing, "ROOM_WAIT_S", 0.05)
    world = World()
    queues = world.status.queues
    for name, overflow in (("drop", DROP_NEWEST), ("block", BLOCK_PUBLISHER), ("bury", 3)):
        await queues.create(name, QueueOptions(max_size=1, overflow=overflow))
        await post(world, name, b"1")
    for name in ("drop", "block"):
        with pytest.raises(QueueFullError):
            await post(world, name, b"2")
    letter = await post(world, "bury", b"2")
    waiting = asyncio.ensure_future(post(world, "block", b"3"))
    await queues.purge("block")

    assert await waiting
    assert (
        letter
        == (await world.status.letters.letters("dlq.bury", from_offset=1, limit=9))
        .letters[0]
        .offset
    )


@pytest.mark.asyncio
async def test_a_publish_that_the_log_refuses_is_unavailable() -> None:
    """503, with the reason."""
    world = World()
    world.engine.broker.admission.log_refuses("no space left")
    with pytest.raises(UnavailableError, match="no space left"):
        await post(world, "t", b"x")
    world.engine.drain()
    with pytest.raises(UnavailableError, match="shutting down"):
        await post(world, "t", b"x")


async def post_in_memory(world: World) -> int | None:
    return await world.status.publishing.publish("t", b"x", headers={}, qos=0, priority=1)


@pytest.mark.asyncio
async def test_a_memory_only_message_needs_no_log(world: World) -> None:
    """It is accepted while the log is behind or refuses, and while the broker drains."""
    engine = world.engine
    engine.broker.outgoing.bytes += engine.uncommitted_bytes_max
    given = [await post_in_memory(world)]
    engine.broker.outgoing.bytes -= engine.uncommitted_bytes_max
    engine.broker.admission.log_refuses("no space left")
    given.append(await post_in_memory(world))
    engine.drain()
    given.append(await post_in_memory(world))

    assert ([None] * 3, 3) == (given, engine.broker.stats.published)


@pytest.mark.asyncio
async def test_a_repeat_is_acknowledged_while_publishes_are_refused(world: World) -> None:
    """It is stored already, and needs neither room nor the log."""
    first = await post(world, "t", b"x", dedupId="1")
    world.engine.broker.admission.log_refuses("no space left")
    refusing = await post(world, "t", b"x", dedupId="1")
    world.engine.drain()

    assert [first] * 2 == [refusing, await post(world, "t", b"x", dedupId="1")]


def test_headers_of_the_broker_are_not_kept(client: TestClient, world: World) -> None:
    """A forged `deathQueue` would put the dedup id on another queue after a restart."""
    headers = {"dedupId": "1", "deathQueue": "other", "deliveryAttempts": "9"}
    client.post(POSTING, headers=ORDERS, json={"payload": 1, "headers": headers})
    (message,) = published(world)

    assert {"dedupId": "1"} == message.headers


@pytest.mark.asyncio
async def test_a_publish_that_waits_too_long_for_the_log_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, and counted."""
    monkeypatch.setattr(publishing, "ROOM_WAIT_S", 0.0)
    engine = world.engine
    engine.broker.outgoing.bytes += engine.uncommitted_bytes_max
    with pytest.raises(UnavailableError, match="cannot keep up"):
        await post(world, "t", b"x")
    engine.broker.outgoing.bytes -= engine.uncommitted_bytes_max

    assert 1 == engine.broker.stats.refused
