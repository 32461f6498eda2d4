"""What a Vibe publisher sends."""

from itertools import count

import pytest

from braidmq.client.connection import Post
from braidmq.client.errors import InvalidArgument
from braidmq.client.options import Priority
from braidmq.client.vibe.publishing import (
    BODY_BYTES_MAX,
    VibePosting,
    check_queue,
)
from braidmq.wire.vibe import messages


def posting(headers: dict[str, str] | None = None, priority: int | None = None) -> VibePosting:
    numbers = count(1)
    return VibePosting(
        "orders", lambda: f"p-{next(numbers)}", headers=headers, priority=priority
    )


def read(sealed: Post) -> messages.Body:
    return messages.read_body(sealed.data)


def test_a_sealed_message_is_a_publish() -> None:
    """Queue, payload and headers are in their places, and the id is the message's."""
    sealed = posting({"trace": "7", "empty": ""}).lay_out(b'{"n": 1}')
    body = read(sealed)

    assert (
        messages.PUBLISH,
        "p-1",
        "orders",
        b'{"n": 1}',
        {"trace": "7", "empty": ""},
        "",
    ) == (
        body.type,
        body.id,
        body.queue,
        body.payload,
        body.headers,
        body.fault,
    )
    assert sealed.id == body.id
    assert len(sealed) == len(sealed.data)


def test_every_message_has_an_id_of_its_own() -> None:
    """Consumers see it."""
    one = posting()

    assert ["p-1", "p-2"] == [one.lay_out(b"1").id, one.lay_out(b"2").id]


@pytest.mark.parametrize(
    "payload",
    [b"hello", b"{", b"NaN", b"'1'", b"\xff", b" ", b"[" * 65 + b"]" * 65, b"1 2"],
)
def test_bytes_that_are_not_json_are_refused_here(payload: bytes) -> None:
    """The broker would refuse them; the text says what is asked for and repeats nothing."""
    with pytest.raises(InvalidArgument, match="a payload on Vibe is JSON"):
        posting().lay_out(payload)


@pytest.mark.parametrize("payload", [b"1", b'"x"', b"null", b" {} ", b"1e999", b'"\\ud800"'])
def test_json_is_relayed_byte_for_byte(payload: bytes) -> None:
    """What it means is not judged."""
    assert payload == read(posting().lay_out(payload)).payload


def test_an_empty_payload_is_an_absent_one() -> None:
    """Vibe has messages without a payload."""
    assert b"" == read(posting().lay_out(b"")).payload


@pytest.mark.parametrize(
    ("priority", "name"),
    [(0, "Low"), (Priority.NORMAL, "Normal"), (2, "High"), (3, "Critical")],
)
def test_priorities_travel_by_name(priority: int, name: str) -> None:
    """As a header, beside those that were given."""
    headers = {"trace": "7", "priority": "odd"}

    assert {"trace": "7", "priority": name} == read(
        posting(headers, priority).lay_out(b"1")
    ).headers
    assert "odd" == headers["priority"]


@pytest.mark.parametrize("priority", [-1, 4])
def test_other_priorities_are_refused(priority: int) -> None:
    """The text lists those that there are."""
    with pytest.raises(InvalidArgument, match="0 Low, 1 Normal, 2 High, 3 Critical"):
        posting(priority=priority)


@pytest.mark.parametrize(
    ("headers", "text"),
    [
        ({"": "x"}, "must not be empty"),
        ({"x": "v" * 65_536}, "65535 bytes, not 65536"),
        ({"é" * 32_768: ""}, "65535 bytes, not 65536"),
        ({"x": "\ud800"}, "lone surrogates"),
        ({"x": 1}, "are strings"),
        ({1: "x"}, "are strings"),
        ({str(number): "" for number in range(101)}, "101, at most 100"),
    ],
)
def test_headers_that_cannot_travel_are_refused(headers: dict[str, str], text: str) -> None:
    """So that the broker need not say so, or hang up."""
    with pytest.raises(InvalidArgument, match=text):
        posting(headers)


def test_headers_up_to_the_limits_travel() -> None:
    """The limits themselves are legal."""
    headers = {str(number): "" for number in range(99)} | {"x": "v" * 65_535}

    assert "" == read(posting(headers).lay_out(b"1")).fault


def test_a_message_may_fill_a_body_but_for_what_delivery_adds() -> None:
    """One byte more would make the broker hang up, so it is refused here."""
    around = len(posting().lay_out(b"").data)
    largest = b"1" * (BODY_BYTES_MAX - around)

    assert 1024 * 1024 - 256 == len(posting().lay_out(largest).data)
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting().lay_out(largest + b"1")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 257, "a\n", "½", "😀", "\ud800"])
def test_what_is_no_queue_is_not_sent(name: str) -> None:
    """A queue's name is letters, digits, hyphens, underscores and dots."""
    with pytest.raises(InvalidArgument, match="a queue name"):
        check_queue(name)


@pytest.mark.parametrize("name", ["x", "x" * 256, "température.été-1_٣"])
def test_queues_up_to_the_limit_are_sent(name: str) -> None:
    """Of any alphabet."""
    check_queue(name)
