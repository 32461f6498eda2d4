"""Damage to the log found while the real process serves: reported, then the broker exits."""

import asyncio
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.served import refused, served

pytestmark = pytest.mark.asyncio


@pytest.mark.parametrize("call", [("GET", "topics/t/messages"), ("POST", "log/verify")])
async def test_damage_found_over_http_is_reported_and_exits_with_65(
    tmp_path: Path, call: tuple[str, str]
) -> None:
    """The answer names the damaged segment; then the broker exits, as it would at start."""
    config = "[wal]\nsegment_bytes = 65536\n"
    async with served(tmp_path, config=config) as broker:
        ready = await broker.ready()
        async with broker.peer() as peer:
            for _ in range(3):
                await peer.publish("t", 66_000 * b"x")
        segment = min((tmp_path / "data" / "wal").glob("*.wal"))
        data = bytearray(segment.read_bytes())
        data[len(data) // 2] ^= 0x01
        segment.write_bytes(data)
        answer = await asyncio.to_thread(_response, str(ready["http"]), *call)

        assert segment.name in answer
        assert 65 == await broker.ended()


async def test_the_oldest_segment_removed_by_hand_is_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Although a snapshot covers it: its messages are not acknowledged."""
    config = "[wal]\nsegment_bytes = 65536\n"
    async with served(tmp_path, config=config) as broker:
        await broker.ready()
        async with broker.peer() as peer:
            await peer.subscribe("t")
            for _ in range(3):
                await peer.publish("t", 66_000 * b"x")
        assert 0 == await broker.end()
    assert list((tmp_path / "data" / "snapshot").glob("*.snap"))
    oldest = min((tmp_path / "data" / "wal").glob("*.wal"))
    oldest.unlink()
    code, line = await refused(tmp_path, config=config)

    assert 65 == code
    assert f"{oldest.name} at offset 0, ids 1 to " in line
    assert 65 == main(["wal", "verify", "--data-dir", str(tmp_path / "data")])
    assert oldest.name in capsys.readouterr().out


def _response(address: str, method: str, path: str) -> str:
    request = urllib.request.Request(
        f"http://{address}/api/{path}",
        method=method,
        headers={"Authorization": "Bearer dev-key"},
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310 - our own broker
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
