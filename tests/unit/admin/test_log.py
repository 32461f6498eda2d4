"""The log over HTTP: anybody with a key looks, administrators have it checked."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.app import build_app
from tests.unit.admin.sources import ADMIN_KEY, ORDERS_KEY, FakeSource

ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}
ORDERS = {"Authorization": f"Bearer {ORDERS_KEY}"}


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def client(source: FakeSource) -> TestClient:
    app = build_app(source, loopback=True)
    return TestClient(app, base_url="http://127.0.0.1:9100", raise_server_exceptions=False)


def test_any_key_sees_the_log(client: TestClient) -> None:
    """The names of the fields are the API."""
    answer = client.get("/api/log", headers=ORDERS)

    assert {
        "segments": [],
        "segments_total": 0,
        "bytes": 0,
        "committed_id": 0,
        "fsync": "always",
        "full": False,
        "poisoned": False,
        "retention_hours": 1.0,
        "retention_bytes": 0,
        "quarantine": [],
    } == answer.json()


def test_only_an_administrator_has_it_checked(client: TestClient, source: FakeSource) -> None:
    """It reads the whole disk."""
    answers = [client.post("/api/log/verify", headers=h) for h in (ORDERS, ADMIN)]

    assert [403, 200] == [answer.status_code for answer in answers]
    assert 1 == source.log.verified
