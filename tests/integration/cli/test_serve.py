"""`braidmq serve`: a broker from ready to SIGTERM."""

import http.client
import json
from pathlib import Path

import pytest

from tests.integration.cli.brokers import running


@pytest.mark.slow
def test_a_broker_runs_from_ready_to_sigterm(tmp_path: Path) -> None:
    """The ready file has the addresses, HTTP answers there, and the broker exits with 0."""
    with running(tmp_path) as broker:
        assert broker.addresses["vibe"] is None
        assert str(broker.process.pid) == str(broker.addresses["pid"])
        connection = http.client.HTTPConnection(str(broker.addresses["http"]), timeout=10)
        connection.request("GET", "/readyz")
        assert 200 == connection.getresponse().status
        connection.close()
        code, log = broker.stop()

    assert 0 == code
    assert not broker.ready_file.exists()
    assert all("event" in json.loads(line) for line in log.splitlines())
    assert "dev-key" not in log
