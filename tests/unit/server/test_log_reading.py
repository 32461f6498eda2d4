"""Reading the log for HTTP: on a thread, and failures in HTTP's words."""

import threading

import pytest

from braidmq.admin.refusals import UnavailableError
from braidmq.base.errors import LogFullError
from braidmq.server.config import Config
from braidmq.server.log_reading import read_log
from braidmq.server.recovery import recover
from braidmq.testing.disk import FakeDisk
from braidmq.wal.wal import Wal

pytestmark = pytest.mark.asyncio


def wal() -> Wal:
    return recover(FakeDisk(), Config(dev=True), now_us=1, clock=lambda: 0.0).wal


async def test_the_event_loop_does_something_else_meanwhile() -> None:
    """The reading is done by another thread."""
    thread = await read_log(wal(), lambda _: threading.current_thread())

    assert threading.current_thread() is not thread


async def test_a_log_that_cannot_be_read_is_told() -> None:
    """With the reason; one that is not there yet, too."""

    def read(_wal: Wal) -> None:
        raise LogFullError("no room for an index")

    with pytest.raises(UnavailableError, match="no room for an index"):
        await read_log(wal(), read)
    with pytest.raises(UnavailableError, match="recovering the log"):
        await read_log(None, read)
