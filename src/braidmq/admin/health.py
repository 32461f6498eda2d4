"""Health: is the process alive, and is it ready for work?

    GET /healthz, /livez    200 as long as the process answers at all
    GET /readyz             200, or 503 with the reason

A broker is not ready before recovery is done, nor while it drains, and never again once its
log is poisoned.
"""

from collections.abc import Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint, Handler, Refusal, answered
from braidmq.server.engine.engine import Engine
from braidmq.wal.wal import Wal


class Health(msgspec.Struct, frozen=True):
    """`ok` for liveness, `ready` for readiness."""

    status: str


def unready_reason(engine: Engine | None, wal: Wal | None) -> str:
    """Return why a broker does not accept work; empty if it does."""
    if engine is None or wal is None:
        return "recovering the log"
    if engine.failed is not None or wal.is_poisoned:
        return "the log is poisoned"
    return "shutting down" if engine.draining else ""


def health_endpoints(find_reason: Callable[[], str]) -> list[Endpoint]:
    """Return `/healthz`, its synonym `/livez`, and `/readyz`; none needs a key."""

    async def live(_request: Request) -> Response:
        return answered(Health("ok"))

    async def ready(_request: Request) -> Response:
        reason = find_reason()
        return answered(Refusal(reason), 503) if reason else answered(Health("ready"))

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
