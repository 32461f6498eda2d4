"""The OpenAPI description, generated from the endpoints.

GET /api/openapi.json
"""

import functools
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Any, Final, get_args

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from braidmq.admin.http.endpoints import ANY_KEY, JSON, MAYBE_KEY, NO_KEY, Endpoint, Refusal
from braidmq.admin.http.parameters import Name, Parameter

VERSION: Final = "3.1.0"
PATH: Final = "/api/openapi.json"

_TEMPLATE: Final = "#/components/schemas/{name}"
_SCHEME: Final = "key"
_BEARER: Final[list[str]] = []

_SAID: Final = {
    200: "Success.",
    201: "Created.",
    400: "A value in the request is not valid.",
    401: "The API key is missing or unknown.",
    403: "The key lacks a permission, or the Origin is foreign.",
    404: "Not found.",
    408: "Timed out waiting for the body.",
    409: "Conflict with the current state.",
    413: "The body or payload is too large.",
    421: "The Host header does not name this machine.",
    503: "Unavailable: the broker is starting, stopping, or out of room.",
}


def describe(endpoints: Sequence[Endpoint], version: str) -> dict[str, object]:
    """Return the description of *endpoints*."""
    types = list(dict.fromkeys([Refusal, *(one for e in endpoints for one in _types_of(e))]))
    references, components = msgspec.json.schema_components(types, ref_template=_TEMPLATE)
    named = dict(zip(types, references, strict=True))
    paths: dict[str, dict[str, object]] = {}
    for endpoint in endpoints:
        described = _operation(endpoint, named)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = described
    return {
        "openapi": VERSION,
        "info": {
            "title": "BraidMQ",
            "version": version,
            "description": "Operate and monitor the broker. Errors are one line of text.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {_SCHEME: {"type": "http", "scheme": "bearer"}},
        },
    }


def openapi_endpoint(endpoints: Sequence[Endpoint], version: str) -> Endpoint:
    """Return the endpoint that describes *endpoints* and itself."""

    @functools.cache
    def document() -> bytes:
        return msgspec.json.encode(describe([*endpoints, own], version))

    async def show(_request: Request) -> Response:
        return Response(document(), media_type=JSON)

    own = Endpoint(
        method="GET",
        path=PATH,
        handler=show,
        summary="This description.",
        tag="description",
        answer=dict[str, msgspec.Raw],
        key=NO_KEY,
    )
    return own


def statuses_of(endpoint: Endpoint) -> list[int]:
    """Return every error status of an endpoint."""
    # Any request may have a foreign Host (421), any change a foreign Origin (403): the
    # middleware refuses both.
    refusals = set(endpoint.refusals) | {421}
    if endpoint.query or endpoint.body is not None:
        refusals.add(400)
    if endpoint.key in {ANY_KEY, MAYBE_KEY}:
        refusals.add(401)
    if endpoint.key == ANY_KEY or endpoint.method != "GET":
        refusals.add(403)
    if endpoint.body is not None:
        refusals |= {408, 413}
    return sorted(refusals)


def _operation(endpoint: Endpoint, named: Mapping[object, dict[str, object]]) -> object:
    content = _content(endpoint, named)
    responses: dict[str, object] = {
        str(status): {"description": _SAID[status], "content": content}
        for status in endpoint.statuses
    }
    refused = {JSON: {"schema": named[Refusal]}}
    for status in statuses_of(endpoint):
        responses[str(status)] = {"description": _SAID[status], "content": refused}
    operation: dict[str, object] = {
        "operationId": operation_id(endpoint),
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "responses": responses,
    }
    parameters = [_parameter(one, "path") for one in endpoint.names]
    parameters += [_parameter(one, "query") for one in endpoint.query]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body is not None:
        body = {JSON: {"schema": named[endpoint.body]}}
        operation["requestBody"] = {"required": True, "content": body}
    if endpoint.key == ANY_KEY:
        operation["security"] = [{_SCHEME: _BEARER}]
    elif endpoint.key == MAYBE_KEY:
        operation["security"] = [{}, {_SCHEME: _BEARER}]
    return operation


def operation_id(endpoint: Endpoint) -> str:
    """Return the name of an operation, such as `get_topics_messages`."""
    parts = [
        part.strip("{}").replace("-", "_").replace(".", "_")
        for part in endpoint.path.split("/")
        if part and part != "api"
    ]
    return "_".join([endpoint.method.lower(), *parts])


def _content(endpoint: Endpoint, named: Mapping[object, dict[str, object]]) -> object:
    types = _answers_of(endpoint)
    if endpoint.media != JSON or not types:
        return {endpoint.media: {"schema": {"type": "string"}}}
    schemas = [named[one] for one in types]
    return {JSON: {"schema": schemas[0] if len(schemas) == 1 else {"anyOf": schemas}}}


def _parameter(parameter: Parameter[Any] | Name, place: str) -> dict[str, object]:
    return {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _answers_of(endpoint: Endpoint) -> tuple[object, ...]:
    if endpoint.answer is None:
        return ()
    # msgspec describes no union of structures, so each alternative is described by itself.
    is_union = isinstance(endpoint.answer, UnionType)
    return get_args(endpoint.answer) if is_union else (endpoint.answer,)


def _types_of(endpoint: Endpoint) -> tuple[object, ...]:
    body = () if endpoint.body is None else (endpoint.body,)
    return (*_answers_of(endpoint), *body)
