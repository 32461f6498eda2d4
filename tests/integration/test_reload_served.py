"""SIGHUP, `POST /api/reload` and `braidmq reload` on the real daemon."""

import asyncio
import http.client
import json
import signal
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.blip.peer import PATIENCE_S, until
from tests.integration.served import Served, key_section, served

pytestmark = pytest.mark.asyncio

BROKEN = "[[auth.keys]\nname ="


async def reloaded(broker: Served, key: str) -> tuple[int, dict[str, object]]:
    """Ask for a reload over HTTP."""

    def ask() -> tuple[int, dict[str, object]]:
        host, _, port = broker.facts()["http"].rpartition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        try:
            headers = {"Authorization": f"Bearer {key}"}
            connection.request("POST", "/api/reload", headers=headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def test_keys_change_without_a_restart(tmp_path: Path) -> None:
    """By signal, over HTTP and from the command line; a bad file changes nothing."""
    admin = key_section("admin", "admin") + "admin = true\n"
    one, two = key_section("one", "one"), key_section("two", "two")
    file = tmp_path / "braidmq.toml"
    async with served(tmp_path, config=admin + one, dev=False) as broker:
        await broker.ready()
        async with broker.peer("one") as peer:
            file.write_text(BROKEN)
            broker.tell(signal.SIGHUP)
            await until(lambda: "reload failed: nothing was changed" in broker.stderr)
            status, answer = await reloaded(broker, "admin")
            assert (409, True) == (status, str(answer["error"]).startswith("nothing was chang"))
            await peer.publish("t", b"1")

            file.write_text(admin + one + two)
            broker.tell(signal.SIGHUP)
            await until(lambda: '"event": "reloaded"' in broker.stderr)
            async with broker.peer("two") as other:
                await other.publish("t", b"2")
                assert 403 == (await reloaded(broker, "two"))[0]
            await peer.publish("t", b"3")

            file.write_text(admin + two)
            url = f"http://admin@{broker.facts()['http']}"
            assert 0 == await asyncio.to_thread(main, ["reload", "--url", url])
            await peer.expect_close()
        assert 401 == (await reloaded(broker, "one"))[0]
        assert 0 == await broker.end()
        assert "Traceback" not in broker.stderr


async def test_a_ready_file_that_cannot_be_written_ends_no_reloading(tmp_path: Path) -> None:
    """Neither by signal nor over HTTP: what was read was applied, and the log has a warning."""
    admin, one = key_section("admin", "admin") + "admin = true\n", key_section("one", "one")
    file = tmp_path / "braidmq.toml"
    async with served(tmp_path, config=admin + one, dev=False) as broker:
        await broker.ready()
        (tmp_path / "ready.json.tmp").mkdir()  # it is in the way of the new file
        (tmp_path / "data" / "run.json.tmp").mkdir()
        async with broker.peer("one") as peer:
            broker.tell(signal.SIGHUP)
            await until(lambda: "cannot write ready.json" in broker.stderr)
            assert 200 == (await reloaded(broker, "admin"))[0]
            await peer.publish("t", b"1")
            file.write_text(admin)
            broker.tell(signal.SIGHUP)
            await peer.expect_close()
        assert 401 == (await reloaded(broker, "one"))[0]
        assert 0 == await broker.end()
        assert "cannot write run.json" in broker.stderr
        assert "Traceback" not in broker.stderr
