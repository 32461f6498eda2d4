"""Protection from foreign web pages: headers on every answer, checks of Host and Origin."""

import ipaddress
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_LOOKING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


class SecurityHeaders:
    """Add headers that tell browsers not to embed, sniff or store an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_headers)


class LoopbackHost:
    """Refuse requests whose Host is not this machine (DNS rebinding).

    A foreign web page can point its own name at 127.0.0.1 and make a visitor's browser send
    requests to us. The browser then sends that name as Host, which gives it away.
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


class SameOrigin:
    """Refuse changes requested by a page from another origin.

    Such a page needs a key as well; this protects if it has got one. A request without an
    Origin passes: browsers send one with every change, and other clients send none.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] == "http" and scope["method"] not in _LOOKING:
            headers = Headers(scope=scope)
            if not _is_own(headers.getlist("origin"), headers.get("host", "")):
                refusal = JSONResponse({"error": "foreign Origin"}, status_code=403)
                await refusal(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_own(origins: list[str], host: str) -> bool:
    # The scheme is not compared: a proxy that terminates TLS changes it.
    own = {f"{scheme}://{host.lower()}" for scheme in ("http", "https")}
    return all(origin.lower() in own for origin in origins)


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
