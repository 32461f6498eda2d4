"""The broker as a process: what it refuses at startup, and what signals do."""

import asyncio
import gc
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from braidmq.base.errors import ConfigError, LogScarceError
from braidmq.daemon import daemon, process
from braidmq.server.config.config import Config
from braidmq.server.engine.recovery import Recovered, recover


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
    hung_up = asyncio.Event()
    stopping = process._signals(hung_up, asyncio.Event())  # noqa: SLF001 - its caller is a whole process
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(20):
            await hung_up.wait()
        assert not stopping.is_set()
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
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)

    assert [0] == ended


@pytest.mark.asyncio
async def test_a_terminal_that_is_gone_stops_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its SIGHUP is not a request to reload: nothing would be left to stop the broker with."""
    answers = iter([True, False])
    monkeypatch.setattr(os, "isatty", lambda _: next(answers))
    loop = asyncio.get_running_loop()
    hung_up = asyncio.Event()
    stopping = process._signals(hung_up, asyncio.Event())  # noqa: SLF001 - its caller is a whole process
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(20):
            await stopping.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)

    assert not hung_up.is_set()


SCARCE = LogScarceError("reading wal/1", "Too many open files")


@pytest.mark.parametrize("strikes", [True, False], ids=["a signal", "descriptors again"])
def test_a_start_without_descriptors_waits_for_them_or_for_a_signal(
    strikes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes on by itself when there are some, and ends with 0 for whoever does not wait."""
    calls: list[int] = []

    def scarce(*arguments: Any, **options: Any) -> Recovered:  # noqa: ANN401 - as it is called
        calls.append(1)
        if len(calls) == 1:
            if strikes:
                os.kill(os.getpid(), signal.SIGTERM)
            raise SCARCE
        assert not strikes, "it tried again instead of ending"
        found = recover(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)  # waits until the start is done
        return found

    monkeypatch.setattr(daemon, "recover", scarce)
    monkeypatch.setattr(daemon, "RECOVER_AGAIN_S", 20.0 if strikes else 0.01)
    off = {strand: {"enabled": False} for strand in ("vibe", "qumbed", "http", "flight")}
    config = {"dev": True, "data_dir": tmp_path, "blip": {"port": 0}, **off}

    settings = Config.model_validate(config)
    make = partial(daemon.Daemon, settings)
    serving = process._serve(make, settings, None, None)  # noqa: SLF001 - `main` would change this process for good
    monkeypatch.setattr(gc, "freeze", lambda: None)

    assert 0 == asyncio.run(serving)
    assert (1 if strikes else 2) == len(calls)
