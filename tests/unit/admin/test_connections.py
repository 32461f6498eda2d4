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
    assert [None, "orders"] == source.connections.asked
    assert {path.rpartition("/")[2]: [], "next": None} == answers[0].json()


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
