"""The broker as a process: what it refuses at startup, and what signals do."""

import asyncio
import os
import signal

import pytest

from braidmq.base.errors import ConfigError
from braidmq.daemon import process
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
    hung_up = asyncio.Event()
    stopping = process._signals(hung_up)  # noqa: SLF001 - its caller is a whole process
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
    stopping = process._signals(hung_up)  # noqa: SLF001 - its caller is a whole process
    try:
        os.kill(os.getpid(), signal.SIGHUP)
        async with asyncio.timeout(20):
            await stopping.wait()
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.remove_signal_handler(number)

    assert not hung_up.is_set()
