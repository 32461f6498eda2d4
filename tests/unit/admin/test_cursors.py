"""Cursors over HTTP: who sees which, and who may remove one."""

import pytest
from starlette.testclient import TestClient

from tests.unit.admin.world import ADMIN_KEY, ORDERS_KEY, World, bearer

ORDERS = {"name": "orders", "principal": "orders", "initial": 2, "position": 2, "lag": 2}


@pytest.fixture
def world() -> World:
    world = World()
    world.publish("t", b"1")
    for name, principal, start in (("orders", "orders", 2), ("nightly", "ops", 1)):
        world.engine.broker.cursors.create(name, principal, start)
    world.settle()
    return world


def listed(client: TestClient, key: str) -> list[dict[str, object]]:
    answer = client.get("/api/cursors", headers=bearer(key))
    assert 200 == answer.status_code
    cursors: list[dict[str, object]] = answer.json()["cursors"]
    return cursors


def test_an_administrator_sees_every_cursor(client: TestClient) -> None:
    """An operator must see which reader holds the log back."""
    assert ["nightly", "orders"] == [cursor["name"] for cursor in listed(client, ADMIN_KEY)]


def test_other_keys_see_their_own_with_position_and_lag(client: TestClient) -> None:
    """The names of the fields are the API."""
    assert [ORDERS] == listed(client, ORDERS_KEY)


def test_a_cursor_is_removed_by_its_owner_or_an_administrator(client: TestClient) -> None:
    """Other keys may not; an unknown cursor is 404."""
    removals = [(ORDERS_KEY, "nightly"), (ADMIN_KEY, "nightly"), (ORDERS_KEY, "orders")]
    removals.append((ADMIN_KEY, "orders"))
    answers = [
        client.delete(f"/api/cursors/{name}", headers=bearer(key)) for key, name in removals
    ]

    assert [403, 200, 200, 404] == [answer.status_code for answer in answers]
    assert ({"name": "nightly"}, []) == (answers[1].json(), listed(client, ADMIN_KEY))
