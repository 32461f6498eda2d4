"""Cursors over HTTP: who sees which, and what is said of each."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.app import build_app
from braidmq.server.cursors import CursorState
from tests.unit.admin.sources import ADMIN_KEY, ORDERS_KEY, FakeSource, bearer

NIGHTLY = CursorState(name="nightly", principal="ops", initial=1, position=40, lag=60)
ORDERS = CursorState(name="orders", principal="orders", initial=7, position=100, lag=0)
AS_JSON = {"name": "orders", "principal": "orders", "initial": 7, "position": 100, "lag": 0}


@pytest.fixture
def source() -> FakeSource:
    source = FakeSource()
    source.cursors.rows = [NIGHTLY, ORDERS]
    return source


def listed(source: FakeSource, key: str) -> list[dict[str, object]]:
    client = TestClient(build_app(source, loopback=True), base_url="http://127.0.0.1:9100")
    answer = client.get("/api/cursors", headers=bearer(key))
    assert 200 == answer.status_code
    cursors: list[dict[str, object]] = answer.json()["cursors"]
    return cursors


def test_an_administrator_sees_every_cursor(source: FakeSource) -> None:
    """Whoever looks after the disk must see who holds the log back."""
    assert ["nightly", "orders"] == [cursor["name"] for cursor in listed(source, ADMIN_KEY)]


def test_a_cursor_is_removed_by_its_owner_or_an_administrator(source: FakeSource) -> None:
    """Nobody else; one that is not there is 404."""
    client = TestClient(build_app(source, loopback=True), base_url="http://127.0.0.1:9100")
    asked = [(ORDERS_KEY, "nightly"), (ADMIN_KEY, "nightly"), (ORDERS_KEY, "orders")]
    asked.append((ADMIN_KEY, "orders"))
    answers = [
        client.delete(f"/api/cursors/{name}", headers=bearer(key)) for key, name in asked
    ]

    assert [403, 200, 200, 404] == [answer.status_code for answer in answers]
    assert ({"name": "nightly"}, []) == (answers[1].json(), source.cursors.rows)


def test_others_see_their_own_with_place_and_lag(source: FakeSource) -> None:
    """A name may say something about who has it."""
    assert [AS_JSON] == listed(source, ORDERS_KEY)
