"""The parts of a request: every limit is checked before anything is done."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import Message

from braidmq.admin.http import requests
from braidmq.admin.http.requests import (
    BODY_BYTES_MAX,
    allow,
    body_of,
    is_small,
    name_in,
    object_of,
    principal_of,
    shown,
)
from braidmq.broker.authorize import PURGE_QUEUE, QUEUE_INFO
from tests.unit.admin.world import ADMIN_KEY, ORDERS_KEY, World

KEYS = frozenset({"name", "count"})


def request_with(query: str = "", key: str = "", body: tuple[bytes, ...] = ()) -> Request:
    pieces = iter([*body, b""])

    async def receive() -> Message:
        piece = next(pieces)
        return {"type": "http.request", "body": piece, "more_body": bool(piece)}

    scope = {
        "type": "http",
        "method": "POST",
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {key}".encode())] if key else [],
    }
    return Request(scope, receive)


def test_the_key_identifies_the_principal() -> None:
    """Every permission is checked against it."""
    assert (
        "ops"
        == principal_of(
            request_with(key=ADMIN_KEY), World(recovered=False).status.principal
        ).name
    )


@pytest.mark.parametrize("key", ["", "wrong"])
def test_a_missing_or_unknown_key_is_401(key: str) -> None:
    """The request is not authenticated."""
    with pytest.raises(HTTPException) as raised:
        principal_of(request_with(key=key), World(recovered=False).status.principal)
    assert 401 == raised.value.status_code


def test_a_missing_permission_is_403() -> None:
    """The error names the operation, but says nothing about the queue."""
    principal = principal_of(
        request_with(key=ORDERS_KEY), World(recovered=False).status.principal
    )
    allow(principal, QUEUE_INFO, "orders.a")
    with pytest.raises(HTTPException) as raised:
        allow(principal, PURGE_QUEUE, "orders.a")

    assert (403, "this API key lacks the permission purge_queue") == (
        raised.value.status_code,
        raised.value.detail,
    )


@pytest.mark.parametrize(
    ("announced", "small"),
    [("1", True), ("65536", True), ("65537", False), ("", False), ("x", False), (None, False)],
)
def test_a_small_body_announces_itself(announced: str | None, small: bool) -> None:
    """A body without a stated length may be of any length."""
    request = request_with()
    if announced is not None:
        request.scope["headers"] = [(b"content-length", announced.encode())]

    assert small == is_small(request)
    request = request_with()
    request.scope["headers"] = [
        (b"content-length", b"1"),
        (b"transfer-encoding", b"chunked"),
    ]
    assert not is_small(request)


@pytest.mark.asyncio
async def test_a_body_may_arrive_in_pieces_up_to_the_limit() -> None:
    """A byte more is 413, before the rest is awaited."""
    half = BODY_BYTES_MAX // 2 * b"x"
    assert half + half == await body_of(request_with(body=(half, half)))
    with pytest.raises(HTTPException) as raised:
        await body_of(request_with(body=(half, half, b"x", half)))
    assert 413 == raised.value.status_code


@pytest.mark.asyncio
async def test_a_body_that_does_not_arrive_is_408(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends half of it does not hold its connection for ever."""
    monkeypatch.setattr(requests, "BODY_S_MAX", 0.01)
    request = request_with()

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    monkeypatch.setattr(request, "stream", never)
    with pytest.raises(HTTPException) as raised:
        await body_of(request)
    assert 408 == raised.value.status_code


@pytest.mark.asyncio
async def test_a_body_whose_sender_leaves_is_400() -> None:
    """The answer reaches no peer, but it is not an internal error."""
    pieces = iter([{"type": "http.request", "body": b"{", "more_body": True}])

    async def receive() -> Message:
        return next(pieces, {"type": "http.disconnect"})

    with pytest.raises(HTTPException) as raised:
        await body_of(Request({"type": "http", "method": "POST", "headers": []}, receive))
    assert 400 == raised.value.status_code


BAD_BODIES = {
    b"": "not JSON",
    b"{": "not JSON",
    b"\xff": "not JSON",
    60_000 * b"[": "not JSON",
    b'{"name": "a", "count": NaN}': "not JSON",
    b'{"name": "a", "count": -Infinity}': "not JSON",
    '{"name": "a"}'.encode("utf-16"): "not JSON",
    b"[]": "not a JSON object",
    b"null": "not a JSON object",
    b'{"nam": 1}': "nam: unknown field; known fields are count, name",
    b'{"' + 99 * b"k" + b'": 1}': "400: " + 64 * "k" + ": unknown",
}


@pytest.mark.parametrize(("body", "problem"), BAD_BODIES.items())
def test_a_body_is_an_object_with_known_keys(body: bytes, problem: str) -> None:
    """An unknown key must not be ignored silently."""
    with pytest.raises(HTTPException, match=problem) as raised:
        object_of(body, KEYS)
    assert 400 == raised.value.status_code


def test_a_valid_body_is_returned_as_it_is() -> None:
    """The endpoint checks the values."""
    assert {"name": "a", "count": None} == object_of(b'{"name": "a", "count": null}', KEYS)


@pytest.mark.parametrize("given", [{}, {"name": ""}, {"name": 1}, {"name": None}])
def test_a_name_is_text(given: dict[str, object]) -> None:
    """It is required, and not empty."""
    with pytest.raises(HTTPException, match="name: must be the name of a queue"):
        name_in(given, "name")


def test_a_name_in_an_error_is_short_and_encodable() -> None:
    """A lone surrogate is not UTF-8."""
    assert "a?" + 62 * "b" == shown("a\ud800" + 99 * "b")
