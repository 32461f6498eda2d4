"""Cursors over HTTP: which readers there are, and how far behind.

    GET    /api/cursors           {"cursors": [...]}
    DELETE /api/cursors/{name}    {"name"}

Whoever asks sees its own, and an administrator all. A lag is in ids of the log.
"""

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import Name
from braidmq.admin.http.requests import KeySource, principal_of
from braidmq.broker.authorize import ADMIN, Principal, authorize


class CursorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One cursor: where its reader began, which offset it needs next, and what is ahead."""

    name: str
    principal: str
    initial: int
    position: int
    lag: int


class CursorsList(msgspec.Struct, frozen=True):
    """The cursors, by name."""

    cursors: list[CursorSnapshot]


class RemovedCursor(msgspec.Struct, frozen=True):
    """The cursor that is no more."""

    name: str


class CursorSource(Protocol):
    """Who has the cursors. Each raises RefusedError: the broker is not up."""

    def all(self) -> list[CursorSnapshot]:
        """Return every cursor, by name."""
        ...

    async def drop(self, principal: Principal, name: str) -> None:
        """Remove a cursor; RefusedError also: it is not there, or somebody else's."""
        ...


def cursor_endpoints(keys: KeySource, source: CursorSource) -> list[Endpoint]:
    """Return `/api/cursors`."""

    async def list_cursors(request: Request) -> Response:
        principal = principal_of(request, keys)
        sees_all = authorize(principal, ADMIN, "")
        shown = [c for c in source.all() if sees_all or c.principal == principal.name]
        return answered(CursorsList(shown))

    async def remove(request: Request) -> Response:
        principal = principal_of(request, keys)
        name = request.path_params["cursor"]
        await source.drop(principal, name)
        return answered(RemovedCursor(name))

    return [
        Endpoint(
            method="DELETE",
            path="/api/cursors/{cursor}",
            handler=remove,
            summary="Remove a cursor: retention no longer waits for its reader.",
            tag="cursors",
            names=(Name("cursor", "The cursor's name."),),
            answer=RemovedCursor,
            refusals=(404, 503),
        ),
        Endpoint(
            method="GET",
            path="/api/cursors",
            handler=list_cursors,
            summary="The cursors of readers outside the broker, and how far behind they are.",
            tag="cursors",
            answer=CursorsList,
            refusals=(503,),
        ),
    ]
