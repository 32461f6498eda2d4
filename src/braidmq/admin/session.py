"""The session: the dashboard's first question, asked with a key or without.

GET /api/session    {"version", "dev"}, and with a key {"principal", "admin"}
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import MAYBE_KEY, Endpoint, answered
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.broker.authorize import ADMIN, authorize


class Session(msgspec.Struct, frozen=True):
    """The broker, and the key's principal; with `dev`, the key `dev-key` is valid."""

    version: str
    dev: bool
    principal: str | msgspec.UnsetType = msgspec.UNSET
    admin: bool | msgspec.UnsetType = msgspec.UNSET


def session_endpoints(
    find_principal: FindPrincipal, *, version: str, dev: bool
) -> list[Endpoint]:
    """Return `/api/session`."""

    async def show(request: Request) -> Response:
        if "authorization" not in request.headers:
            return answered(Session(version, dev))
        principal = principal_of(request, find_principal)
        is_admin = authorize(principal, ADMIN, "")
        return answered(Session(version, dev, principal.name, is_admin))

    return [
        Endpoint(
            method="GET",
            path="/api/session",
            handler=show,
            summary="Show the broker's version, and the principal of the key.",
            answer=Session,
            key=MAYBE_KEY,
        )
    ]
