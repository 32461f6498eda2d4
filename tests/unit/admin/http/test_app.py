"""The HTTP application: who may see what, and how it refuses."""

from urllib.parse import quote

import pytest
from starlette.exceptions import HTTPException
from starlette.testclient import TestClient
from starlette.types import Message
from structlog.testing import capture_logs

from braidmq.admin.http.app import build_app
from braidmq.admin.http.refusals import RefusedError
from braidmq.admin.overview import BrokerFacts
from braidmq.server.engine.requests import UnavailableError
from tests.unit.admin.world import ADMIN, ADMIN_KEY, ORDERS, World, bearer

OPEN_PATHS = ["/healthz", "/livez", "/readyz"]
KEYED_PATHS = [
    "/api/overview",
    "/api/topics",
    "/api/queues",
    "/api/queues/a",
    "/api/dead-letters",
    "/api/cursors",
    "/api/topics/a",
    "/api/topics/a/messages",
    "/api/topics/a/messages/1",
    "/api/clients",
    "/api/connections",
    "/api/subscriptions",
    "/api/events",
    "/api/keys",
    "/api/log",
]


@pytest.fixture(scope="module")
def world() -> World:
    """Return one broker for all tests of this module: none of them changes it."""
    return World()


@pytest.fixture(scope="module")
def client(world: World) -> TestClient:
    return world.client()


@pytest.fixture(scope="module")
def remote(world: World) -> TestClient:
    return world.client(loopback=False, url="http://broker.example.com")


@pytest.fixture
def broken() -> TestClient:
    """Return a client of a broker whose overview fails."""

    def fail() -> BrokerFacts:
        raise RuntimeError("a secret inside")

    world = World()
    world.status.overview = fail  # type: ignore[method-assign]  # as if it had a bug
    return world.client()


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_health_is_open_everywhere(client: TestClient, remote: TestClient, path: str) -> None:
    """Monitors and load balancers have no key."""
    assert [200, 200] == [client.get(path).status_code, remote.get(path).status_code]


def test_metrics_are_open_on_loopback_only(client: TestClient, remote: TestClient) -> None:
    """Elsewhere a scraper needs a key; any key will do."""
    assert 200 == client.get("/metrics").status_code
    assert 401 == remote.get("/metrics").status_code
    response = remote.get("/metrics", headers=ORDERS)
    assert "text/plain; version=0.0.4; charset=utf-8" == response.headers["content-type"]
    assert "\nbraidmq_topics 0.0\n" in response.text


BAD_AUTHORIZATIONS = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer wrong"},
    {"Authorization": ADMIN_KEY},
    {"Authorization": f"Basic {ADMIN_KEY}"},
    {"Authorization": f"Bearer {ADMIN_KEY} x"},
    {"Cookie": f"key={ADMIN_KEY}"},
]


@pytest.mark.parametrize("path", KEYED_PATHS)
@pytest.mark.parametrize("headers", BAD_AUTHORIZATIONS)
def test_the_api_needs_a_key_in_the_header(
    client: TestClient, path: str, headers: dict[str, str]
) -> None:
    """401, with one line that says how; a key in the query or a cookie does not count."""
    response = client.get(path, headers=headers, params={"key": ADMIN_KEY})

    assert 401 == response.status_code
    assert "Bearer" == response.headers["www-authenticate"]
    is_given = headers.get("Authorization", "").startswith("Bearer ")
    needed = "an API key is required: send the header Authorization: Bearer KEY"
    assert {
        "error": "authentication failed: unknown API key" if is_given else needed
    } == response.json()


def test_the_scheme_of_the_header_is_not_case_sensitive(client: TestClient) -> None:
    """As in HTTP."""
    headers = {"Authorization": f"bearer  {ADMIN_KEY}"}

    assert 200 == client.get("/api/overview", headers=headers).status_code


def test_other_paths_and_methods_are_refused_in_json(client: TestClient) -> None:
    """Errors have one form, whichever layer reports them."""
    missing, posted = client.get("/api/nope"), client.post("/healthz")

    assert (404, {"error": "Not Found"}) == (missing.status_code, missing.json())
    assert (405, {"error": "Method Not Allowed"}) == (posted.status_code, posted.json())


