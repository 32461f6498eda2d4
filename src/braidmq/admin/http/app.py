"""The HTTP application: every endpoint in one place, and how failures are answered.

It listens on nothing (server.py does) and has no state: each answer is made from what `Status`
says at that moment. Handlers run on the broker's event loop; slow work goes to a thread.
"""

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from braidmq.admin.cursors import ShownCursors
from braidmq.admin.health import health_endpoints
from braidmq.admin.http.endpoints import Endpoint, answered, keyed_endpoints, routes_of
from braidmq.admin.http.openapi import openapi_endpoint
from braidmq.admin.http.refusals import RefusedError
from braidmq.admin.http.security import LoopbackHost, SameOrigin, SecurityHeaders
from braidmq.admin.metrics import metrics_endpoints
from braidmq.admin.overview import session_endpoints
from braidmq.admin.pages import load_pages, page_endpoints
from braidmq.admin.status import Status
from braidmq.server.engine.requests import UnavailableError

_log = structlog.get_logger(__name__)


def endpoints_of(status: Status, *, loopback: bool) -> list[Endpoint]:
    """Return every endpoint, the API's own description included."""
    find = status.principal
    nouns = (  # and their tags in the description
        (status, "broker"),
        (status.numbers, "broker"),
        (status.topics, "topics"),
        (status.messages, "messages"),
        (status.publishing, "messages"),
        (status.queues, "queues"),
        (status.letters, "dead letters"),
        (status.replays, "dead letters"),
        (ShownCursors(status.cursors), "cursors"),
        (status.connections, "connections"),
        (status.subscriptions, "connections"),
        (status.log, "log"),
        (status.keys, "keys"),
        (status.reloads, "broker"),
    )
    endpoints = [
        *health_endpoints(status.unready_reason),
        *metrics_endpoints(find, status.metrics, loopback=loopback),
        *session_endpoints(find, version=status.version, dev=status.dev),
        *(one for noun, tag in nouns for one in keyed_endpoints(noun, find, tag)),
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


# All answers by `answered`: an error may repeat a name, and with it what controls a terminal.


async def _refuse(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    response = answered({"error": error.detail}, error.status_code)
    response.headers.update(error.headers or {})
    return response


async def _explain(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RefusedError)
    return answered({"error": str(error)}, error.status)


async def _unavailable(_request: Request, error: Exception) -> Response:
    return answered({"error": str(error)}, 503)


async def _fail(request: Request, error: Exception) -> Response:
    # Only the path is logged: the query, the headers and the exception's text may hold a key.
    _log.error("http_request_failed", path=request.url.path, error=type(error).__name__)
    return answered({"error": "internal error"}, 500)
