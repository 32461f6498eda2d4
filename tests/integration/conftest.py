"""Fixtures that the tests of all strands share."""

import threading
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from braidmq.testing.broker import RunningBroker
from braidmq.wal.disk import DiskFile
from tests.integration.blip.peer import broker_at


@pytest_asyncio.fixture
async def broker() -> AsyncIterator[RunningBroker]:
    async with broker_at() as running:
        yield running


@pytest.fixture
def may_sync(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The log's syncs block while this event is cleared."""
    event = threading.Event()
    event.set()
    really = DiskFile.fdatasync

    def fdatasync(file: DiskFile) -> None:
        assert event.wait(15)
        really(file)

    monkeypatch.setattr(DiskFile, "fdatasync", fdatasync)
    yield event
    event.set()
