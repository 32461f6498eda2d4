"""Cursors over HTTP: the readers outside the broker, and how far behind each one is.

    GET    /api/cursors           {"cursors": [...]}
    DELETE /api/cursors/{name}    {"name"}

A key sees its own cursors, an administrator sees all. A lag is counted in ids of the log.
"""

from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.connections import restricted_to
from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.parameters import Name
from braidmq.admin.http.refusals import NotYoursError, UnknownThingError
from braidmq.base.errors import CursorError, NotAllowedError
from braidmq.broker.authorize import Principal
from braidmq.server.cursors import Cursors, CursorState

CURSOR: Final = Name("cursor", "The cursor's name.")


class CursorsList(msgspec.Struct, frozen=True):
    """The cursors, by name."""

    cursors: list[CursorState]


class RemovedCursor(msgspec.Struct, frozen=True):
    """The cursor that was removed."""

    name: str


class ShownCursors:
    """The cursors as operators list and remove them; their readers move them over Flight."""

    def __init__(self, cursors: Cursors) -> None:
        self._cursors = cursors

    @keyed("GET /api/cursors")
    async def get_cursors(self, _request: Request, principal: Principal) -> CursorsList:
        """List the cursors of readers outside the broker, and their lag."""
        of = restricted_to(principal)
        rows = self._cursors.all()
        return CursorsList([one for one in rows if of is None or one.principal == of.name])

    @keyed("DELETE /api/cursors/{cursor}", CURSOR, refusals=(404, 503))
    async def delete_cursor(self, request: Request, principal: Principal) -> RemovedCursor:
        """Remove a cursor: retention no longer waits for its reader."""
        name = request.path_params["cursor"]
        try:
            await self._cursors.remove(principal, name)
        except CursorError:
            raise UnknownThingError("no such cursor") from None
        except NotAllowedError:
            raise NotYoursError("the cursor belongs to another principal") from None
        return RemovedCursor(name)
