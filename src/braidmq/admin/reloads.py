"""Reloading over HTTP: keys, users, certificates and schemas are read from their files again.

    POST /api/reload    what is different now, and which settings need a restart

For administrators. The daemon does the work; SIGHUP asks for the same.
"""

from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.refusals import ReloadFailedError
from braidmq.admin.http.requests import allow
from braidmq.base.errors import ConfigError
from braidmq.broker.authorize import ADMIN, Principal
from braidmq.server.engine.requests import UnavailableError


class Changes(msgspec.Struct, frozen=True):
    """Names of keys, or of users: new, with other permissions, and without access.

    One whose key or password is another is both added and revoked.
    """

    added: list[str]
    changed: list[str]
    revoked: list[str]


class Reloaded(msgspec.Struct, frozen=True):
    """What a reload changed; `restart` are settings that differ and were not applied."""

    keys: Changes
    users: Changes
    certificates: list[str]
    schemas: list[str]
    connections_closed: int
    restart: list[str]


class Reloads:
    """Reloads on request; the daemon sets *run*."""

    def __init__(self) -> None:
        self.run: Callable[[], Awaitable[Reloaded]] | None = None

    @keyed("POST /api/reload", refusals=(409, 503))
    async def post_reload(self, _request: Request, principal: Principal) -> Reloaded:
        """Read keys, users, certificates and schemas again; a bad file changes nothing."""
        allow(principal, ADMIN, "")
        if self.run is None:
            raise UnavailableError("the broker is still starting")
        try:
            return await self.run()
        except ConfigError as error:
            raise ReloadFailedError(f"nothing was changed: {error}") from None
