"""Reloading: one at a time, all or nothing. What it does: tests/integration/test_reload.py."""

import asyncio
import json
import time
from collections.abc import Callable, Collection
from pathlib import Path

import pytest

from braidmq.base.errors import ConfigError
from braidmq.daemon import process
from braidmq.daemon.daemon import Daemon
from braidmq.server.access.users import ReadUsers
from braidmq.server.config.config import Config
from braidmq.server.engine.requests import UnavailableError
from braidmq.testing.broker import RunningBroker, running_broker
from tests.integration.blip.peer import until

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


def before_loading(broker: RunningBroker, call: Callable[[], None]) -> None:
    """Have *call* made, on a thread, when the configuration is read the next time."""
    reloading = broker.daemon._reloading  # noqa: SLF001 - where the file is read
    assert reloading is not None
    read = reloading._load  # noqa: SLF001 - as above

    def load() -> Config:
        reloading._load = read  # noqa: SLF001 - once only
        call()
        return read()

    reloading._load = load  # noqa: SLF001 - as above


def user(name: str) -> dict[str, object]:
    encoded = "$argon2id$v=19$m=65536,t=3,p=4$c29tZXNhbHQ$" + "A" * 43
    return {"name": name, "hash": encoded, "created": 1, "grants": {}}


def write_users(broker: RunningBroker, *names: str) -> None:
    table = {"version": 1, "users": [user(name) for name in names]}
    (broker.daemon._config.data_dir / "users.json").write_text(json.dumps(table))  # noqa: SLF001 - of a test


async def test_a_reload_that_cannot_be_applied_changes_neither_keys_nor_users() -> None:
    """The broker may shut down while the files are read."""
    async with running_broker(config={"auth": {"keys": [key("a", "a")]}}) as broker:
        write_users(broker, "ada")
        await broker.reload()
        daemon, status = broker.daemon, broker.daemon.status
        engine = status.engine
        assert engine is not None
        assert engine.users is not None
        ada, a = engine.users.find("ada"), daemon._keys.named("a")  # noqa: SLF001 - the ring
        assert ada is not None
        assert a is not None
        write_users(broker, "bob")
        before_loading(broker, lambda: setattr(status, "engine", None))
        with pytest.raises(UnavailableError):
            await broker.reload({"auth": {"keys": []}})
        status.engine = engine

        assert (False, False) == (ada.gone, a.gone)
        assert engine.users.find("ada") is ada
        reloaded = await broker.reload()
        assert (["ada"], ["a"]) == (reloaded.users.revoked, reloaded.keys.revoked)
        assert (True, True) == (ada.gone, a.gone)


async def test_a_reload_whose_caller_goes_away_leaves_nothing_behind() -> None:
    """At any moment: it is applied or not, nothing is raised, and the next one works."""
    raised: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, what: raised.append(what))
    async with running_broker(config={"auth": {"keys": [key("a", "a")]}}) as broker:
        for turns in range(12):
            under_way = asyncio.ensure_future(broker.reload())
            for _ in range(turns):
                await asyncio.sleep(0)
            under_way.cancel()
            await asyncio.wait([under_way])
        asked = asyncio.Event()
        users = broker.daemon._users  # noqa: SLF001 - to know when they are read
        assert users is not None
        read_again = users.read_again

        def noted(
            reserved: Collection[str], done: Callable[[ReadUsers | ConfigError], None]
        ) -> None:
            asked.set()
            read_again(reserved, done)

        users.read_again = noted  # type: ignore[method-assign] # to be told of the moment
        under_way = asyncio.ensure_future(broker.reload())
        await asked.wait()
        under_way.cancel()
        await asyncio.wait([under_way])
        reloaded = await broker.reload({"auth": {"keys": [key("b", "b")]}})

        assert ["b"] == reloaded.keys.added
    assert [] == raised


async def test_a_failed_reload_by_signal_is_logged_and_the_next_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whatever failed: a task that has ended would ignore every later signal."""
    keys: dict[str, object] = {"auth": {"keys": [key("a", "a")]}}
    async with running_broker(config=keys, logs=True) as broker:
        daemon, hung_up = broker.daemon, asyncio.Event()
        reloads: list[int] = []

        def reloaded() -> None:
            reloads.append(1)
            raise RuntimeError("no luck")

        daemon.reloaded = reloaded
        task = asyncio.ensure_future(process._reload_again(daemon, hung_up))  # noqa: SLF001 - its caller is a whole process
        for _ in range(2):
            hung_up.set()
            await until(lambda: reloads)
            reloads.clear()
        assert not task.done()
        task.cancel()

    assert 2 == capsys.readouterr().out.count("no luck")


async def test_a_run_file_that_cannot_be_written_is_a_warning() -> None:
    """What was reloaded holds all the same."""
    async with running_broker(config={"auth": {"keys": [key("a", "a")]}}) as broker:
        (broker.daemon._config.data_dir / "run.json.tmp").mkdir()  # noqa: SLF001 - of a test
        reloaded = await broker.reload({"auth": {"keys": []}})

        assert ["a"] == reloaded.keys.revoked
