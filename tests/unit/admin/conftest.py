"""What the tests of the API share: a broker, and a client on this machine."""

import pytest
from starlette.testclient import TestClient

from tests.unit.admin.world import World


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def client(world: World) -> TestClient:
    return world.client()
