"""The broker as a process: what it refuses at startup, and what signals do."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.daemon import process
from braidmq.daemon.daemon import write_atomically
from braidmq.server.config.config import Config


def test_mdns_needs_the_strand_that_it_announces() -> None:
    """The error is one line, before anything is started."""
    config = Config.model_validate({"dev": True, "qumbed": {"enabled": False}})
    with pytest.raises(ConfigError, match="announces the Qumbed strand, which is off"):
        process.main(config, mdns=True)


@pytest.mark.asyncio
async def test_the_first_signal_drains_and_the_second_exits_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator who is tired of waiting for the drain presses Ctrl-C again."""
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    loop = asyncio.get_running_loop()
    stopping = process._signals()  # noqa: SLF001 - its caller is a whole process
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(20):
            await stopping.wait()
        assert [] == ended
        handled = asyncio.Event()

        def end(code: int) -> None:
            ended.append(code)
            handled.set()

        monkeypatch.setattr(os, "_exit", end)
        os.kill(os.getpid(), signal.SIGINT)
        async with asyncio.timeout(20):
            await handled.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    assert [0] == ended


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """A reader that has the old file open still reads all of it."""
    path = tmp_path / "ready.json"
    write_atomically(path, "old")
    with path.open() as reader:
        write_atomically(path, "new")

        assert "old" == reader.read()
    assert "new" == path.read_text()
    assert [path] == list(tmp_path.iterdir())


def test_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    """It is not created: the operator has mistyped its name."""
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "ready.json", "x")
