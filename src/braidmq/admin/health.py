"""Health: is the process alive, and may it be sent work?

Alive is answered by answering. Ready is the source's word: not before recovery is done,
and never again once the log is poisoned.
"""

from dataclasses import dataclass
from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import NO_KEY, Endpoint, Handler, Refusal, answered


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the broker takes work, and in a few words why not."""

    ready: bool
    reason: str = ""


class Health(msgspec.Struct, frozen=True):
    """How it is: `ok` where being alive was asked about, `ready` where readiness was."""

    status: str


class HealthSource(Protocol):
    """What the health pages ask."""

    def readiness(self) -> Readiness:
        """Return whether the broker takes work now."""
        ...


def health_endpoints(source: HealthSource) -> list[Endpoint]:
    """Return `/healthz`, its other name `/livez`, and `/readyz`; all open to everybody."""

    async def live(_request: Request) -> Response:
        return answered(Health("ok"))

    async def ready(_request: Request) -> Response:
        readiness = source.readiness()
        if readiness.ready:
            return answered(Health("ready"))
        return answered(Refusal(readiness.reason or "not ready"), 503)

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
        declared("/readyz", ready, "May it be sent work?", 503),
    ]