def test_an_internal_error_shows_no_details(broken: TestClient) -> None:
    """500 without the exception's text, which may quote anything."""
    response = broken.get("/api/overview", headers=ADMIN)

    assert (500, {"error": "internal error"}) == (response.status_code, response.json())


SECURITY_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}


def test_an_internal_error_is_logged_without_the_request(broken: TestClient) -> None:
    """Path and type only; keys may be in the query, and anything in the exception."""
    with capture_logs() as logs:
        broken.get("/api/overview?key=a-key", headers=ADMIN)

    expected = {"event": "http_request_failed", "log_level": "error"}
    expected |= {"path": "/api/overview", "error": "RuntimeError"}
    assert [expected] == logs


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/api/overview", "/nope"])
@pytest.mark.parametrize("host", ["localhost", "evil.example.com"])
def test_every_answer_carries_the_security_headers(
    client: TestClient, path: str, host: str
) -> None:
    """Refusals included."""
    headers = client.get(path, headers={"Host": host}).headers

    assert SECURITY_HEADERS == {name: headers.get(name) for name in SECURITY_HEADERS}


def test_an_internal_error_carries_the_security_headers(broken: TestClient) -> None:
    """Starlette answers it outside its own middleware."""
    answer = broken.get("/api/overview", headers=ADMIN)

    assert "nosniff" == answer.headers["x-content-type-options"]


def test_a_trailing_slash_is_not_redirected(client: TestClient) -> None:
    """It belongs to another name, and a redirect would pass the key on."""
    assert 404 == client.get("/api/topics/", headers=ADMIN).status_code


@pytest.mark.asyncio
async def test_a_trailing_slash_is_not_redirected_under_other_servers_either(
    world: World,
) -> None:
    """Even under servers that do not pass on the raw path."""
    statuses: list[int] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {
        "type": "http",
        "method": "GET",
        "scheme": "http",
        "path": "/api/topics/",
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
    }
    await build_app(world.status, loopback=True)(scope, receive, send)

    assert [404] == statuses


def test_no_answer_repeats_a_key(client: TestClient) -> None:
    """Wherever the key stood in the request."""
    key = "a-wrong-key"
    for path in ("/metrics", "/api/overview", f"/{key}", f"/api/topics?limit={key}"):
        response = client.get(path, headers=bearer(key))

        assert key not in response.text
        assert key not in str(response.headers)


HOSTILE = "x\x1b]0;owned\x07\x9b2J\x7f\r\u202egnp.exe\u2028y"


@pytest.mark.parametrize(
    "error",
    [RefusedError(HOSTILE), UnavailableError(HOSTILE), HTTPException(400, HOSTILE)],
    ids=lambda error: type(error).__name__,
)
def test_an_error_holds_no_control_character(error: Exception) -> None:
    """It may repeat a name; operators look at it with `curl`. The value is the same."""

    def fail() -> BrokerFacts:
        raise error

    world = World()
    world.status.overview = fail  # type: ignore[method-assign]  # any endpoint will do
    response = world.client().get("/api/overview", headers=ADMIN)

    assert response.text.isprintable()
    assert {"error": HOSTILE} == response.json()
    assert "application/json" == response.headers["content-type"]


def test_the_names_of_cursors_hold_none_either() -> None:
    """Nor does the answer to their removal."""
    world = World()
    world.engine.broker.cursors.create(HOSTILE, "ops", 1)
    world.settle()
    client = world.client()
    listed = client.get("/api/cursors", headers=ADMIN)
    removed = client.delete(f"/api/cursors/{quote(HOSTILE)}", headers=ADMIN)

    assert (True, True) == (listed.text.isprintable(), removed.text.isprintable())
    assert [HOSTILE] == [cursor["name"] for cursor in listed.json()["cursors"]]
    assert {"name": HOSTILE} == removed.json()
