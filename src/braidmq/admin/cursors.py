"""Cursors over HTTP: the readers outside the broker, and how far behind each one is.

    GET    /api/cursors           {"cursors": [...]}
    DELETE /api/cursors/{name}    {"name"}

A key sees its own cursors, an administrator sees all. A lag is counted in ids of the log.
"""

from dataclasses import asdict

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.connections import restricted_to
from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.parameters import Name
from braidmq.admin.http.refusals import NotYoursError, UnknownThingError
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.base.errors import CursorError, NotAllowedError
from braidmq.server.cursors import Cursors


class CursorSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One cursor: where its reader began, the next offset it needs, and its lag."""

    name: str
    principal: str
    initial: int
    position: int
    lag: int


class CursorsList(msgspec.Struct, frozen=True):
    """The cursors, by name."""

    cursors: list[CursorSnapshot]


class RemovedCursor(msgspec.Struct, frozen=True):
    """The cursor that was removed."""

    name: str


def cursor_endpoints(find_principal: FindPrincipal, cursors: Cursors) -> list[Endpoint]:
    """Return `/api/cursors`."""

    async def list_cursors(request: Request) -> Response:
        of = restricted_to(principal_of(request, find_principal))
        rows = [
            CursorSnapshot(**asdict(one))
            for one in cursors.all()
            if of is None or one.principal == of.name
        ]
        return answered(CursorsList(rows))

    async def remove(request: Request) -> Response:
        principal = principal_of(request, find_principal)
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
            summary="List the cursors of readers outside the broker, and their lag.",
            tag="cursors",
            answer=CursorsList,
            refusals=(503,),
        ),
    ]
