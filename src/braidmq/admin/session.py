"""Who is asking: what the dashboard asks first, with a key and without.

GET /api/session    {"version", "dev"}, and with a key {"principal", "admin"}
"""

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import MAYBE_KEY, Endpoint, answered
from braidmq.admin.http.requests import KeySource, principal_of
from braidmq.broker.authorize import ADMIN, authorize


class Session(msgspec.Struct, frozen=True):
    """Which broker this is; with `dev` there is the key `dev-key`, and with a key, whose."""

    version: str
    dev: bool
    principal: str | msgspec.UnsetType = msgspec.UNSET
    admin: bool | msgspec.UnsetType = msgspec.UNSET


class SessionSource(KeySource, Protocol):
    """Who knows what runs."""

    @property
    def version(self) -> str:
        """Which version runs."""
        ...

    @property
    def dev(self) -> bool:
        """Whether it runs in development mode."""
        ...


def session_endpoints(source: SessionSource) -> list[Endpoint]:
    """Return `/api/session`."""

    async def show(request: Request) -> Response:
        if "authorization" not in request.headers:
            return answered(Session(source.version, source.dev))
        principal = principal_of(request, source)
        is_admin = authorize(principal, ADMIN, "")
        return answered(Session(source.version, source.dev, principal.name, is_admin))

    return [
        Endpoint(
            method="GET",
            path="/api/session",
            handler=show,
            summary="Which broker this is, and who is asking.",
            answer=Session,
            key=MAYBE_KEY,
        )
    ]
