"""Health pages."""

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from braidmq.admin.health import Readiness, health_endpoints
from braidmq.admin.http.endpoints import routes_of


class Source:
    def __init__(self, readiness: Readiness) -> None:
        self._readiness = readiness

    def readiness(self) -> Readiness:
        return self._readiness


def client(readiness: Readiness) -> TestClient:
    return TestClient(Starlette(routes=routes_of(health_endpoints(Source(readiness)))))


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
def test_a_living_broker_says_so_even_when_it_is_not_ready(path: str) -> None:
    """Whoever restarts on this must not restart a broker that is recovering."""
    response = client(Readiness(ready=False, reason="recovering")).get(path)

    assert (200, {"status": "ok"}) == (response.status_code, response.json())


def test_a_ready_broker_answers_200() -> None:
    """It may be sent work."""
    response = client(Readiness(ready=True)).get("/readyz")

    assert (200, {"status": "ready"}) == (response.status_code, response.json())


@pytest.mark.parametrize(("reason", "said"), [("recovering", "recovering"), ("", "not ready")])
def test_a_broker_that_is_not_ready_says_why(reason: str, said: str) -> None:
    """503 and one line."""
    response = client(Readiness(ready=False, reason=reason)).get("/readyz")

    assert (503, {"error": said}) == (response.status_code, response.json())
