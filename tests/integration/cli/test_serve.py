"""`braidmq serve`: a broker from ready to SIGTERM."""

import http.client
import json
import os
import re
from pathlib import Path

import pytest

from tests.integration.cli.brokers import running
from tests.integration.cli.terminals import on_terminal


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


LISTENERS = [f"--{name}=127.0.0.1:0" for name in ("blip", "vibe", "qumbed", "http")]


@pytest.mark.slow
def test_in_development_a_terminal_is_greeted(tmp_path: Path) -> None:
    """With a page and a key; without a warning about what need not be there."""
    (tmp_path / "pyarrow.py").write_text("raise ModuleNotFoundError(name='pyarrow')")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    words = ["serve", "--dev", *LISTENERS, "--data-dir", str(tmp_path / "data")]
    code, written = on_terminal(
        words, until=lambda output: "Ctrl-C" in output, environment={"PYTHONPATH": path}
    )

    assert 0 == code
    assert "BraidMQ is ready." in written
    assert re.search(r"Page:   http://127\.0\.0\.1:\d+/\r\n", written)
    assert f"Log:    {tmp_path}/data" in written
    assert "Flight: off (make demo, or pip install 'braidmq[columnar]')" in written
    assert re.search(r"publish orders .* --url blip://dev-key@127\.0\.0\.1:\d+", written)
    assert "warning" not in written


@pytest.mark.slow
def test_in_a_pipe_there_is_no_greeting(tmp_path: Path) -> None:
    """Each line is JSON, for programs, with the addresses in the one that says `ready`."""
    with running(tmp_path) as broker:
        _, log = broker.stop()
    events = [json.loads(line) for line in log.splitlines()]

    (ready,) = [event for event in events if event["event"] == "ready"]
    assert broker.addresses["http"] == ready["http"]
    assert "BraidMQ is ready" not in log
