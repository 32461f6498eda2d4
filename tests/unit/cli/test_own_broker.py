"""A command's own broker: how failures of other commands on it are reported."""

import sys
from pathlib import Path

import pytest

from braidmq.cli import own_broker as demo_broker
from braidmq.cli.own_broker import BrokerProcess


@pytest.mark.asyncio
async def test_a_command_that_fails_ends_the_demo_with_its_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Otherwise the user would not know why the dead letter was not sent back."""
    program = "import sys; print('error: no luck', file=sys.stderr); sys.exit(1)"
    monkeypatch.setattr(demo_broker, "PROGRAM", (sys.executable, "-c", program))

    with pytest.raises(demo_broker.DemoError, match=r"^braidmq dlq list: error: no luck$"):
        await BrokerProcess(tmp_path).command("dlq", "list")
