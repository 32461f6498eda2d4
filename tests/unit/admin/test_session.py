"""Who is asking, with a key and without."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.app import build_app
from tests.unit.admin.sources import ADMIN_KEY, ORDERS_KEY, FakeSource, bearer


@pytest.fixture
def client() -> TestClient:
    return TestClient(build_app(FakeSource(), loopback=True), base_url="http://127.0.0.1:9100")


def test_without_a_key_it_says_what_runs(client: TestClient) -> None:
    """The page asks before it has one; nothing else is told."""
    assert {"version": "1.2.3", "dev": True} == client.get("/api/session").json()


@pytest.mark.parametrize(
    ("key", "name", "admin"), [(ADMIN_KEY, "ops", True), (ORDERS_KEY, "orders", False)]
)
def test_with_a_key_it_says_whose(client: TestClient, key: str, name: str, admin: bool) -> None:
    """So that signing in can say who one is."""
    answer = client.get("/api/session", headers=bearer(key))

    assert {"version": "1.2.3", "dev": True, "principal": name, "admin": admin} == answer.json()


def test_a_key_that_is_nobodys_is_401(client: TestClient) -> None:
    """A wrong key is not the same as none."""
    answer = client.get("/api/session", headers={"Authorization": "Bearer wrong"})

    assert 401 == answer.status_code
