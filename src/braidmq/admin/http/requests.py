"""What every request to the API brings: a key, a name, a page, a body; each is judged here.

It answers nothing itself: what cannot be used is an HTTPException, in one line.
"""

import asyncio
import json
from typing import Final, Protocol

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from braidmq.base.limits import KIB
from braidmq.broker.authorize import Principal, authorize

BODY_BYTES_MAX: Final = 64 * KIB
"""What is posted describes a queue, or names one."""

BODY_S_MAX: Final = 10.0
"""A body that takes longer to arrive would hold a connection's place for nothing."""

NAME_SHOWN_CHARS_MAX: Final = 64
"""What an error repeats of a name that was sent."""


class KeySource(Protocol):
    """Who knows the keys."""

    def principal(self, key: str) -> Principal | None:
        """Return whose API key this is, compared in constant time, or None."""
        ...


def principal_of(request: Request, source: KeySource) -> Principal:
    """Return who is asking.

    Raises:
        HTTPException: 401, there is no key or it is nobody's.
    """
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    is_given = scheme.lower() == "bearer" and bool(key.strip())
    principal = source.principal(key.strip()) if is_given else None
    if principal is None:
        needed = "an API key is needed: Authorization: Bearer KEY"
        raise HTTPException(
            401,
            "this API key is not known" if is_given else needed,
            headers={"WWW-Authenticate": "Bearer"},
        )
    return principal


def allow(principal: Principal, operation: str, name: str) -> None:
    """Let pass who may do *operation* with the queue called *name*.

    Raises:
        HTTPException: 403, the key may not.
    """
    if not authorize(principal, operation, name):
        raise HTTPException(403, f"the key may not do this: {operation}")


def number_of(text: str | None, default: int, number_max: int) -> int | None:
    """Return the number from 1 to *number_max* that *text* is, or None when it is none."""
    if text is None:
        return default
    # Long digits are refused before they become a number.
    if text.isascii() and text.isdigit() and len(text) <= len(str(number_max)):
        number = int(text)
        if 1 <= number <= number_max:
            return number
    return None


def is_small(request: Request) -> bool:
    """Say whether a request announces a body that needs no care."""
    if "transfer-encoding" in request.headers:
        return False  # its length is then what comes, whatever it announces
    announced = number_of(request.headers.get("content-length"), 0, BODY_BYTES_MAX)
    return bool(announced)


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body.

    Raises:
        HTTPException: 413, longer than *bytes_max*; 408, longer in coming than BODY_S_MAX;
            400, the peer left in the middle of it.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for piece in request.stream():
                body += piece
                if len(body) > bytes_max:
                    raise HTTPException(413, f"the body is longer than {bytes_max} bytes")
    except ClientDisconnect:
        raise HTTPException(400, "the body did not arrive") from None
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


def object_of(body: bytes, keys: frozenset[str]) -> dict[str, object]:
    """Return the JSON object that *body* is.

    Raises:
        HTTPException: 400, it is none, or has a key that is not among *keys*.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "the body is not a JSON object")
    for key in value:
        if key not in keys:
            raise HTTPException(400, f"{shown(key)}: unknown; known are {_listed(keys)}")
    return value


def name_in(given: dict[str, object], key: str) -> str:
    """Return the name that a body has under *key*.

    Raises:
        HTTPException: 400, it has none.
    """
    name = given.get(key)
    if not isinstance(name, str) or not name:
        raise HTTPException(400, f"{key}: must be the name of a queue")
    return name


def shown(name: str, chars_max: int = NAME_SHOWN_CHARS_MAX) -> str:
    """Return as much of a name as an error repeats, in what UTF-8 can say."""
    return name[:chars_max].encode(errors="replace").decode()


def _listed(keys: frozenset[str]) -> str:
    return ", ".join(sorted(keys))
