"""The Flight endpoint of a daemon on a machine that lacks something for it."""

import sys
import tempfile
from pathlib import Path

import pytest
import structlog

from braidmq.base.errors import ConfigError
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.server.flight import front

UNUSABLE = Path("/proc")  # in which nothing can be made, as on a disk without room


@pytest.mark.asyncio
@pytest.mark.parametrize("configured", [True, False])
async def test_without_pyarrow_there_is_no_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    """If Flight is configured, the broker refuses to start; if not, it starts and logs why."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for name in [name for name in sys.modules if name.startswith("braidmq.server.flight")]:
        monkeypatch.delitem(sys.modules, name)
    given = {name: {"port": 0} for name in ("blip", "vibe", "qumbed", "http")}
    if configured:
        given["flight"] = {"port": 0}
    daemon = Daemon(Config.model_validate({"data_dir": tmp_path, "dev": True, **given}))
    problem = "needs pyarrow: pip install braidmq[columnar], or turn it off"
    with structlog.testing.capture_logs() as logs:
        try:
            if configured:
                with pytest.raises(ConfigError) as caught:
                    await daemon.start()
                assert f"flight: {problem}" == str(caught.value)
            else:
                await daemon.start()
                assert None is daemon.addresses["flight"]
                warnings = [one["event"] for one in logs if one["log_level"] == "warning"]
                assert [f"flight is off: it {problem}"] == warnings
        finally:
            await daemon.stop()


@pytest.mark.asyncio
@pytest.mark.parametrize("configured", [True, False])
async def test_without_a_socket_there_is_no_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, configured: bool
) -> None:
    """If Flight is configured, the broker refuses to start; if not, it starts and logs why."""
    monkeypatch.setattr(tempfile, "tempdir", str(UNUSABLE))
    monkeypatch.setattr(front, "MEMORY_DIR", UNUSABLE)
    data_dir = tmp_path / ("x" * 100)
    given = {name: {"port": 0} for name in ("blip", "vibe", "qumbed", "http")}
    if configured:
        given["flight"] = {"port": 0}
    daemon = Daemon(Config.model_validate({"data_dir": data_dir, "dev": True, **given}))
    with structlog.testing.capture_logs() as logs:
        try:
            if configured:
                with pytest.raises(
                    ConfigError, match="flight: needs a Unix socket, but no dir"
                ):
                    await daemon.start()
            else:
                await daemon.start()
                (line,) = (one["event"] for one in logs if one["log_level"] == "warning")
                assert line.startswith(
                    "flight is off: it needs a Unix socket, but no directory"
                )
        finally:
            await daemon.stop()
