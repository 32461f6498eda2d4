"""Who may come in, over HTTP: names and permissions, never a hash or a secret.

GET /api/keys    {"keys": [...], "users": [...]}; for administrators
"""

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.endpoints import Endpoint, answered
from braidmq.admin.requests import KeySource, allow, principal_of
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


class KeysList(msgspec.Struct, frozen=True):
    """All API keys and all users, by name."""

    keys: list[KeyRow]
    users: list[UserRow]


class KeyringSource(Protocol):
    """Who knows everybody."""

    def everybody(self) -> KeysList:
        """Return all keys and users. RefusedError: not now."""
        ...


def key_endpoints(keys: KeySource, source: KeyringSource) -> list[Endpoint]:
    """Return `/api/keys`."""

    async def show(request: Request) -> Response:
        allow(principal_of(request, keys), ADMIN, "")
        return answered(source.everybody())

    return [
        Endpoint(
            method="GET",
            path="/api/keys",
            handler=show,
            summary="Names and permissions of keys and users; for administrators.",
            tag="keys",
            answer=KeysList,
            refusals=(503,),
        )
    ]
