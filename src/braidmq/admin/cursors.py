"""Cursors over HTTP: which readers there are, and how far behind.

    GET    /api/cursors           {"cursors": [...]}
    DELETE /api/cursors/{name}    {"name"}

Whoever asks sees its own, and an administrator all. A lag is in ids of the log.
"""

from dataclasses import asdict
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import Name
from braidmq.admin.http.refusals import NotYoursError, UnknownThingError
from braidmq.admin.http.requests import KeySource, principal_of
from braidmq.base.errors import CursorError, NotAllowedError
from braidmq.broker.authorize import ADMIN, Principal, authorize
from braidmq.server.cursors import CursorState


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
    """The cursors of the broker. Both raise UnavailableError while it cannot answer."""

    def all(self) -> list[CursorState]:
        """Return every cursor, by name."""
        ...

    async def remove(self, principal: Principal, name: str) -> None:
        """Remove a cursor, or raise CursorError or NotAllowedError."""
        ...


def cursor_endpoints(keys: KeySource, cursors: CursorSource) -> list[Endpoint]:
    """Return `/api/cursors`."""

    async def list_cursors(request: Request) -> Response:
        principal = principal_of(request, keys)
        sees_all = authorize(principal, ADMIN, "")
        return answered(
            CursorsList(
                [
                    CursorSnapshot(**asdict(one))
                    for one in cursors.all()
                    if sees_all or one.principal == principal.name
                ]
            )
        )

    async def remove(request: Request) -> Response:
        principal = principal_of(request, keys)
        name = request.path_params["cursor"]
        try:
            await cursors.remove(principal, name)
        except CursorError:
            raise UnknownThingError("no such cursor") from None
        except NotAllowedError:
            raise NotYoursError("the cursor belongs to another principal") from None
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
