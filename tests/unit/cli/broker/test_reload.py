"""`braidmq reload`, against the real HTTP API on a real socket."""

import pytest

from braidmq.admin.reloads import Changes, Reloaded
from braidmq.base.errors import ConfigError
from braidmq.cli.main import main
from tests.unit.admin.world import ORDERS_KEY, World
from tests.unit.cli.serving import url

NOTHING = Changes([], [], [])


@pytest.mark.parametrize(
    ("restart", "end"),
    [([], ""), (["wal.fsync", "a\x1b.b"], "; these need a restart: wal.fsync, a\\x1b.b")],
)
def test_it_says_what_was_closed_and_what_needs_a_restart(
    world: World, port: int, capsys: pytest.CaptureFixture[str], restart: list[str], end: str
) -> None:
    """In one line."""

    async def run() -> Reloaded:
        return Reloaded(NOTHING, NOTHING, [], [], 2, restart)

    world.status.reloads.run = run
    assert 0 == main(["reload", "--url", url(port)])

    assert f"reloaded; 2 connections of revoked keys and users closed{end}\n" == (
        capsys.readouterr().out
    )


def test_a_failure_is_an_error(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the file's name, and exit code 1."""

    async def run() -> Reloaded:
        raise ConfigError("users.json", "does not hold users")

    world.status.reloads.run = run
    codes = [main(["reload", "--url", url(port, key)]) for key in ("admin-key", ORDERS_KEY)]

    assert [1, 1] == codes
    assert "nothing was changed: users.json" in capsys.readouterr().err
