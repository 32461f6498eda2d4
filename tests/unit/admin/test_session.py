"""The session: what the dashboard learns with a key and without."""

import pytest
from starlette.testclient import TestClient

from braidmq import __version__
from tests.unit.admin.world import ADMIN_KEY, ORDERS_KEY, World, bearer


@pytest.fixture
def client() -> TestClient:
    return World(dev=True).client()


def test_without_a_key_it_shows_the_version(client: TestClient) -> None:
    """The dashboard asks before it has a key; nothing else is shown."""
    assert {"version": __version__, "dev": True} == client.get("/api/session").json()


@pytest.mark.parametrize(
    ("key", "name", "admin"), [(ADMIN_KEY, "ops", True), (ORDERS_KEY, "orders", False)]
)
def test_with_a_key_it_shows_the_principal(
    client: TestClient, key: str, name: str, admin: bool
) -> None:
    """The sign-in page can say which key was accepted."""
    answer = client.get("/api/session", headers=bearer(key))

    assert {
        "version": __version__,
        "dev": True,
        "principal": name,
        "admin": admin,
    } == answer.json()


def test_an_unknown_key_is_401(client: TestClient) -> None:
    """A wrong key is not the same as none."""
    assert 401 == client.get("/api/session", headers=bearer("wrong")).status_code
