"""`braidmq queue` and `braidmq dlq` against the real daemon, across a restart.

The commands run in this process: each would take half a second to start as another. That they
work as processes is for `tests/docs/test_snippets.py`, which runs those of the manual.
"""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from braidmq.cli.data.dead_letters import LETTERS_AT_ONCE
from braidmq.cli.main import main
from tests.integration.cli.brokers import Broker, running


class Operator:
    """Runs commands against a broker."""

    def __init__(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def use(self, broker: Broker) -> None:
        self._monkeypatch.setenv("BRAIDMQ_URL", broker.http_url())

    def publish(self, topic: str, payload: str, count: int) -> None:
        assert (0, "") == self.runs("publish", topic, payload, "--count", str(count))[::2]

    def runs(self, *command: str, typed: str = "") -> tuple[int, str, str]:
        """Return the exit code, stdout and stderr of a command."""
        self._monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        code = main(command)
        return code, *self._capsys.readouterr()

    def sees(self, *command: str) -> Any:  # noqa: ANN401 - any JSON
        """Return the JSON that a successful command prints."""
        code, out, err = self.runs(*command, "--json")
        assert (0, "") == (code, err)
        return json.loads(out)


@pytest.fixture
def operator(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Operator:
    return Operator(capsys, monkeypatch)


def test_the_effects_of_queue_commands_survive_a_restart(
    operator: Operator, tmp_path: Path
) -> None:
    """An operator declares, overfills, inspects, replays, purges and deletes.

    A delete must be confirmed with the name: another changes nothing.
    """
    with running(tmp_path) as broker:
        operator.use(broker)
        created = operator.sees("queue", "create", "invoices", "--max-queue-size", "2")
        assert ("invoices", 2) == (created["name"], created["maxQueueSize"])
        operator.publish("invoices", "{}", 5)
        (dead_letters,) = operator.sees("dlq", "list")
        assert ("dlq.invoices", 3) == (dead_letters["queue"], dead_letters["messageCount"])
        replayed = operator.sees("dlq", "replay", "dlq.invoices", "--count", "1")
        assert 1 == replayed["replayed"]
        operator.sees("queue", "create", "bills")
        code, _, err = operator.runs("queue", "delete", "bills", typed="bill\n")
        assert (2, True) == (code, "error: not confirmed, nothing was changed" in err)
        assert "bills" == operator.sees("queue", "info", "bills")["name"]
        code, out, _ = operator.runs("queue", "delete", "bills", typed="bills\n")
        assert (0, "deleted queue bills\n") == (code, out)
        assert 0 == broker.stop()[0]
    with running(tmp_path) as broker:
        operator.use(broker)
        code, _, err = operator.runs("queue", "info", "bills")
        assert (1, 1) == (code, len(err.splitlines()))
        assert "answered 404: no such queue; `braidmq queue list` lists" in err
        rows = operator.sees("queue", "list")
        assert {"invoices": 3, "dlq.invoices": 2} == {
            row["name"]: row["messageCount"] for row in rows
        }
        listed = operator.sees("dlq", "list", "dlq.invoices")
        assert [("overflow", "invoices", 2)] * 2 == [
            (letter["reason"], letter["deathQueue"], letter["size"]) for letter in listed
        ]
        assert {"queue": "dlq.invoices", "replayed": 2} == operator.sees(
            "dlq", "replay", "dlq.invoices"
        )
        assert [] == operator.sees("dlq", "list", "dlq.invoices")
        assert 5 == (operator.sees("queue", "purge", "invoices", "--yes"))["purged"]
        assert 0 == (operator.sees("dlq", "purge", "dlq.invoices", "--yes"))["purged"]
        assert 0 == broker.stop()[0]


def test_dead_letters_that_cannot_be_replayed_do_not_block_the_others(
    operator: Operator,
    tmp_path: Path,
) -> None:
    """Unusual payloads are replayed too; one replay takes as many requests as it needs."""
    with running(tmp_path) as broker:
        operator.use(broker)
        operator.sees("queue", "create", "invoices", "--max-queue-size", "1")
        for payload in ('"\\ud800"', '"\\ud800"', "1e999"):
            operator.publish("invoices", payload, 1)
        operator.publish("dlq.invoices", "this has no original queue", 3)
        operator.publish("invoices", "{}", 2 * LETTERS_AT_ONCE)
        listed = operator.sees("dlq", "list", "dlq.invoices", "--count", "2")
        assert ["\ud800", float("inf")] == [letter["payload"] for letter in listed]
        replayed = operator.sees("dlq", "replay", "dlq.invoices")
        assert 2 + 2 * LETTERS_AT_ONCE == replayed["replayed"]
        listed = operator.sees("dlq", "list", "dlq.invoices")
        assert ["this has no original queue"] * 3 == [letter["payload"] for letter in listed]
        assert 3 == (operator.sees("dlq", "purge", "dlq.invoices", "--yes"))["purged"]
        assert 0 == broker.stop()[0]
