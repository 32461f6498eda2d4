"""The HTTP application: every endpoint in one place, and how failures are answered.

It listens on nothing (server.py does) and has no state: each answer is made from what `Status`
says at that moment. Handlers run on the broker's event loop; slow work goes to a thread.
"""

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from braidmq.admin.connections import connection_endpoints
from braidmq.admin.cursors import cursor_endpoints
from braidmq.admin.dead_letters import letter_endpoints
from braidmq.admin.events import event_endpoints
from braidmq.admin.health import health_endpoints
from braidmq.admin.http.endpoints import Endpoint, routes_of
from braidmq.admin.http.openapi import openapi_endpoint
from braidmq.admin.http.refusals import RefusedError
from braidmq.admin.http.security import LoopbackHost, SameOrigin, SecurityHeaders
from braidmq.admin.keys import key_endpoints
from braidmq.admin.log import log_endpoints
from braidmq.admin.messages import message_endpoints
from braidmq.admin.metrics import metrics_endpoints
from braidmq.admin.overview import overview_endpoints, session_endpoints
from braidmq.admin.pages import load_pages, page_endpoints
from braidmq.admin.publishing import publish_endpoints
from braidmq.admin.queues import queue_endpoints
from braidmq.admin.replays import replay_endpoints
from braidmq.admin.status import Status
from braidmq.admin.subscriptions import subscription_endpoints
from braidmq.admin.topics import topic_endpoints
from braidmq.server.engine.refusals import UnavailableError

_log = structlog.get_logger(__name__)


def endpoints_of(status: Status, *, loopback: bool) -> list[Endpoint]:
    """Return every endpoint, the API's own description included."""
    find = status.principal
    endpoints = [
        *health_endpoints(status.unready_reason),
        *metrics_endpoints(find, status.metrics, loopback=loopback),
        *session_endpoints(find, version=status.version, dev=status.dev),
        *overview_endpoints(find, status.overview),
        *event_endpoints(find, status.numbers),
        *topic_endpoints(find, status.topics),
        *message_endpoints(find, status.messages),
        *publish_endpoints(find, status.publishing),
        *queue_endpoints(find, status.queues),
        *letter_endpoints(find, status.letters),
        *replay_endpoints(find, status.replays),
        *cursor_endpoints(find, status.cursors),
        *connection_endpoints(find, status.connections),
        *subscription_endpoints(find, status.subscriptions),
        *log_endpoints(find, status.log),
        *key_endpoints(find, status.keys),
        *page_endpoints(load_pages()),
    ]
    return [*endpoints, openapi_endpoint(endpoints, status.version)]


def build_app(status: Status, *, loopback: bool) -> ASGIApp:
    """Return the application; *loopback*: only this machine can reach the listener."""
    app = Starlette(
        routes=routes_of(endpoints_of(status, loopback=loopback)),
        middleware=[*([Middleware(LoopbackHost)] if loopback else []), Middleware(SameOrigin)],
        exception_handlers={
            HTTPException: _refuse,
            RefusedError: _explain,
            UnavailableError: _unavailable,
            Exception: _fail,
        },
    )
    # A path with a slash at the end is another name. A redirect would also make the client send
    # its key again.
    app.router.redirect_slashes = False
    # Outermost, because Starlette answers unhandled failures outside its own middleware.
    return SecurityHeaders(app)


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
    # Only the path is logged: the query, the headers and the exception's text may hold a key.
    _log.error("http_request_failed", path=request.url.path, error=type(error).__name__)
    return JSONResponse({"error": "internal error"}, status_code=500)
