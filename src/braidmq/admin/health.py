"""Health: is the process alive, and is it ready for work?

    GET /healthz, /livez    200 as long as the process answers at all
    GET /readyz             200, or 503 with the reason

A broker is not ready before recovery is done, nor while it drains, and never again once its
log is poisoned.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint, Handler, Refusal, answered
from braidmq.server.engine.engine import Engine
from braidmq.wal.wal import Wal


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the broker accepts work, and if not, why."""

    ready: bool
    reason: str = ""


class Health(msgspec.Struct, frozen=True):
    """`ok` for liveness, `ready` for readiness."""

    status: str


def readiness_of(engine: Engine | None, wal: Wal | None) -> Readiness:
    """Return whether a broker accepts work; without an engine or a log it is recovering."""
    if engine is None or wal is None:
        return Readiness(ready=False, reason="recovering the log")
    if engine.failed is not None or wal.is_poisoned:
        return Readiness(ready=False, reason="the log is poisoned")
    if engine.draining:
        return Readiness(ready=False, reason="shutting down")
    return Readiness(ready=True)


def health_endpoints(find_readiness: Callable[[], Readiness]) -> list[Endpoint]:
    """Return `/healthz`, its synonym `/livez`, and `/readyz`; none needs a key."""

    async def live(_request: Request) -> Response:
        return answered(Health("ok"))

    async def ready(_request: Request) -> Response:
        readiness = find_readiness()
        if readiness.ready:
            return answered(Health("ready"))
        return answered(Refusal(readiness.reason), 503)

    def declared(path: str, handler: Handler, summary: str, *refusals: int) -> Endpoint:
        return Endpoint(
            method="GET",
            path=path,
            handler=handler,
            summary=summary,
            tag="health",
            answer=Health,
            refusals=refusals,
            key=NO_KEY,
        )

    return [
        declared("/healthz", live, "Is the process alive?"),
        declared("/livez", live, "The same as /healthz."),
        declared("/readyz", ready, "Is the broker ready for work?", 503),
    ]
