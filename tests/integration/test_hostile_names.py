"""Names that a peer chooses never become paths: no file is made, read or moved by them."""

import asyncio
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

import braidmq
from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from braidmq.testing.broker import RunningBroker
from tests.integration.blip.peer import broker_at

HOSTILE: Final = (
    "../../planted",
    "wal/00000000000000000001.wal",
    "..",
    "planted\x00.wal",
    "C:\\planted",
    "~/planted",
    "stages/planted",
)


def files(directory: Path) -> set[str]:
    found = directory.parent.rglob("*")
    return {path.relative_to(directory.parent).as_posix() for path in found if path.is_file()}


def post(broker: RunningBroker, path: str, body: bytes) -> int:
    host, port = broker.address("http")
    request = urllib.request.Request(
        f"http://{host}:{port}{path}",
        body,
        {"Authorization": "Bearer dev-key", "Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own broker
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def use(broker: RunningBroker, name: str) -> None:
    """Use *name* wherever a peer may choose one; a refusal is fine."""
    for strand in ("blip", "vibe", "qumbed"):
        async with braidmq.connect(broker.url(strand)) as client:
            with suppress(BraidError):
                await client.publish(name, b"1")
    await asyncio.to_thread(use_elsewhere, broker, name)


def use_elsewhere(broker: RunningBroker, name: str) -> None:
    encoded = quote(name, safe="").replace("..", "%FF..")
    assert post(broker, f"/api/topics/{encoded}/messages", b'{"payload": 1}') in {201, 400, 404}
    endpoint = Endpoint(broker.endpoint, "dev-key")
    with suppress(BraidError):
        endpoint.open_cursor(name)
    with suppress(BraidError):
        endpoint.commit(SinkKey(query=name, sink=name, batch=0), [name])


@pytest.mark.slow
@pytest.mark.asyncio
async def test_hostile_names_touch_no_file(tmp_path: Path) -> None:
    """After all of them the directory holds what it holds after a plain name."""
    directory = tmp_path / "in" / "data"
    async with broker_at(directory, flight={}, vibe={}, qumbed={}, http={}) as broker:
        await use(broker, "plain")
        before = files(directory)
        for name in (*HOSTILE, str(directory.parent / "planted")):
            await use(broker, name)

        assert before == files(directory)
