"""What a connection's host bounds."""

import pytest

from braidmq.broker.admission import UNCOMMITTED_BYTES_MAX
from braidmq.broker.broker import Broker
from braidmq.broker.settings import Settings
from braidmq.server.engine.host import Host


@pytest.mark.parametrize("memory_bytes", [1, UNCOMMITTED_BYTES_MAX, 10 * UNCOMMITTED_BYTES_MAX])
def test_what_is_uncommitted_keeps_the_memory_budget(memory_bytes: int) -> None:
    """A budget below the usual bound is the bound."""
    host = Host(Broker(Settings(memory_bytes=memory_bytes)))

    assert min(memory_bytes, UNCOMMITTED_BYTES_MAX) == host.uncommitted_bytes_max
