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
