"""Endpoints: paths are matched as sent, and each endpoint is declared once."""

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.testclient import TestClient

from braidmq.admin.http.endpoints import (
    Endpoint,
    answered,
    keyed,
    keyed_endpoints,
    routes_of,
)
from braidmq.admin.http.parameters import AFTER, Name
from braidmq.broker.authorize import Principal


class Echo(msgspec.Struct):
    """The names found in the path."""

    names: dict[str, str]


async def echo(request: Request) -> Response:
    return answered(Echo(request.path_params), 201)


def declared(method: str, path: str) -> Endpoint:
    return Endpoint(method=method, path=path, handler=echo, summary="Echo the names.")


@pytest.fixture
def client() -> TestClient:
    endpoints = [declared("GET", "/t/{a}"), declared("DELETE", "/t/{a}")]
    endpoints.append(declared("GET", "/t/{a}/m/{b}"))
    return TestClient(Starlette(routes=routes_of(endpoints)))


PATHS = {
    "/t/x": {"a": "x"},
    "/t/x%2Fm%2Fy": {"a": "x/m/y"},
    "/t/x/m/y": {"a": "x", "b": "y"},
    "/t/x%2Fm/m/y%20": {"a": "x/m", "b": "y "},
    "/t/%E2%82%AC?a=b": {"a": "\u20ac"},
    "/t/%3F%23%25": {"a": "?#%"},
    "/t/%252F": {"a": "%2F"},
    "/t/%FF.": {"a": "."},
    "/t/%FF../m/%ff%2E": {"a": "..", "b": "."},
}


@pytest.mark.parametrize(("path", "names"), PATHS.items())
def test_names_are_found_as_they_were_sent(
    client: TestClient, path: str, names: dict[str, str]
) -> None:
    """Percent-encoded characters belong to the name."""
    answer = client.get(path)

    assert (201, {"names": names}) == (answer.status_code, answer.json())


@pytest.mark.parametrize(
    "path",
    ["/t", "/t/", "/t/x/", "/t//m/y", "/t/%FF", "/t/%FF...", "/t/%FFx", "/t/x/n/y", "//t/x"],
)
def test_other_paths_are_404(client: TestClient, path: str) -> None:
    """A name is never empty, and always UTF-8."""
    assert 404 == client.get(path).status_code


def test_another_method_is_refused_with_the_allowed_ones(client: TestClient) -> None:
    """405 lists the allowed methods; HEAD is GET without the body."""
    answer = client.post("/t/x")

    assert (405, "DELETE, GET") == (answer.status_code, answer.headers["allow"])
    assert 201 == client.head("/t/x").status_code


def test_a_method_of_a_path_is_declared_once() -> None:
    """Which handler answers must not depend on the order of a list."""
    with pytest.raises(AssertionError):
        routes_of([declared("GET", "/x"), declared("GET", "/x")])


class Greetings:
    """A noun of an API."""

    @keyed("POST /greetings/{name}", Name("name", "The caller."), AFTER, statuses=(201,))
    async def post_greeting(self, request: Request, principal: Principal) -> Echo:
        """Greet a caller by name."""
        return Echo({**request.path_params, "by": principal.name})


def test_a_method_declares_its_endpoint_by_its_docstring_and_its_type() -> None:
    """Names go to the path, other parameters to the query, and every request needs a key."""
    endpoints = keyed_endpoints(
        Greetings(), {"k": Principal("ops", publish=[], subscribe=[])}.get, "greetings"
    )
    client = TestClient(Starlette(routes=routes_of(endpoints)))
    (one,) = endpoints
    answer = client.post("/greetings/ann", headers={"Authorization": "Bearer k"})

    assert ("Greet a caller by name.", "greetings", Echo, ["name"], (AFTER,)) == (
        one.summary,
        one.tag,
        one.answer,
        [name.name for name in one.names],
        one.query,
    )
    assert (201, {"names": {"name": "ann", "by": "ops"}}) == (answer.status_code, answer.json())
    assert 401 == client.post("/greetings/ann").status_code
