"""A broker, and its API on a real socket, for tests of commands that call it."""

from collections.abc import Iterator

import pytest

from tests.unit.admin.world import World
from tests.unit.cli.serving import serving


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def port(world: World) -> Iterator[int]:
    with serving(world) as port:
        yield port
