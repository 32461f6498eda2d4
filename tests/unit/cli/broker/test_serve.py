"""`braidmq serve`: configurations that cannot run."""

from pathlib import Path

import pytest

from braidmq.cli.main import main

REFUSALS = {
    "": "auth.keys: no API keys are configured; 'braidmq keys new NAME' makes one, "
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
    """One line names the setting, and nothing is started or written."""
    data_dir = tmp_path / "data"

    assert 2 == main(["serve", "--data-dir", str(data_dir), *arguments.split()])
    assert ("", f"error: {line}\n") == capsys.readouterr()
    assert not data_dir.exists()
