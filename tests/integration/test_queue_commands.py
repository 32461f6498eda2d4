"""`braidmq queue` and `braidmq dlq` as processes, against the real daemon, across a restart."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from braidmq.cli.data.dead_letters import LETTERS_AT_ONCE
from tests.integration.blip.peer import PATIENCE_S
from tests.integration.served import Served, served

pytestmark = pytest.mark.asyncio

BRAIDMQ: Final = (sys.executable, "-c", "from braidmq.cli.main import run; run()")


class Operator:
    """Runs commands against a broker."""

    def __init__(self, broker: Served) -> None:
        facts = broker.facts()
        self._http = f"http://dev-key@{facts['http']}"
        self._blip = f"blip://dev-key@{facts['blip']}"

    async def publish(self, topic: str, payload: str, count: int) -> None:
        command = ("publish", topic, payload, "--count", str(count))
        assert (0, "") == (await self._run(self._blip, *command))[::2]

    async def runs(self, *command: str, typed: str = "") -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr of a command."""
        return await self._run(self._http, *command, typed=typed)

    async def sees(self, *command: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON that a successful command prints."""
        code, out, err = await self.runs(*command, "--json")
        assert (0, "") == (code, err)
        return json.loads(out)

    async def _run(self, url: str, *command: str, typed: str = "") -> tuple[int, str, str]:
        process = await asyncio.create_subprocess_exec(
            *BRAIDMQ,
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "BRAIDMQ_URL": url},
        )
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate(typed.encode())
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


async def test_the_effects_of_queue_commands_survive_a_restart(tmp_path: Path) -> None:
    """An operator declares, overfills, inspects, replays and purges across a restart."""
    async with served(tmp_path, "--vibe", "off") as broker:
        await broker.ready()
        operator = Operator(broker)
        created = await operator.sees("queue", "create", "invoices", "--max-queue-size", "2")
        assert ("invoices", 2) == (created["name"], created["maxQueueSize"])
        await operator.publish("invoices", "{}", 5)
        (dead_letters,) = await operator.sees("dlq", "list")
        assert ("dlq.invoices", 3) == (dead_letters["queue"], dead_letters["messageCount"])
        replayed = await operator.sees("dlq", "replay", "dlq.invoices", "--count", "1")
        assert 1 == replayed["replayed"]
        assert 0 == await broker.end()
    async with served(tmp_path, "--vibe", "off") as broker:
        await broker.ready()
        operator = Operator(broker)
        rows = await operator.sees("queue", "list")
        assert {"invoices": 3, "dlq.invoices": 2} == {
            row["name"]: row["messageCount"] for row in rows
        }
        listed = await operator.sees("dlq", "list", "dlq.invoices")
        assert [("overflow", "invoices", 2)] * 2 == [
            (letter["reason"], letter["deathQueue"], letter["size"]) for letter in listed
        ]
        assert {"queue": "dlq.invoices", "replayed": 2} == await operator.sees(
            "dlq", "replay", "dlq.invoices"
        )
        assert [] == await operator.sees("dlq", "list", "dlq.invoices")
        assert 5 == (await operator.sees("queue", "purge", "invoices", "--yes"))["purged"]
        assert 0 == (await operator.sees("dlq", "purge", "dlq.invoices", "--yes"))["purged"]
        assert 0 == await broker.end()


async def test_dead_letters_that_cannot_be_replayed_do_not_block_the_others(
    tmp_path: Path,
) -> None:
    """Unusual payloads are replayed too; one replay takes as many requests as it needs."""
    async with served(tmp_path, "--vibe", "off") as broker:
        await broker.ready()
        operator = Operator(broker)
        await operator.sees("queue", "create", "invoices", "--max-queue-size", "1")
        for payload in ('"\\ud800"', '"\\ud800"', "1e999"):
            await operator.publish("invoices", payload, 1)
        await operator.publish("dlq.invoices", "this has no original queue", 3)
        await operator.publish("invoices", "{}", 2 * LETTERS_AT_ONCE)
        listed = await operator.sees("dlq", "list", "dlq.invoices", "--count", "2")
        assert ["\ud800", float("inf")] == [letter["payload"] for letter in listed]
        replayed = await operator.sees("dlq", "replay", "dlq.invoices")
        assert 2 + 2 * LETTERS_AT_ONCE == replayed["replayed"]
        listed = await operator.sees("dlq", "list", "dlq.invoices")
        assert ["this has no original queue"] * 3 == [letter["payload"] for letter in listed]
        assert 3 == (await operator.sees("dlq", "purge", "dlq.invoices", "--yes"))["purged"]
        assert 0 == await broker.end()


async def test_a_delete_must_be_confirmed_with_the_name(tmp_path: Path) -> None:
    """A wrong name changes nothing; the right one deletes the queue for good."""
    async with served(tmp_path, "--vibe", "off") as broker:
        await broker.ready()
        operator = Operator(broker)
        await operator.sees("queue", "create", "invoices")
        code, _, err = await operator.runs("queue", "delete", "invoices", typed="invoice\n")
        assert (2, True) == (code, "error: not confirmed, nothing was changed" in err)
        assert "invoices" == (await operator.sees("queue", "info", "invoices"))["name"]
        code, out, _ = await operator.runs("queue", "delete", "invoices", typed="invoices\n")
        assert (0, "deleted queue invoices\n") == (code, out)
        assert 0 == await broker.end()
    async with served(tmp_path, "--vibe", "off") as broker:
        await broker.ready()
        code, _, err = await Operator(broker).runs("queue", "info", "invoices")
        assert (1, 1) == (code, len(err.splitlines()))
        assert "answered 404: no such queue; `braidmq queue list` lists" in err
        assert 0 == await broker.end()
