"""Messages over HTTP: read from the log in pages, and how payloads are shown."""

import asyncio
import base64
import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

import braidmq
from braidmq.admin import messages
from braidmq.admin.http.refusals import UnknownMessageError, UnknownTopicError
from braidmq.admin.messages import (
    SHOWN_BYTES_MAX,
    MessagesPage,
    is_sealed,
    shown_message,
)
from braidmq.testing.broker import running_broker
from tests.unit.admin.queue_broker import status_of
from tests.unit.admin.world import ADMIN, ORDERS, World, shown_bytes

SECOND_US = 1_000_000
READING = "/api/topics/orders.a/messages"


async def page(
    world: World,
    *,
    from_offset: int | None = None,
    time_us: int | None = None,
    limit: int = 100,
    newest_first: bool = False,
) -> MessagesPage:
    return await world.status.messages.page(
        "t", from_offset=from_offset, time_us=time_us, limit=limit, newest_first=newest_first
    )


async def payloads(world: World, *, limit: int, newest_first: bool) -> list[bytes]:
    """Return all payloads of `t`, read page by page."""
    found: list[bytes] = []
    following: int | None = None
    while True:
        one = await page(world, from_offset=following, limit=limit, newest_first=newest_first)
        assert len(one.messages) <= limit
        found += [shown_bytes(message) for message in one.messages]
        following = one.next
        if following is None:
            return found


def shown(payload: bytes, bytes_max: int | None = SHOWN_BYTES_MAX) -> tuple[object, str, bool]:
    """Return a payload as the API shows it: value, encoding, and whether it was truncated."""
    world = World()
    world.publish("t", payload)
    (stored,) = world.wal.read(0, topic=b"t", up_to=1, count_max=1, bytes_max=1).records
    found = shown_message(*stored, b"t", bytes_max)
    if found.encoding == "base64":
        return found.payload_base64, found.encoding, found.truncated
    assert isinstance(found.payload, msgspec.Raw)
    return json.loads(bytes(found.payload)), found.encoding, found.truncated


PAYLOADS = {
    b'{"n": 1}': ({"n": 1}, "json", False),
    b" [1, 2]\n": ([1, 2], "json", False),
    b'"quoted"': ("quoted", "json", False),
    b"null": (None, "json", False),
    b"12345678901234567890123": (12345678901234567890123, "json", False),
    b"hello": ("hello", "text", False),
    b"": ("", "text", False),
    b"<script>": ("<script>", "text", False),
    "gr\u00fc\u00df".encode(): ("gr\u00fc\u00df", "text", False),
    b"NaN": ("NaN", "text", False),
    b"{": ("{", "text", False),
    b"\x00\xff": ("AP8=", "base64", False),
    b'"\xff"': ("Iv8i", "base64", False),
}


@pytest.mark.parametrize(("payload", "expected"), PAYLOADS.items())
def test_a_payload_is_json_else_text_else_base64(
    payload: bytes, expected: tuple[object, str, bool]
) -> None:
    """Exactly: no number is rounded, and nothing but JSON passes for JSON."""
    assert expected == shown(payload)


def test_a_long_payload_is_truncated() -> None:
    """In a page; a message on its own is shown whole. Truncated JSON is text."""
    payload = json.dumps("x" * SHOWN_BYTES_MAX).encode()
    text, encoding, truncated = shown(payload)

    assert (SHOWN_BYTES_MAX, "text", True) == (len(str(text)), encoding, truncated)
    assert ("x" * SHOWN_BYTES_MAX, "json", False) == shown(payload, None)


def test_truncation_leaves_no_half_character() -> None:
    """A character that straddles the limit is left out, and the rest is still text."""
    assert ("\u20ac", "text", True) == shown("\u20ac\u20ac".encode(), 5)
    assert ("gqw=", "base64", True) == shown("\u20ac".encode()[1:] + b"x", 2)


