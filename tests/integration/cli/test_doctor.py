"""`braidmq doctor`, beside a broker that runs."""

from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import addresses_of, running


@pytest.mark.slow
def test_a_broker_that_runs_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its addresses are no warnings; when it is gone, they are free."""
    with running(tmp_path) as broker:
        addresses_of(broker, monkeypatch)
        main(["doctor", "--data-dir", str(tmp_path)])
        beside = capsys.readouterr().out
        broker.stop()
    main(["doctor", "--data-dir", str(tmp_path)])
    alone = capsys.readouterr().out

    places = f"blip {broker.addresses['blip']}, http {broker.addresses['http']}"
    assert f"ok       broker: running on {places}\n" in beside
    assert " address: " not in beside
    assert "broker: " not in alone
    assert f"ok       blip address: {broker.addresses['blip']} is free\n" in alone
