"""What a request to the API carries: a key, names, a body. Each is checked here.

Nothing here answers a request: what cannot be used raises an HTTPException with one line.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from braidmq.admin.http.parameters import whole_number
from braidmq.base import refusals
from braidmq.base.limits import KIB
from braidmq.base.strict_json import read_value
from braidmq.broker.authorize import Principal, authorize

BODY_BYTES_MAX: Final = 64 * KIB
"""Bodies other than messages: they declare a queue, or name one."""

BODY_S_MAX: Final = 10.0
"""A body that takes longer to arrive is refused: its connection is one of few."""

NAME_SHOWN_CHARS_MAX: Final = 64
"""How much of a name an error repeats."""

_KEYED: Final = "keyed"
"""Set in the scope's state once a valid key was found."""

FindPrincipal = Callable[[str], Principal | None]
"""Returns the principal of an API key, or None; it must compare in constant time."""


def principal_of(request: Request, find_principal: FindPrincipal) -> Principal:
    """Return the principal whose key the request carries.

    Raises:
        HTTPException: 401, the request has no key, or an unknown one.
    """
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    is_given = scheme.lower() == "bearer" and bool(key.strip())
    principal = find_principal(key.strip()) if is_given else None
    if principal is None:
        needed = "an API key is required: send the header Authorization: Bearer KEY"
        raise HTTPException(
            401,
            "authentication failed: unknown API key" if is_given else needed,
            headers={"WWW-Authenticate": "Bearer"},
        )
    request.scope.setdefault("state", {})[_KEYED] = principal.name
    return principal


def key_name(state: Mapping[str, object]) -> str:
    """Return whose valid key a request with this state carries; "" if it carries none."""
    return str(state.get(_KEYED, ""))


def allow(principal: Principal, operation: str, name: str) -> None:
    """Check that *principal* may do *operation* with the topic or queue called *name*.

    Raises:
        HTTPException: 403, it may not.
    """
    if not authorize(principal, operation, name):
        raise HTTPException(403, f"this API key lacks the permission {operation}")


def is_small(request: Request) -> bool:
    """Return whether a request announces a body of at most BODY_BYTES_MAX."""
    if "transfer-encoding" in request.headers:
        return False  # a chunked body has no length to announce
    announced = request.headers.get("content-length", "")
    return whole_number(announced, BODY_BYTES_MAX) is not None


async def body_of(request: Request, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body.

    Raises:
        HTTPException: 413, it is longer than *bytes_max*; 408, it took longer than BODY_S_MAX
            to arrive; 400, the client disconnected before its end.
    """
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S_MAX):
            async for piece in request.stream():
                body += piece
                # Counted as it arrives: a chunked body announces no length.
                if len(body) > bytes_max:
                    text = refusals.by_bound("the body is too long", bytes_max, "bytes")
                    raise HTTPException(413, text)
    except ClientDisconnect:
        raise HTTPException(400, "the connection closed before the body was complete") from None
    except TimeoutError:
        raise HTTPException(
            408, f"timed out: the body did not arrive within {BODY_S_MAX:.0f} seconds"
        ) from None
    return bytes(body)


def object_of(body: bytes, keys: frozenset[str]) -> dict[str, object]:
    """Return the JSON object in *body*.

    Raises:
        HTTPException: 400, it is not a JSON object, or has a key that is not among *keys*.
    """
    try:
        value = read_value(body)
    except (ValueError, RecursionError):
        raise HTTPException(400, "the body is not JSON") from None
    if not isinstance(value, dict):
        raise HTTPException(400, "the body is not a JSON object")
    for key in value:
        if key not in keys:
            raise HTTPException(
                400, f"{shown(key)}: unknown field; known fields are {', '.join(sorted(keys))}"
            )
    return value


def name_in(given: dict[str, object], key: str) -> str:
    """Return the queue's name that a body gives as *key*.

    Raises:
        HTTPException: 400, the body gives none.
    """
    name = given.get(key)
    if not isinstance(name, str) or not name:
        raise HTTPException(400, f"{key}: must be the name of a queue")
    return name


def shown(name: str, chars_max: int = NAME_SHOWN_CHARS_MAX) -> str:
    """Return the part of a name that an error repeats, in valid UTF-8."""
    return name[:chars_max].encode(errors="replace").decode()
