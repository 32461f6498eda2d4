"""Health: is the process alive, and may it be sent work?

Alive is answered by answering. Ready is the source's word: not before recovery is done,
and never again once the log is poisoned.
"""

from dataclasses import dataclass
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the broker takes work, and in a few words why not."""

    ready: bool
    reason: str = ""


class HealthSource(Protocol):
    """What the health pages ask."""

    def readiness(self) -> Readiness:
        """Return whether the broker takes work now."""
        ...


def health_routes(source: HealthSource) -> list[Route]:
    """Return `/healthz`, its other name `/livez`, and `/readyz`; all open to everybody."""

    async def live(_request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"})

    async def ready(_request: Request) -> JSONResponse:
        readiness = source.readiness()
        if readiness.ready:
            return JSONResponse({"status": "ready"})
        return JSONResponse({"error": readiness.reason or "not ready"}, status_code=503)

    return [Route("/healthz", live), Route("/livez", live), Route("/readyz", ready)]
