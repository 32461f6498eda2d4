"""Reading the log for HTTP: on a thread, and failures in HTTP's words."""

import asyncio
import threading

import pytest

from braidmq.admin.queries.log_reading import read_log
from braidmq.base.errors import DamagedLogError, LogFullError
from braidmq.server.config.config import Config
from braidmq.server.engine.recovery import recover
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import running_broker
from braidmq.testing.disk import FakeDisk
from braidmq.wal.wal import Wal
from tests.unit.admin.queries.queue_broker import engine_of

pytestmark = pytest.mark.asyncio


def wal() -> Wal:
    return recover(FakeDisk(), Config(dev=True), now_us=1, clock=lambda: 0.0).wal


async def test_the_event_loop_does_something_else_meanwhile() -> None:
    """The reading is done by another thread."""
    async with running_broker() as broker:
        thread = await read_log(engine_of(broker), wal(), lambda _: threading.current_thread())

    assert threading.current_thread() is not thread


async def test_a_log_that_cannot_be_read_is_told() -> None:
    """With the reason; one that is not there yet, too."""

    def read(_wal: Wal) -> None:
        raise LogFullError("no room for an index")

    async with running_broker() as broker:
        engine = engine_of(broker)
        with pytest.raises(UnavailableError, match="no room for an index"):
            await read_log(engine, wal(), read)
        with pytest.raises(UnavailableError, match="recovering the log"):
            await read_log(engine, None, read)
        with pytest.raises(UnavailableError, match="recovering the log"):
            await read_log(None, wal(), read)
        await asyncio.sleep(0)

        assert None is engine.failed


async def test_damage_is_told_and_then_ends_the_broker() -> None:
    """Whoever has met it is answered; then it is as if the scrub had found it."""
    damage = DamagedLogError("wal/1.wal", offset=7, first_id=1, last_id=2, reason="torn")

    def read(_wal: Wal) -> None:
        raise damage

    async with running_broker() as broker:
        engine = engine_of(broker)
        with pytest.raises(UnavailableError, match="torn"):
            await read_log(engine, wal(), read)
        assert not broker.daemon.ended.is_set()
        await asyncio.wait_for(broker.daemon.ended.wait(), 10)

        assert damage is engine.failed
        assert damage is broker.daemon.failure
