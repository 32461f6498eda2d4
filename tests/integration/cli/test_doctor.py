"""`braidmq doctor` while a broker runs."""

from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import addresses_of, running


@pytest.mark.slow
def test_a_running_broker_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its addresses cause no warnings; once it has stopped, they are free."""
    with running(tmp_path) as broker:
        addresses_of(broker, monkeypatch)
        main(["doctor", "--data-dir", str(tmp_path)])
        while_running = capsys.readouterr().out
        broker.stop()
    main(["doctor", "--data-dir", str(tmp_path)])
    after = capsys.readouterr().out

    addresses = f"blip {broker.addresses['blip']}, http {broker.addresses['http']}"
    assert f"ok       broker: running on {addresses}\n" in while_running
    assert " address: " not in while_running
    assert "broker: " not in after
    assert f"ok       blip address: {broker.addresses['blip']} is free\n" in after
