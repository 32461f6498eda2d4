"""The HTTP application: routes, who may see what, and what every answer carries.

It listens on nothing (server.py does) and holds no state of its own: each answer is made
from what the AdminSource says at that moment. Handlers run on the broker's own loop; those
that only look never await between asking and answering, so that an answer is of one moment.
"""

import ipaddress
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Final, Protocol

import structlog
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from braidmq.admin.cursors import CursorSource, cursor_routes
from braidmq.admin.dead_letters import LetterSource, letter_routes
from braidmq.admin.health import HealthSource, health_routes
from braidmq.admin.metrics import CONTENT_TYPE, MetricsPage, MetricsSource
from braidmq.admin.queues import QueueSource, queue_routes
from braidmq.admin.refusals import RefusedError
from braidmq.admin.requests import KeySource, limit_of, principal_of
from braidmq.base.build import compiled_modules, hot_modules, is_compiled
from braidmq.broker.authorize import Principal, authorize

_SECURITY_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TopicSnapshot:
    """One topic as `/api/topics` shows it; the count is over all restarts."""

    name: str
    messages: int
    last_offset: int
    subscriptions: int


@dataclass(frozen=True, slots=True)
class TopicsPage:
    """Topics in the order of their names, and whether there are more behind them."""

    topics: list[TopicSnapshot]
    more: bool


class AdminSource(HealthSource, MetricsSource, KeySource, Protocol):
    """What the application shows; every method returns a plain snapshot, at once."""

    @property
    def queues(self) -> QueueSource:
        """What is asked about queues."""
        ...

    @property
    def letters(self) -> LetterSource:
        """What is asked about dead letters."""
        ...

    @property
    def cursors(self) -> CursorSource:
        """What is asked about cursors."""
        ...

    def overview(self) -> dict[str, object]:
        """Return what is worth knowing at a glance; only what JSON can say."""
        ...

    def topics(self, *, after: str, limit: int, visible: Callable[[str], bool]) -> TopicsPage:
        """Return up to *limit* visible topics whose names sort behind *after*."""
        ...


def build_app(source: AdminSource, *, loopback: bool) -> ASGIApp:
    """Return the application; *loopback*: only this machine can reach the listener."""
    metrics = MetricsPage(source)

    async def show_metrics(request: Request) -> Response:
        if not loopback:
            principal_of(request, source)
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    async def show_overview(request: Request) -> JSONResponse:
        principal_of(request, source)
        return JSONResponse({**source.overview(), "build": _build()})

    async def show_topics(request: Request) -> JSONResponse:
        principal = principal_of(request, source)
        page = source.topics(
            after=request.query_params.get("after", ""),
            limit=limit_of(request),
            visible=lambda topic: _may_see(principal, topic),
        )
        following = page.topics[-1].name if page.more and page.topics else None
        return JSONResponse({"topics": [asdict(t) for t in page.topics], "next": following})

    app = Starlette(
        routes=[
            *health_routes(source),
            Route("/metrics", show_metrics),
            Route("/api/overview", show_overview),
            Route("/api/topics", show_topics),
            *queue_routes(source, source.queues),
            *letter_routes(source, source.letters),
            *cursor_routes(source, source.cursors),
        ],
        middleware=[Middleware(LoopbackHost)] if loopback else [],
        exception_handlers={HTTPException: _refuse, RefusedError: _explain, Exception: _fail},
    )
    # Outermost, because Starlette answers failures outside its own middleware.
    return SecurityHeaders(app)


def _build() -> dict[str, object]:
    compiled = compiled_modules()
    return {
        "compiled": is_compiled(),
        "compiled_modules": compiled,
        "interpreted_modules": [name for name in hot_modules() if name not in compiled],
    }


def _may_see(principal: Principal, topic: str) -> bool:
    return any(
        authorize(principal, operation, topic)
        for operation in ("admin", "subscribe", "publish")
    )


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": error.detail}, status_code=error.status_code, headers=error.headers
    )


async def _explain(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": str(error)}, status_code=error.status)


async def _fail(request: Request, error: Exception) -> JSONResponse:
    # The path is in the line, the query and the headers are not: keys may be there.
    _log.error("http_request_failed", path=request.url.path, error=type(error).__name__)
    return JSONResponse({"error": "internal error"}, status_code=500)


class SecurityHeaders:
    """Say on every answer that browsers must not embed, sniff or keep it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _SECURITY_HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class LoopbackHost:
    """Refuse requests for other names than this machine's own.

    A web page from elsewhere can point its own name at 127.0.0.1 and have a visitor's
    browser talk to us; the browser then says that name as Host, and that gives it away.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and not _is_loopback(Headers(scope=scope).get("host", "")):
            refusal = JSONResponse({"error": "unknown Host"}, status_code=421)
            await refusal(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_loopback(host_header: str) -> bool:
    host, colon, port = host_header.rpartition(":")
    if not colon or not port.isdigit():
        host = host_header
    if host.lower() in {"localhost", "localhost."}:
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False
