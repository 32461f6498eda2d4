"""Publishing over Vibe: bodies, headers, priorities, queue names."""

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


def read(post: Post) -> messages.Body:
    return messages.read_body(post.data)


def test_a_post_holds_a_publish() -> None:
    """With id, queue, payload and headers in their places."""
    post = posting({"trace": "7", "empty": ""}).lay_out(b'{"n": 1}')
    body = read(post)

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
    assert post.id == body.id
    assert len(post) == len(post.data)


def test_every_message_has_its_own_id() -> None:
    """Consumers see that id."""
    one = posting()

    assert ["p-1", "p-2"] == [one.lay_out(b"1").id, one.lay_out(b"2").id]


@pytest.mark.parametrize(
    "payload",
    [b"hello", b"{", b"NaN", b"'1'", b"\xff", b" ", b"[" * 65 + b"]" * 65, b"1 2"],
)
def test_a_payload_that_is_not_json_is_refused_by_the_client(payload: bytes) -> None:
    """The broker would refuse it; the error does not quote the payload."""
    with pytest.raises(InvalidArgument, match="a payload on Vibe is JSON"):
        posting().lay_out(payload)


@pytest.mark.parametrize("payload", [b"1", b'"x"', b"null", b" {} ", b"1e999", b'"\\ud800"'])
def test_json_is_relayed_byte_for_byte(payload: bytes) -> None:
    """The client does not interpret it."""
    assert payload == read(posting().lay_out(payload)).payload


def test_an_empty_payload_means_no_payload() -> None:
    """Vibe has messages without a payload."""
    assert b"" == read(posting().lay_out(b"")).payload


@pytest.mark.parametrize(
    ("priority", "name"),
    [(0, "Low"), (Priority.NORMAL, "Normal"), (2, "High"), (3, "Critical")],
)
def test_priorities_are_sent_by_name(priority: int, name: str) -> None:
    """As a header, beside the caller's own headers."""
    headers = {"trace": "7", "priority": "odd"}

    assert {"trace": "7", "priority": name} == read(
        posting(headers, priority).lay_out(b"1")
    ).headers
    assert "odd" == headers["priority"]


@pytest.mark.parametrize("priority", [-1, 4])
def test_other_priorities_are_refused(priority: int) -> None:
    """The error lists the valid ones."""
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
def test_headers_that_cannot_be_sent_are_refused(headers: dict[str, str], text: str) -> None:
    """The broker would refuse them or hang up."""
    with pytest.raises(InvalidArgument, match=text):
        posting(headers)


def test_headers_up_to_the_limits_are_sent() -> None:
    """The limits themselves are legal."""
    headers = {str(number): "" for number in range(99)} | {"x": "v" * 65_535}

    assert "" == read(posting(headers).lay_out(b"1")).fault


def test_a_message_may_fill_a_body_except_for_what_delivery_adds() -> None:
    """The client refuses one byte more, which would make the broker hang up."""
    around = len(posting().lay_out(b"").data)
    largest = b"1" * (BODY_BYTES_MAX - around)

    assert 1024 * 1024 - 256 == len(posting().lay_out(largest).data)
    with pytest.raises(InvalidArgument, match="does not fit"):
        posting().lay_out(largest + b"1")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 257, "a\n", "½", "😀", "\ud800"])
def test_an_invalid_queue_name_is_refused(name: str) -> None:
    """A queue name consists of letters, digits, hyphens, underscores and dots."""
    with pytest.raises(InvalidArgument, match="a queue name"):
        check_queue(name)


@pytest.mark.parametrize("name", ["x", "x" * 256, "température.été-1_٣"])
def test_queue_names_up_to_the_limit_are_accepted(name: str) -> None:
    """In any alphabet."""
    check_queue(name)
