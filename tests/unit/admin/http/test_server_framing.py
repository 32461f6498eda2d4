"""Requests whose body has no certain length."""

import pytest

from tests.unit.admin.http.test_server import MALFORMED, listening, raw_answer, refusal_in

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