def test_a_message_is_shown_with_all_that_the_log_knows(
    client: TestClient, world: World
) -> None:
    """The names of the fields are the API; a page's `next` is null at the end."""
    world.publish("orders.a", b'{"n": 1}', b"2")
    page = client.get(f"{READING}?limit=1", headers=ORDERS).json()

    expected = {
        "offset": 1,
        "timestamp": "2027-01-15T08:00:00Z",
        "id": None,
        "payload": {"n": 1},
        "encoding": "json",
        "size": 8,
        "headers": {},
        "qos": 1,
        "priority": 1,
        "origin": "vibe",
        "sealed": False,
        "truncated": False,
    }
    assert {"messages": [expected], "next": 2} == page
    assert expected == client.get(f"{READING}/1", headers=ORDERS).json()


def test_a_page_is_chosen_by_offset_time_and_order(client: TestClient, world: World) -> None:
    """Without parameters it begins with the oldest message."""
    for payload in (b"1", b"2", b"3"):
        world.publish("orders.a", payload)
        world.clock.advance(1.0)
    queries = ("", "?from=2", "?from=3&limit=1&order=desc", "?time=2027-01-15T08:00:01Z")
    pages = [client.get(f"{READING}{query}", headers=ORDERS).json() for query in queries]

    assert [[1, 2, 3], [2, 3], [2], [2, 3]] == [
        [one["payload"] for one in page["messages"]] for page in pages
    ]


def test_an_unknown_message_is_404(client: TestClient, world: World) -> None:
    """An offset that holds no message of the topic."""
    world.publish("orders.a", b"1")

    assert 404 == client.get(f"{READING}/9", headers=ORDERS).status_code


@pytest.mark.parametrize("offset", ["0", "x", "-1", "1.5", str(2**64), 5000 * "9"])
def test_an_offset_is_a_whole_number(client: TestClient, offset: str) -> None:
    """404, and the answer says what an offset is."""
    answer = client.get(f"{READING}/{offset}", headers=ORDERS)

    assert (404, {"error": "no such message: offsets are whole numbers from 1 on"}) == (
        answer.status_code,
        answer.json(),
    )


def test_reading_needs_the_permission_to_subscribe(client: TestClient) -> None:
    """An administrator's key does not imply it, and neither does publishing."""
    answers = [
        client.get("/api/topics/in.a/messages", headers=ORDERS),
        client.get(READING, headers=ADMIN),
        client.get(f"{READING}/1", headers=ADMIN),
    ]

    assert 3 * [403] == [answer.status_code for answer in answers]


