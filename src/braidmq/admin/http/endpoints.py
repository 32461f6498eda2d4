"""Endpoints: one declaration each, which yields both the route and its description.

A path is matched as it was sent, before percent-decoding: a name is one segment of the path,
and encoded characters in it, slashes included, belong to the name. Browsers and proxies remove
the segments `.` and `..`, encoded or not, so these names are sent as `%FF.` and `%FF..`.
Handlers answer with typed structures, and the description is generated from them.
"""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from braidmq.admin.http.parameters import Name, Parameter
from braidmq.admin.http.requests import FindPrincipal, principal_of
from braidmq.base.printable import visible_json
from braidmq.broker.authorize import Principal

Handler = Callable[[Request], Awaitable[Response]]
KeyedMethod = Callable[[Any, Request, Principal], Awaitable[object]]
"""Answers a request of an authenticated principal, with a structure or a whole response."""

JSON: Final = "application/json"

_DOTS: Final = {b"\xff.": ".", b"\xff..": ".."}
"""Names that a path cannot hold, by what is sent instead: FF is not valid in UTF-8."""

NO_KEY: Final = "none"
ANY_KEY: Final = "key"
MAYBE_KEY: Final = "optional"
"""Whether an endpoint needs a key: never, always, or accepted but not required."""


class Refusal(msgspec.Struct, frozen=True):
    """Why a request was refused, in one line."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One method of one path: its parameters, its answer and its handler.

    `body` and `answer` are the types of the JSON; `media` is for other answers. `refusals` are
    the error statuses besides those that follow from the rest: 400 with parameters or a body,
    401 and 403 with a key, 408 and 413 with a body.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str = "broker"
    names: tuple[Name, ...] = ()  # the parameters in the path
    query: tuple[Parameter[Any], ...] = ()
    body: object = None
    answer: object = None  # a type, or a union of alternatives
    media: str = JSON
    statuses: tuple[int, ...] = (200,)
    refusals: tuple[int, ...] = ()
    key: str = ANY_KEY


def answered(value: object, status: int = 200) -> Response:
    """Return a structure as a JSON response."""
    data = visible_json(msgspec.json.encode(value))
    return Response(data, status_code=status, media_type=JSON)


@dataclass(frozen=True, slots=True)
class Keyed:
    """A method of a noun of the API that answers requests; each of them needs a key."""

    method: KeyedMethod
    declared: Callable[..., Endpoint]  # but for its handler and its tag
    status: int

    def bound(self, noun: object, find_principal: FindPrincipal, tag: str) -> Endpoint:
        """Return the endpoint that *noun* answers."""

        async def handle(request: Request) -> Response:
            said = await self.method(noun, request, principal_of(request, find_principal))
            return said if isinstance(said, Response) else answered(said, self.status)

        return self.declared(handler=handle, tag=tag)


def keyed(
    method_and_path: str,
    *parameters: Name | Parameter[Any],
    body: object = None,
    answer: object = None,
    media: str = JSON,
    statuses: tuple[int, ...] = (200,),
    refusals: tuple[int, ...] = (503,),
) -> Callable[[KeyedMethod], Keyed]:
    """Declare that a method answers an endpoint, such as `GET /api/topics`.

    The method's docstring is the summary, and its return type describes the answer, so that
    code and description cannot disagree; *answer* is for a method that returns a response.
    Other answers have the first of *statuses*.
    """
    verb, path = method_and_path.split()

    def declared(method: KeyedMethod) -> Keyed:
        facts = partial(
            Endpoint,
            method=verb,
            path=path,
            summary=method.__doc__ or "",
            names=tuple(one for one in parameters if isinstance(one, Name)),
            query=tuple(one for one in parameters if not isinstance(one, Name)),
            body=body,
            answer=answer or inspect.signature(method).return_annotation,
            media=media,
            statuses=statuses,
            refusals=refusals,
        )
        return Keyed(method, facts, statuses[0])

    return declared


def keyed_endpoints(noun: object, find_principal: FindPrincipal, tag: str) -> list[Endpoint]:
    """Return the endpoints that the methods of *noun* answer."""
    methods = [one for one in vars(type(noun)).values() if isinstance(one, Keyed)]
    return [one.bound(noun, find_principal, tag) for one in methods]


class RawRoute(BaseRoute):
    """The methods of one path, matched segment by segment as it was sent."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._parts = path.split("/")
        self._handlers: dict[str, Handler] = {}

    def add(self, endpoint: Endpoint) -> None:
        """Add a method."""
        assert endpoint.method not in self._handlers, endpoint
        self._handlers[endpoint.method] = endpoint.handler

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return whether the request is for this path and method, and the names in it."""
        if scope["type"] != "http":
            return Match.NONE, {}
        sent = raw_path(scope).split(b"/")
        if len(sent) != len(self._parts):
            return Match.NONE, {}
        names: dict[str, str] = {}
        for part, raw in zip(self._parts, sent, strict=True):
            if part.startswith("{"):
                name = _decoded(raw)
                if not name:
                    return Match.NONE, {}
                names[part[1:-1]] = name
            elif part.encode() != raw:
                return Match.NONE, {}
        # A partial match is still handled here, and answered 405 instead of 404.
        known = _method(scope) in self._handlers
        return Match.FULL if known else Match.PARTIAL, {"path_params": names}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for this path, or refuse its method."""
        handler = self._handlers.get(_method(scope))
        if handler is None:
            raise HTTPException(405, headers={"Allow": ", ".join(sorted(self._handlers))})
        response = await handler(Request(scope, receive))
        await response(scope, receive, send)


def routes_of(endpoints: list[Endpoint]) -> list[BaseRoute]:
    """Return one route for each path of *endpoints*."""
    routes: dict[str, RawRoute] = {}
    for endpoint in endpoints:
        routes.setdefault(endpoint.path, RawRoute(endpoint.path)).add(endpoint)
    return list(routes.values())


def raw_path(scope: Scope) -> bytes:
    """Return the path as it was sent, without the query."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0]


def _method(scope: Scope) -> str:
    method: str = scope["method"]
    return "GET" if method == "HEAD" else method


def _decoded(raw: bytes) -> str:
    name = unquote_to_bytes(raw)
    if name in _DOTS:
        return _DOTS[name]
    try:
        return name.decode()
    except UnicodeDecodeError:
        return ""  # not a valid name
