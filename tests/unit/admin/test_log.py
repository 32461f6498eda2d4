"""The log over HTTP: anybody with a key looks, administrators have it checked."""

from starlette.testclient import TestClient

from tests.unit.admin.sources import ADMIN, ORDERS, FakeSource


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
