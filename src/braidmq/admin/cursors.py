"""Cursors over HTTP: which readers there are, and how far behind.

    GET /api/cursors    {"cursors": [{"name", "principal", "initial", "position", "lag"}]}

Whoever asks sees its own, and an administrator all. A lag is in ids of the log.
"""

from dataclasses import asdict, dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from braidmq.admin.requests import KeySource, principal_of
from braidmq.broker.authorize import ADMIN, authorize


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorSnapshot:
    """One cursor: where its reader began, which offset it needs next, and what is ahead."""

    name: str
    principal: str
    initial: int
    position: int
    lag: int


class CursorSource(Protocol):
    """Who has the cursors."""

    def all(self) -> list[CursorSnapshot]:
        """Return every cursor, by name. RefusedError: the broker is not up."""
        ...


def cursor_routes(keys: KeySource, source: CursorSource) -> list[Route]:
    """Return `/api/cursors`."""

    async def list_cursors(request: Request) -> JSONResponse:
        principal = principal_of(request, keys)
        sees_all = authorize(principal, ADMIN, "")
        shown = [c for c in source.all() if sees_all or c.principal == principal.name]
        return JSONResponse({"cursors": [asdict(cursor) for cursor in shown]})

    return [Route("/api/cursors", list_cursors)]
