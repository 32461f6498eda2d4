"""Who may come in, over HTTP: for administrators, and never a secret."""

from starlette.testclient import TestClient

from tests.unit.admin.sources import ADMIN, ADMIN_KEY, ORDERS_KEY, FakeSource, bearer


def test_only_an_administrator_sees_who_may_come_in(client: TestClient) -> None:
    """Names and permissions, and nothing that lets anybody in."""
    refused, shown = (
        client.get("/api/keys", headers=bearer(key)) for key in (ORDERS_KEY, ADMIN_KEY)
    )

    assert 403 == refused.status_code
    assert {
        "keys": [
            {"name": "ops", "publish": [], "subscribe": [], "admin": True},
            {"name": "orders", "publish": ["in.*"], "subscribe": ["orders.*"], "admin": False},
        ],
        "users": [{"name": "ada", "created": "1970-01-01T00:00:00Z", "grants": []}],
        "next": "user:ada",
        "total": 9,
    } == shown.json()
    assert not any(key in shown.text for key in (ADMIN_KEY, ORDERS_KEY, "hash", "sha256"))


def test_keys_and_users_are_asked_for_like_other_lists(
    client: TestClient, source: FakeSource
) -> None:
    """By the same words, with the same bounds."""
    queries = ("", "?after=user:ada&limit=7&search=b", "?limit=1001")
    answers = [client.get(f"/api/keys{query}", headers=ADMIN) for query in queries]

    assert [200, 200, 400] == [answer.status_code for answer in answers]
    assert [("", 100, ""), ("user:ada", 7, "b")] == source.keyring.asked
