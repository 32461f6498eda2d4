"""Connections and subscriptions over HTTP: who sees which, and who may close one."""

import pytest
from starlette.testclient import TestClient

from tests.unit.admin.sources import ADMIN, ORDERS, FakeSource


@pytest.mark.parametrize("path", ["/api/connections", "/api/subscriptions"])
def test_others_than_administrators_see_their_own(
    client: TestClient, source: FakeSource, path: str
) -> None:
    """Addresses and names are not for everybody."""
    answers = [client.get(path, headers=headers) for headers in (ADMIN, ORDERS)]

    assert [200, 200] == [answer.status_code for answer in answers]
    assert [(None, 100), ("orders", 100)] == source.connections.asked
    assert {path.rpartition("/")[2]: [], "next": None, "total": 0} == answers[0].json()


@pytest.mark.parametrize("path", ["/api/connections", "/api/subscriptions"])
def test_a_page_is_as_long_as_it_was_asked_for(
    client: TestClient, source: FakeSource, path: str
) -> None:
    """And no longer than any page is."""
    answers = [client.get(f"{path}?limit={n}", headers=ADMIN) for n in (7, 1001)]

    assert [200, 400] == [answer.status_code for answer in answers]
    assert [(None, 7)] == source.connections.asked


def test_an_administrator_closes_a_connection(client: TestClient, source: FakeSource) -> None:
    """Nobody else does; one that is not there is 404."""
    answers = [
        client.delete("/api/connections/7", headers=ORDERS),
        client.delete("/api/connections/7", headers=ADMIN),
        client.delete("/api/connections/8", headers=ADMIN),
        client.delete("/api/connections/x", headers=ADMIN),
    ]

    assert [403, 200, 404, 404] == [answer.status_code for answer in answers]
    assert {"id": 7} == answers[1].json()
    assert [7] == source.connections.closed