def test_messages_are_shown_on_a_thread(
    client: TestClient, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large payloads do not block the event loop."""
    world.publish("orders.a", b"x")
    on_thread: dict[str, bool] = {}

    def noted(name: str, found: Callable[..., object]) -> Callable[..., object]:
        def called(*given: object) -> object:
            on_thread[name] = asyncio._get_running_loop() is None  # noqa: SLF001 - the public function raises
            return found(*given)

        return called

    names = ("shown_message", "answered")
    for name in names:
        monkeypatch.setattr(messages, name, noted(name, getattr(messages, name)))
    for path in (READING, f"{READING}/1"):
        on_thread.clear()
        assert 200 == client.get(path, headers=ORDERS).status_code
        assert dict.fromkeys(names, True) == on_thread


@pytest.mark.asyncio
@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("limit", [1, 4, 100])
@pytest.mark.parametrize("segment_bytes", [65_536, 2**20])
async def test_messages_come_in_pages_both_ways(
    limit: int, newest_first: bool, segment_bytes: int
) -> None:
    """Each once, whatever lies between them in the log, and across segments."""
    expected = [b"%02d" % number for number in range(10)]
    world = World(wal={"segment_bytes": segment_bytes})
    for payload in expected:
        world.publish("t", payload)
        world.publish("other", 20_000 * b"x")
    found = await payloads(world, limit=limit, newest_first=newest_first)

    assert (expected[::-1] if newest_first else expected) == found


@pytest.mark.asyncio
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_ends_when_enough_was_read(
    monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    """By bytes read or ids searched: the page is then short, and says where to continue."""
    expected = [b"%02d" % number for number in range(7)]
    world = World()
    for payload in expected:
        world.publish("t", payload)
        world.publish("other", b"x")
    for bound in ("READ_BYTES_MAX", "READ_ROWS_MAX", "GROUP_MESSAGES"):
        with monkeypatch.context() as patch:
            patch.setattr(messages, bound, 2)
            first = await page(world, newest_first=newest_first)
            if bound == "READ_BYTES_MAX":
                assert 1 == len(first.messages)
            found = await payloads(world, limit=100, newest_first=newest_first)
            assert (expected[::-1] if newest_first else expected) == found


@pytest.mark.asyncio
async def test_one_page_is_read_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or one message: what was read stays in memory until it is answered, so this bounds it."""
    began = 0
    may_end = asyncio.Event()

    async def slowly(*given: Any, **named: Any) -> object:  # noqa: ANN401 - passed on as they come
        nonlocal began
        began += 1
        await may_end.wait()
        return await read(*given, **named)

    world = World()
    read = world.status.log.read
    world.publish("t", b"x")
    monkeypatch.setattr(world.status.log, "read", slowly)
    requests = [
        asyncio.ensure_future(request)
        for request in (page(world), world.status.messages.one("t", 1), page(world))
    ]
    for _ in range(100):  # turns of the loop, in which the others could begin
        await asyncio.sleep(0)
    assert 1 == began
    may_end.set()
    await asyncio.gather(*requests)

    assert 3 == began


@pytest.mark.asyncio
async def test_a_page_begins_at_a_time() -> None:
    """Forwards with the first that is not older, backwards with the last that is not newer."""
    world = World()
    start_us = world.clock.now_us()
    for number in range(5):
        world.publish("t", b"%d" % number)
        world.clock.advance(1.0)
    middle_us = start_us + 2 * SECOND_US
    forwards = await page(world, time_us=middle_us)
    backwards = await page(world, time_us=middle_us, newest_first=True)

    assert [b"2", b"3", b"4"] == [shown_bytes(message) for message in forwards.messages]
    assert [b"2", b"1", b"0"] == [shown_bytes(message) for message in backwards.messages]
    assert [] == (await page(world, time_us=start_us + 99 * SECOND_US)).messages


@pytest.mark.asyncio
async def test_a_publishers_id_is_shown_apart_from_the_headers() -> None:
    """It has a field of its own."""
    async with running_broker() as broker:
        async with braidmq.connect(broker.url("vibe")) as client:
            await client.publish("t", b'{"n": 1}', headers={"k": "v"}, priority=2)
        (message,) = (
            await status_of(broker).messages.page(
                "t", from_offset=None, time_us=None, limit=9, newest_first=False
            )
        ).messages
        alone = await status_of(broker).messages.one("t", message.offset)

        assert message == alone
        assert (b'{"n": 1}', "vibe", 2, "v") == (
            shown_bytes(message),
            message.origin,
            message.priority,
            message.headers["k"],
        )
        assert message.id
        assert "" not in message.headers


@pytest.mark.asyncio
async def test_an_unknown_topic_or_message_is_an_error() -> None:
    """An unknown topic, an offset of another topic, an offset that is not written yet."""
    world = World()
    world.publish("t", b"x")
    world.publish("other", b"x")
    source = world.status.messages
    with pytest.raises(UnknownTopicError):
        await source.one("none", 1)
    for offset in (2, 3, 2**64 - 1):
        with pytest.raises(UnknownMessageError):
            await source.one("t", offset)
    past = await page(world, from_offset=2**64 - 1)

    assert ([], None) == (past.messages, past.next)


def test_a_sealed_payload_is_a_box_with_the_senders_key() -> None:
    """Long enough, with a sender's key, and not JSON."""
    key = {"senderPublicKey": base64.b64encode(bytes(32)).decode()}

    assert is_sealed(bytes(40), key)
    assert not is_sealed(bytes(39), key)
    assert not is_sealed(bytes(40), {})
    assert not is_sealed(bytes(40), {"senderPublicKey": "AA=="})
    assert not is_sealed(bytes(40), {"senderPublicKey": "!"})
    assert not is_sealed(b'"' + 40 * b"x" + b'"', key)
