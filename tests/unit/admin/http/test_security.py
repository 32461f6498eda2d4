"""Host and Origin of requests: names of this machine, and pages of our own."""

import pytest
from starlette.testclient import TestClient

from tests.unit.admin.world import ADMIN, World

PURGE = "/api/queues/q/purge"


@pytest.fixture
def world() -> World:
    world = World()
    world.declare("q")
    return world


OWN_HOSTS = [
    "127.0.0.1",
    "127.0.0.1:9100",
    "localhost:9100",
    "LOCALHOST",
    "[::1]:9100",
    "[::1]",
]
OTHER_HOSTS = ["evil.example.com", "127.0.0.1.evil.com", "localhost.evil.com:9100", "10.0.0.1"]
OTHER_HOSTS += ["evil.com:127.0.0.1", "", "[::1", "[::2]:9100", "localhost:x"]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_on_loopback_the_machines_own_names_are_accepted(client: TestClient, host: str) -> None:
    """With and without a port, which a tunnel may have changed."""
    assert 200 == client.get("/healthz", headers={"Host": host}).status_code


@pytest.mark.parametrize("host", OTHER_HOSTS)
@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/api/overview"])
def test_on_loopback_other_names_are_refused(client: TestClient, host: str, path: str) -> None:
    """A web page that points its own name at 127.0.0.1 reads nothing, not even with a key."""
    response = client.get(path, headers={"Host": host, **ADMIN})

    assert (421, {"error": "unknown Host"}) == (response.status_code, response.json())


OWN_ORIGINS = ["http://127.0.0.1:9100", "https://127.0.0.1:9100", "HTTP://127.0.0.1:9100"]
FOREIGN_ORIGINS = [
    "http://evil.example.com",
    "http://127.0.0.1:9101",
    "http://127.0.0.1",
    "http://127.0.0.1:9100.evil.com",
    "null",
    "",
    "file://",
]


@pytest.mark.parametrize("origin", OWN_ORIGINS)
def test_our_own_page_may_change_things(client: TestClient, origin: str) -> None:
    """A proxy that terminates TLS changes the scheme, and nothing else."""
    assert 200 == client.post(PURGE, headers={**ADMIN, "Origin": origin}).status_code


@pytest.mark.parametrize("origin", FOREIGN_ORIGINS)
@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_foreign_page_changes_nothing(
    client: TestClient, world: World, method: str, origin: str
) -> None:
    """Even with a valid key; it is refused before anything else is checked."""
    path = PURGE if method == "POST" else "/api/queues/q"
    answer = client.request(method, path, headers={**ADMIN, "Origin": origin})

    assert (403, {"error": "foreign Origin"}) == (answer.status_code, answer.json())
    assert ["q"] == list(world.engine.broker.queues.by_name)


def test_one_good_origin_does_not_excuse_another(client: TestClient) -> None:
    """A browser sends exactly one."""
    origins = [("Origin", OWN_ORIGINS[0]), ("Origin", FOREIGN_ORIGINS[0])]

    assert 403 == client.post(PURGE, headers=[*ADMIN.items(), *origins]).status_code


def test_a_program_sends_no_origin(client: TestClient) -> None:
    """Its key is enough."""
    assert 200 == client.post(PURGE, headers=ADMIN).status_code
