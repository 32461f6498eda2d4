"""A broker, and its API on a real socket, for tests of commands that call it."""

from collections.abc import Iterator

import pytest

from tests.unit.admin.world import KEYS, World
from tests.unit.cli.serving import serving


@pytest.fixture
def world() -> World:
    # An administrator that may publish as well: a replay does.
    ops = {**KEYS[0], "publish": ["*"]}
    return World(auth={"keys": [ops, *KEYS[1:]]})


@pytest.fixture
def port(world: World) -> Iterator[int]:
    with serving(world) as port:
        yield port


@pytest.fixture(autouse=True)
def _no_contexts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the contexts of whoever runs the tests out of them."""
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    for name in ("BRAIDMQ_URL", "BRAIDMQ_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
