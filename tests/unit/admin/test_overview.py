"""The overview: the source's facts, who asks, and what runs compiled."""

from starlette.testclient import TestClient

from braidmq.admin.http.app import build_app
from tests.unit.admin.sources import ADMIN_KEY, ORDERS_KEY, FakeSource, bearer


def overview(key: str) -> dict[str, object]:
    client = TestClient(build_app(FakeSource(), loopback=True), base_url="http://127.0.0.1:1")
    answer = client.get("/api/overview", headers=bearer(key))
    found: dict[str, object] = answer.json()
    return found


def test_the_overview_says_what_runs_compiled() -> None:
    """Beside what the source says: every hot module is in one of the two lists."""
    build = overview(ORDERS_KEY)["build"]
    assert isinstance(build, dict)

    assert build["compiled"] == (not build["interpreted_modules"])
    assert (
        "braidmq.broker.authorize" in build["compiled_modules"] + build["interpreted_modules"]
    )


def test_the_overview_says_who_asks() -> None:
    """The page shows what its key may do."""
    shown = [(o["principal"], o["admin"]) for o in (overview(ADMIN_KEY), overview(ORDERS_KEY))]

    assert [("ops", True), ("orders", False)] == shown


def test_the_facts_are_the_sources() -> None:
    """Under their own names, nulls included."""
    found = overview(ADMIN_KEY)

    assert ("1.2.3", True, "always") == (found["version"], found["dev"], found["fsync"])
    assert {"blip": "127.0.0.1:5555", "vibe": None} == found["listeners"]
