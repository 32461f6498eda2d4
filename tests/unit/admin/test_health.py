"""Health: alive as long as it answers, ready when it accepts work."""

import pytest
from starlette.testclient import TestClient

from braidmq.base.errors import LogPoisonedError
from tests.unit.admin.world import World


def readiness(client: TestClient) -> tuple[int, dict[str, str]]:
    answer = client.get("/readyz")
    return answer.status_code, answer.json()


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_a_living_broker_is_ok_even_when_it_is_not_ready(path: str) -> None:
    """A supervisor that restarts on this must not restart a broker that is recovering."""
    response = World(recovered=False).client().get(path)

    assert (200, {"status": "ok"}) == (response.status_code, response.json())


def test_a_recovered_broker_is_ready(client: TestClient) -> None:
    """A load balancer may send it work."""
    assert (200, {"status": "ready"}) == readiness(client)


def test_before_recovery_a_broker_is_not_ready() -> None:
    """503 with the reason; HTTP already answers."""
    client = World(recovered=False).client()

    assert (503, {"error": "recovering the log"}) == readiness(client)


def test_a_poisoned_log_is_not_ready(client: TestClient, world: World) -> None:
    """A load balancer sends work elsewhere."""
    world.engine.log_failed(LogPoisonedError("write", "Input/output error"))

    assert (503, {"error": "the log is poisoned"}) == readiness(client)


def test_a_draining_broker_is_not_ready(client: TestClient, world: World) -> None:
    """The drain is visible at once."""
    world.engine.drain()

    assert (503, {"error": "shutting down"}) == readiness(client)
