"""Messages over HTTP: how payloads are shown and taken, and what is refused."""

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

from braidmq.admin import messages
from braidmq.admin.http.app import build_app
from braidmq.admin.http.refusals import QueueFullError
from braidmq.admin.http.requests import BODY_BYTES_MAX
from braidmq.admin.messages import (
    BASE64_PATTERN,
    LARGE_AT_ONCE_MAX,
    PAYLOAD_BYTES_MAX,
    SHOWN_BYTES_MAX,
    Posted,
    as_json,
    payload_of,
    read_posted,
)
from tests.unit.admin.sources import ADMIN, ORDERS, FakeSource, message

READING = "/api/topics/orders.a/messages"
POSTING = "/api/topics/in.a/messages"


def shown(payload: bytes, bytes_max: int | None = SHOWN_BYTES_MAX) -> tuple[object, str, bool]:
    """Return a payload as the API shows it: value, encoding, and whether it was cut."""
    found = as_json(message(1, payload), bytes_max)
    if found.encoding == "base64":
        return found.payload_base64, found.encoding, found.truncated
    assert isinstance(found.payload, bytes | bytearray | memoryview) or found.payload
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
    """To the letter: no number is rounded, and nothing that is no JSON passes for it."""
    assert expected == shown(payload)


def test_a_long_payload_is_cut() -> None:
    """In a page; asked for alone, it is shown whole. Cut JSON is text."""
    payload = json.dumps("x" * SHOWN_BYTES_MAX).encode()
    text, encoding, truncated = shown(payload)

    assert (SHOWN_BYTES_MAX, "text", True) == (len(str(text)), encoding, truncated)
    assert ("x" * SHOWN_BYTES_MAX, "json", False) == shown(payload, None)


def test_a_cut_leaves_no_half_character() -> None:
    """One that straddles the bound is left out, and the rest is still text."""
    assert ("\u20ac", "text", True) == shown("\u20ac\u20ac".encode(), 5)
    assert ("gqw=", "base64", True) == shown("\u20ac".encode()[1:] + b"x", 2)


def test_a_message_is_shown_with_all_that_is_known(
    client: TestClient, source: FakeSource
) -> None:
    """The names of the fields are the API."""
    source.messages.kept = [message(7, b'{"n": 1}', k="v")]
    source.messages.next_offset = 8
    page = client.get(READING, headers=ORDERS).json()

    expected = {
        "offset": 7,
        "timestamp": "1970-01-01T00:00:03Z",
        "id": None,
        "payload": {"n": 1},
        "encoding": "json",
        "size": 8,
        "headers": {"k": "v"},
        "qos": 1,
        "priority": 1,
        "origin": "blip",
        "sealed": False,
        "truncated": False,
    }
    assert {"messages": [expected], "next": 8} == page
    assert expected == client.get(f"{READING}/7", headers=ORDERS).json()


def test_a_page_is_asked_for_by_offset_time_and_order(
    client: TestClient, source: FakeSource
) -> None:
    """Nothing said is everything from the beginning on."""
    client.get(READING, headers=ORDERS)
    client.get(f"{READING}?from=5&limit=9&order=desc", headers=ORDERS)
    client.get(f"{READING}?time=1970-01-01T00:00:01Z", headers=ORDERS)

    assert [
        ("orders.a", None, None, 100, False),
        ("orders.a", 5, None, 9, True),
        ("orders.a", None, 1_000_000, 100, False),
    ] == source.messages.asked


def test_a_message_that_is_not_there_is_404(client: TestClient) -> None:
    """The source knows which are."""
    assert 404 == client.get(f"{READING}/9", headers=ORDERS).status_code


@pytest.mark.parametrize("offset", ["0", "x", "-1", "1.5", str(2**64), 5000 * "9"])
def test_where_no_message_can_be_none_is_looked_for(client: TestClient, offset: str) -> None:
    """404, in words that say what an offset is."""
    answer = client.get(f"{READING}/{offset}", headers=ORDERS)

    assert (404, {"error": "no such message: offsets are whole numbers from 1 on"}) == (
        answer.status_code,
        answer.json(),
    )


def test_reading_needs_subscribe_and_posting_publish(client: TestClient) -> None:
    """To administer is neither."""
    answers = [
        client.get(POSTING, headers=ORDERS),
        client.get(READING, headers=ADMIN),
        client.get(f"{READING}/1", headers=ADMIN),
        client.post(READING, headers=ORDERS, json={"payload": 1}),
        client.post(POSTING, headers=ADMIN, json={"payload": 1}),
    ]

    assert 5 * [403] == [answer.status_code for answer in answers]


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
def test_what_is_posted_is_published(
    client: TestClient,
    source: FakeSource,
    body: bytes,
    expected: tuple[bytes, dict[str, str], int, int],
) -> None:
    """A string is its text, other JSON its own bytes; one in memory has no offset."""
    answer = client.post(POSTING, headers=ORDERS, content=body)

    assert (201, {"offset": 1 if expected[2] else None}) == (answer.status_code, answer.json())
    assert [("in.a", *expected)] == source.messages.published


