"""Reloading over HTTP: who may ask for it, and how it is answered."""

from starlette.testclient import TestClient

from braidmq.admin.reloads import Changes, Reloaded
from braidmq.base.errors import ConfigError
from tests.unit.admin.world import ADMIN, ORDERS, World

RELOAD = "/api/reload"


def test_only_an_administrator_reloads(client: TestClient, world: World) -> None:
    """Before the start is done, not even one."""
    calls: list[str] = []

    async def run() -> Reloaded:
        calls.append("reload")
        return Reloaded(
            Changes([], [], ["k"]), Changes([], [], []), ["blip"], [], 2, ["wal.fsync"]
        )

    early = client.post(RELOAD, headers=ADMIN)
    world.status.reloads.run = run
    answers = [client.post(RELOAD, headers=headers) for headers in ({}, ORDERS, ADMIN)]

    assert (503, "the broker is still starting") == (early.status_code, early.json()["error"])
    assert [401, 403, 200] == [answer.status_code for answer in answers]
    assert ["reload"] == calls
    assert {
        "keys": {"added": [], "changed": [], "revoked": ["k"]},
        "users": {"added": [], "changed": [], "revoked": []},
        "certificates": ["blip"],
        "schemas": [],
        "connections_closed": 2,
        "restart": ["wal.fsync"],
    } == answers[-1].json()


def test_a_bad_file_is_named(client: TestClient, world: World) -> None:
    """409: the request was fine, the files were not."""

    async def run() -> Reloaded:
        raise ConfigError("users.json", "does not hold users")

    world.status.reloads.run = run
    answer = client.post(RELOAD, headers=ADMIN)

    assert (409, {"error": "nothing was changed: users.json: does not hold users"}) == (
        answer.status_code,
        answer.json(),
    )
