"""What tests of the HTTP side share: a broker that is made up, and a client on this machine."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.app import build_app
from tests.unit.admin.sources import FakeSource


@pytest.fixture
def source() -> FakeSource:
    return FakeSource()


@pytest.fixture
def client(source: FakeSource) -> TestClient:
    app = build_app(source, loopback=True)
    return TestClient(app, base_url="http://127.0.0.1:9100", raise_server_exceptions=False)
