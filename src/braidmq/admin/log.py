"""The log over HTTP: its segments, how full it is, and whether its bytes are what was written.

GET  /api/log           segments, sizes, settings, what is in quarantine
POST /api/log/verify    the same, after every sealed segment was read and checked
"""

from typing import Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import Endpoint, answered
from braidmq.admin.http.requests import KeySource, allow, principal_of
from braidmq.broker.authorize import ADMIN


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True):
    """One segment; `verified` is null until somebody has had it checked."""

    name: str
    first_id: int
    last_id: int
    bytes: int
    sealed: bool
    verified: bool | None


class QuarantineRow(msgspec.Struct, frozen=True):
    """A file of bytes that could not be accepted."""

    name: str
    bytes: int


class LogFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The log as it is now; of very many segments the newest are shown."""

    segments: list[SegmentRow]
    segments_total: int
    bytes: int
    committed_id: int
    fsync: str
    full: bool
    poisoned: bool
    retention_hours: float
    retention_bytes: int
    quarantine: list[QuarantineRow]


class LogSource(Protocol):
    """Who has the log. Each raises RefusedError: not now."""

    async def facts(self) -> LogFacts:
        """Return the log as it is now."""
        ...

    async def verify(self) -> LogFacts:
        """Check every sealed segment, then return the log."""
        ...


def log_endpoints(keys: KeySource, source: LogSource) -> list[Endpoint]:
    """Return `/api/log` and what is below it."""

    async def show(request: Request) -> Response:
        principal_of(request, keys)
        return answered(await source.facts())

    async def verify(request: Request) -> Response:
        allow(principal_of(request, keys), ADMIN, "")
        return answered(await source.verify())

    return [
        Endpoint(
            method="GET",
            path="/api/log",
            handler=show,
            summary="The log: segments, sizes, settings.",
            tag="log",
            answer=LogFacts,
            refusals=(503,),
        ),
        Endpoint(
            method="POST",
            path="/api/log/verify",
            handler=verify,
            summary="Check every sealed segment; for administrators.",
            tag="log",
            answer=LogFacts,
            refusals=(503,),
        ),
    ]
