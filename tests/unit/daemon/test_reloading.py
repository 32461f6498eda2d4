"""Reloading: one at a time, all or nothing. What it does: tests/integration/test_reload.py."""

import asyncio
import time
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.broker import running_broker

pytestmark = pytest.mark.asyncio


def key(name: str, digit: str) -> dict[str, object]:
    return {"name": name, "hash": "sha256:" + 64 * digit}


async def test_a_broker_that_is_still_starting_does_not_reload(tmp_path: Path) -> None:
    """Its caller may try again."""
    daemon = Daemon(Config(data_dir=tmp_path, dev=True))
    with pytest.raises(UnavailableError, match="still starting"):
        await daemon.reload()


async def test_a_configuration_that_does_not_load_changes_nothing() -> None:
    """The error names the key."""

    def load() -> Config:
        raise ConfigError("blip.port", "must be a whole number")

    async with running_broker() as broker:
        broker.daemon._reloading._load = load  # type: ignore[union-attr] # noqa: SLF001 - a file
        with pytest.raises(ConfigError, match=r"blip\.port"):
            await broker.reload()


async def test_reloads_take_turns() -> None:
    """The last configuration is the one in force, however many ask at once."""
    loading: list[int] = []
    most = 0

    def load() -> Config:
        nonlocal most
        loading.append(1)
        most = max(most, len(loading))
        time.sleep(0.02)  # for another reload to begin, if it may
        loading.pop()
        return read()

    async with running_broker(config={"auth": {"keys": [key("a", "a")]}}) as broker:
        reloading = broker.daemon._reloading  # noqa: SLF001 - where the file is read
        assert reloading is not None
        read, reloading._load = reloading._load, load  # noqa: SLF001 - a slower file
        settings = [{"auth": {"keys": [key(name, name)]}} for name in "bcd"]
        found = await asyncio.gather(*(broker.reload(dict(one)) for one in settings))

        assert 1 == most
        in_force = {"a"}
        for one in found:
            assert in_force >= set(one.keys.revoked)
            in_force = in_force - set(one.keys.revoked) | set(one.keys.added)
        assert {"d"} == in_force
