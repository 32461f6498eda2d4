"""Who may come in, over HTTP: names and permissions, never a hash or a secret.

    GET /api/keys?after=&limit=&search=    {"keys": [...], "users": [...], "next", "total"}

For administrators. A page has keys, then users; `next` and `total` are of both together.
"""

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH
from braidmq.admin.http.requests import KeySource, allow, principal_of
from braidmq.broker.authorize import ADMIN


class KeyRow(msgspec.Struct, frozen=True):
    """An API key: whose it is, and the patterns of what it may do."""

    name: str
    publish: list[str]
    subscribe: list[str]
    admin: bool


class GrantRow(msgspec.Struct, frozen=True):
    """What a user may do with the queues that a pattern matches."""

    pattern: str
    operations: list[str]


class UserRow(msgspec.Struct, frozen=True):
    """A user of the Vibe strand."""

    name: str
    created: str
    grants: list[GrantRow]


class KeysPage(msgspec.Struct, frozen=True):
    """Keys by name, behind them users by name, where to go on, and how many fit the search."""

    keys: list[KeyRow]
    users: list[UserRow]
    next: str | None
    total: int


class KeyringSource(Protocol):
    """Who knows everybody."""

    async def page(self, *, after: str, limit: int, search: str) -> KeysPage:
        """Return up to *limit* keys and users behind *after*.

        RefusedError: not now, or a bad *after*.
        """
        ...


def key_endpoints(keys: KeySource, source: KeyringSource) -> list[Endpoint]:
    """Return `/api/keys`."""

    async def show(request: Request) -> Response:
        allow(principal_of(request, keys), ADMIN, "")
        page = await source.page(
            after=AFTER.of(request), limit=LIMIT.of(request), search=SEARCH.of(request)
        )
        return answered(page)

    return [
        Endpoint(
            method="GET",
            path="/api/keys",
            handler=show,
            summary="Names and permissions, a page at a time; for administrators.",
            tag="keys",
            query=(AFTER, LIMIT, SEARCH),
            answer=KeysPage,
            refusals=(503,),
        )
    ]
