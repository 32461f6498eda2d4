"""Requests whose body has no certain length."""

import asyncio
import logging

import pytest

from tests.unit.admin.http.test_server import (
    MALFORMED,
    answer_to,
    listening,
    raw_answer,
    refusal_in,
)

pytestmark = pytest.mark.asyncio

FRAMINGS = {
    "both lengths": ("1.1", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
    "the other way round": ("1.1", "Transfer-Encoding: chunked\r\nContent-Length: 5"),
    "two lengths": ("1.1", "Content-Length: 5\r\nContent-Length: 6"),
    "two encodings": ("1.1", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity"),
    "chunks before they existed": ("1.0", "Transfer-Encoding: chunked"),
    "a length that is no number": ("1.1", "Content-Length: +5"),
}


@pytest.mark.parametrize(("version", "framing"), FRAMINGS.values(), ids=FRAMINGS.keys())
async def test_a_body_of_doubtful_length_is_refused(version: str, framing: str) -> None:
    """A proxy in front could see another request behind it than we do."""
    head = f"POST /api/queues HTTP/{version}\r\nHost: localhost\r\n{framing}\r\n\r\n"
    async with listening() as address:
        answer = await raw_answer(
            address,
            head.encode() + b"0\r\n\r\nGET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )

    assert (400, MALFORMED) == refusal_in(answer)


BROKEN_BODIES = {
    "before the answer": b"5\r\nhelloXX",
    "a length that is no number": b"zzzz\r\n\r\n",
    "a second request in its place": b"GET /healthz HTTP/1.1\r\n\r\n",
}


@pytest.mark.parametrize("body", BROKEN_BODIES.values(), ids=BROKEN_BODIES.keys())
@pytest.mark.parametrize("path", ["/api/queues", "/healthz"])
@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after the answer"])
async def test_a_broken_body_is_no_error_of_ours(
    path: str, body: bytes, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether the answer has begun or not: the connection ends, and the log stays quiet."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with listening() as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(head.encode() if waits else head.encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        if waits:
            writer.write(body)
        rest = await reader.read()
        writer.close()
        health = await answer_to(address, "GET /healthz HTTP/1.1")

    assert b"200" == health.split()[1]
    assert int(answer.split()[1]) in {400, 401, 405}
    assert b"Traceback" not in rest
    assert [] == [record for record in caplog.records if record.levelno >= logging.ERROR]
