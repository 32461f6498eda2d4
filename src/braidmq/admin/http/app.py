"""The HTTP application: every endpoint in one place, and how failures are answered.

It listens on nothing (server.py does) and holds no state of its own: each answer is made
from what the AdminSource says at that moment. Handlers run on the broker's own loop; what
takes long is the source's to do on a thread.
"""

from typing import Final, Protocol

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from braidmq.admin.connections import ConnectionSource, connection_endpoints
from braidmq.admin.cursors import CursorSource, cursor_endpoints
from braidmq.admin.dead_letters import LetterSource, letter_endpoints
from braidmq.admin.events import NumbersSource, event_endpoints
from braidmq.admin.health import HealthSource, health_endpoints
from braidmq.admin.http.endpoints import NO_KEY, Endpoint, routes_of
from braidmq.admin.http.openapi import openapi_endpoint
from braidmq.admin.http.refusals import RefusedError
from braidmq.admin.http.requests import KeySource, principal_of
from braidmq.admin.http.security import LoopbackHost, SameOrigin, SecurityHeaders
from braidmq.admin.keys import KeyringSource, key_endpoints
from braidmq.admin.log import LogSource, log_endpoints
from braidmq.admin.messages import MessageSource, message_endpoints
from braidmq.admin.metrics import CONTENT_TYPE, MetricsPage, MetricsSource
from braidmq.admin.overview import OverviewSource, overview_endpoints
from braidmq.admin.pages import load_pages, page_endpoints
from braidmq.admin.queues import QueueSource, queue_endpoints
from braidmq.admin.session import SessionSource, session_endpoints
from braidmq.admin.topics import TopicSource, topic_endpoints
from braidmq.server.engine.refusals import UnavailableError

_log = structlog.get_logger(__name__)

METRICS_PATH: Final = "/metrics"


class AdminSource(HealthSource, MetricsSource, OverviewSource, SessionSource, Protocol):
    """What the application shows; each part is what one file of `admin` asks."""

    @property
    def topics(self) -> TopicSource:
        """What is asked about topics."""
        ...

    @property
    def messages(self) -> MessageSource:
        """What is asked about messages."""
        ...

    @property
    def numbers(self) -> NumbersSource:
        """Who takes the numbers of each second."""
        ...

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

    @property
    def connections(self) -> ConnectionSource:
        """What is asked about connections and subscriptions."""
        ...

    @property
    def log(self) -> LogSource:
        """What is asked about the log."""
        ...

    @property
    def keyring(self) -> KeyringSource:
        """What is asked about keys and users."""
        ...


def endpoints_of(source: AdminSource, *, loopback: bool) -> list[Endpoint]:
    """Return everything that is answered, its description included."""
    endpoints = [
        *health_endpoints(source),
        *_metrics_endpoints(source, loopback=loopback),
        *session_endpoints(source),
        *overview_endpoints(source),
        *event_endpoints(source, source.numbers),
        *topic_endpoints(source, source.topics),
        *message_endpoints(source, source.messages),
        *queue_endpoints(source, source.queues),
        *letter_endpoints(source, source.letters),
        *cursor_endpoints(source, source.cursors),
        *connection_endpoints(source, source.connections),
        *log_endpoints(source, source.log),
        *key_endpoints(source, source.keyring),
        *page_endpoints(load_pages()),
    ]
    return [*endpoints, openapi_endpoint(endpoints, source.version)]


def build_app(source: AdminSource, *, loopback: bool) -> ASGIApp:
    """Return the application; *loopback*: only this machine can reach the listener."""
    app = Starlette(
        routes=routes_of(endpoints_of(source, loopback=loopback)),
        middleware=[*([Middleware(LoopbackHost)] if loopback else []), Middleware(SameOrigin)],
        exception_handlers={
            HTTPException: _refuse,
            RefusedError: _explain,
            UnavailableError: _unavailable,
            Exception: _fail,
        },
    )
    app.router.redirect_slashes = False  # a slash at the end is a name of its own
    # Outermost, because Starlette answers failures outside its own middleware.
    return SecurityHeaders(app)


def _metrics_endpoints(source: "AdminSource", *, loopback: bool) -> list[Endpoint]:
    metrics = MetricsPage(source)
    keys: KeySource = source

    async def show(request: Request) -> Response:
        if not loopback:
            principal_of(request, keys)
        return Response(metrics.render(), media_type=CONTENT_TYPE)

    return [
        Endpoint(
            method="GET",
            path=METRICS_PATH,
            handler=show,
            summary="All numbers as Prometheus reads them; open on loopback.",
            tag="health",
            media="text/plain",
            key=NO_KEY,
        )
    ]


async def _refuse(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"error": error.detail}, status_code=error.status_code, headers=error.headers
    )


async def _explain(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RefusedError)
    return JSONResponse({"error": str(error)}, status_code=error.status)


async def _unavailable(_request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, status_code=503)


async def _fail(request: Request, error: Exception) -> JSONResponse:
    # The path is in the line, the query and the headers are not: keys may be there.
    _log.error("http_request_failed", path=request.url.path, error=type(error).__name__)
    return JSONResponse({"error": "internal error"}, status_code=500)