@pytest.mark.parametrize("payload", [b"text", b'"text"', b'{"n":  1}', b"\x00\xff", b"", b"7"])
def test_what_is_shown_can_be_posted_again(
    client: TestClient, source: FakeSource, payload: bytes
) -> None:
    """As it is, every field of it; the payload is the same to the byte."""
    stored = message(5, payload)
    body = msgspec.json.encode(as_json(stored, None))
    answer = client.post(POSTING, headers=ORDERS, content=body)

    assert 201 == answer.status_code
    assert [
        ("in.a", payload, stored.headers, stored.qos, stored.priority)
    ] == source.messages.published


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
    client: TestClient, source: FakeSource, body: bytes
) -> None:
    """400, short, and nothing is published."""
    answer = client.post(POSTING, headers=ORDERS, content=body)

    assert 400 == answer.status_code
    assert len(answer.json()["error"]) < 250
    assert [] == source.messages.published


def test_a_payload_of_the_largest_size_is_taken_and_no_larger() -> None:
    """However it was encoded."""
    largest = base64.b64encode(bytes(PAYLOAD_BYTES_MAX)).decode()
    posted = read_posted(json.dumps({"payload_base64": largest}).encode())

    assert PAYLOAD_BYTES_MAX == len(payload_of(posted))
    with pytest.raises(HTTPException) as raised:
        payload_of(
            Posted(payload_base64=base64.b64encode(bytes(PAYLOAD_BYTES_MAX + 1)).decode())
        )
    assert 413 == raised.value.status_code


def test_a_body_without_a_length_is_taken_as_well(
    client: TestClient, source: FakeSource
) -> None:
    """It may be large, and waits for its turn among those."""
    answer = client.post(POSTING, headers=ORDERS, content=iter([b'{"payload"', b": 1}"]))

    assert 201 == answer.status_code
    assert [b"1"] == [published[1] for published in source.messages.published]


def test_a_body_beyond_its_bound_is_413(
    client: TestClient, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it says its length or not, it is not held."""
    monkeypatch.setattr(messages, "POST_BYTES_MAX", 99)
    body = json.dumps({"payload": 100 * "x"}).encode()
    answers = [
        client.post(POSTING, headers=ORDERS, content=content)
        for content in (body, iter([body]))
    ]

    assert [413, 413] == [answer.status_code for answer in answers]
    assert [] == source.messages.published


class Poster:
    """A peer that posts a message without saying how long it is, when it is told to."""

    def __init__(self, app: ASGIApp) -> None:
        self.asked = asyncio.Event()  # the application waits for the body
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
        self.asked.set()
        await self.send.wait()
        return {"type": "http.request", "body": b'{"payload": 1}', "more_body": False}

    async def _send(self, message: Message) -> None:
        self.status = message.get("status", self.status)


@pytest.mark.asyncio
async def test_so_many_large_bodies_are_read_at_once(source: FakeSource) -> None:
    """The others wait, unread, until one is through: that bounds the memory."""
    app = build_app(source, loopback=True)
    posters = [Poster(app) for _ in range(LARGE_AT_ONCE_MAX + 1)]
    async with asyncio.timeout(20):
        for poster in posters[:LARGE_AT_ONCE_MAX]:
            await poster.asked.wait()
        for _ in range(100):  # turns of the loop, in which the last one could begin
            await asyncio.sleep(0)
        assert not posters[-1].asked.is_set()
        for poster in posters:
            poster.send.set()
            await poster.task

    assert [201] * len(posters) == [poster.status for poster in posters]


def test_what_is_large_is_read_and_shown_on_a_thread(
    client: TestClient, source: FakeSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The event loop does not wait for it; what is small is not worth a thread."""
    source.messages.kept = [message(1, b"x")]
    beside: dict[str, bool] = {}

    def noted(name: str, found: Callable[..., object]) -> Callable[..., object]:
        def called(*given: object) -> object:
            beside[name] = asyncio._get_running_loop() is None  # noqa: SLF001 - the other raises
            return found(*given)

        return called

    for name in ("taken", "page_of", "as_json"):
        monkeypatch.setattr(messages, name, noted(name, getattr(messages, name)))
    large = json.dumps({"payload": BODY_BYTES_MAX * "x"}).encode()
    assert 201 == client.post(POSTING, headers=ORDERS, content=large).status_code
    assert beside.pop("taken")
    assert 201 == client.post(POSTING, headers=ORDERS, content=b'{"payload": 1}').status_code
    assert not beside.pop("taken")
    assert 200 == client.get(READING, headers=ORDERS).status_code
    assert beside.pop("page_of")
    beside.clear()
    assert 200 == client.get(f"{READING}/1", headers=ORDERS).status_code
    assert beside.pop("as_json")


def test_a_full_queue_is_409(client: TestClient, source: FakeSource) -> None:
    """The source says why."""
    source.messages.refusal = QueueFullError()
    answer = client.post(POSTING, headers=ORDERS, json={"payload": 1})

    assert (409, {"error": "the queue is full"}) == (answer.status_code, answer.json())


@given(st.text("Az09+/", max_size=9), st.text("=", max_size=3), st.sampled_from(["", *"\n-_A"]))
def test_the_pattern_of_base64_says_what_is_taken(begun: str, filled: str, end: str) -> None:
    """Whoever reads it in the description is told no other rule."""
    assume(
        len(begun) % 4 or not filled
    )  # padding where none is due is let pass by some Pythons
    text = begun + filled + end
    posted = Posted(payload_base64=text)
    try:
        payload_of(posted)
    except HTTPException:
        taken = False
    else:
        taken = True

    assert taken == jsonschema_rs.is_valid({"pattern": BASE64_PATTERN}, text)
