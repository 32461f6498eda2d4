"""`braidmq serve`: from the command line to a broker, and back."""

import http.client
import json
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.unit.cli.brokers import running

REFUSALS = {
    "": "auth.keys: no API keys are configured; 'braidmq keys new --name NAME' makes one, "
    "--dev does without",
    "--dev --blip 0.0.0.0:0": "blip.host: --dev listens on loopback only, not on 0.0.0.0",
    "--dev --blip 5555": "--blip: must be HOST:PORT or off",
    "--dev --flight [::]:1": "flight.host: --dev listens on loopback only, not on ::",
    "--dev --config nope.toml": "config: cannot read nope.toml: No such file or directory",
}


@pytest.mark.parametrize(("arguments", "line"), REFUSALS.items())
def test_a_configuration_that_cannot_run_is_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    """One line names the key, and nothing has been started or written."""
    data_dir = tmp_path / "data"

    assert 2 == main(["serve", "--data-dir", str(data_dir), *arguments.split()])
    assert ("", f"error: {line}\n") == capsys.readouterr()
    assert not data_dir.exists()


@pytest.mark.slow
def test_a_broker_runs_from_ready_to_sigterm(tmp_path: Path) -> None:
    """The ready file has the addresses, HTTP answers there, and the end is exit 0."""
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
