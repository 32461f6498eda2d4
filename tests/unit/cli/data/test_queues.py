"""`braidmq queue`, against the real HTTP API on a real socket."""

import io
import json
from dataclasses import replace

import pytest

from braidmq.cli.main import main
from tests.unit.admin.world import ORDERS_KEY, World
from tests.unit.cli.serving import url


def named(world: World) -> list[str]:
    return list(world.engine.broker.queues.by_name)


def test_a_queue_is_created_with_all_its_options(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that are not given are not sent."""
    first = "--delivery-mode PriorityBased --max-queue-size 9 --overflow-strategy DropOldest"
    more = "--message-ttl 1500 --max-retry-attempts 5 --no-dead-letters --in-memory"
    other = "--message-ttl 00:00:02 --dead-letters --dead-letter-queue dead --durable"
    for name, options in (("a", f"{first} {more}"), ("b", other), ("c", "")):
        assert 0 == main(["queue", "create", name, *options.split(), "--url", url(port)])

    full, other_name, plain = (world.status.queues.facts(name) for name in "abc")
    assert (3, 9, 1500, False, 0, 5, False) == (
        full.mode,
        full.max_size,
        full.ttl_ms,
        full.dead_letters,
        full.overflow,
        full.max_attempts,
        full.durable,
    )
    assert (2000, True, "dead", True) == (
        other_name.ttl_ms,
        other_name.dead_letters,
        other_name.dead_letter_name,
        other_name.durable,
    )
    world.declare("d")
    assert plain == replace(world.status.queues.facts("d"), name="c", dead_letter_name="dlq.c")
    assert "queue a exists\nqueue b exists\nqueue c exists\n" == capsys.readouterr().out


def test_a_bad_value_is_exit_2_and_named(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """As if the command itself had refused it."""
    assert 2 == main(["queue", "create", "a", "--delivery-mode", "Best", "--url", url(port)])
    assert "deliveryMode: Best is not one of RoundRobin, " in capsys.readouterr().err


def test_a_conflict_is_exit_1(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and the queue stays as it was."""
    assert 0 == main(["queue", "create", "a", "--url", url(port)])
    assert 1 == main(["queue", "create", "a", "--max-queue-size", "1", "--url", url(port)])
    assert (
        f"error: 127.0.0.1:{port} answered 409: the queue exists with other options\n"
        == capsys.readouterr().err
    )


def test_queues_are_listed(world: World, port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One line each in a pipe; everything with --json."""
    world.declare("b", "a")
    world.publish("b", *5 * [b"x"])
    assert 0 == main(["queue", "list", "--url", url(port)])
    columns = "name\tdeliveryMode\tmessageCount\tinFlight\tsubscriberCount"
    lines = [columns, "a\tRoundRobin\t0\t0\t0", "b\tRoundRobin\t5\t0\t0"]
    assert lines == capsys.readouterr().out.splitlines()
    assert 0 == main(["queue", "list", "--json", "--url", url(port)])

    rows = json.loads(capsys.readouterr().out)
    assert [("a", "dlq.a"), ("b", "dlq.b")] == [
        (row["name"], row["deadLetterQueueName"]) for row in rows
    ]


def test_a_queue_is_shown_with_everything(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One field per line, or one object."""
    world.declare("a")
    world.publish("a", *5 * [b"x"])
    assert 0 == main(["queue", "info", "a", "--url", url(port)])
    lines = capsys.readouterr().out.splitlines()
    assert {"messageCount\t5", "durable\tyes", "maxQueueSize\t"} <= set(lines)
    assert 0 == main(["queue", "info", "a", "--json", "--url", url(port)])

    shown = json.loads(capsys.readouterr().out)
    assert ("a", 5, None) == (shown["name"], shown["messageCount"], shown["maxQueueSize"])


@pytest.mark.parametrize("name", ["a", "a/b", "%2F", "\u00fc ?#&", "a/purge"])
def test_a_queue_is_purged_and_deleted_by_any_name(
    world: World, port: int, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """With --yes, no confirmation is needed."""
    world.declare(name)
    world.publish(name, *5 * [b"x"])
    assert 0 == main(["queue", "purge", name, "--yes", "--url", url(port)])
    assert 0 == main(["queue", "delete", name, "-y", "--json", "--url", url(port)])

    purged, deleted = capsys.readouterr().out.splitlines()
    assert f"purged 5 messages from {name}" == purged
    assert {"name": name} == json.loads(deleted)
    assert [] == named(world)


@pytest.mark.parametrize("command", ["purge", "delete"])
@pytest.mark.parametrize(("typed", "code"), [("a\n", 0), ("b\n", 2), ("", 2)])
def test_the_name_must_be_typed_to_confirm(
    *,
    world: World,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    typed: str,
    code: int,
) -> None:
    """Anything else leaves the queue as it is."""
    world.declare("a")
    world.publish("a", *5 * [b"x"])
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))

    assert code == main(["queue", command, "a", "--url", url(port)])
    assert (code != 0) == ("a" in named(world) and world.status.queues.facts("a").waiting == 5)


@pytest.mark.parametrize("command", [["info"], ["delete", "--yes"], ["purge", "--yes"]])
def test_a_missing_queue_is_reported_with_a_hint(
    port: int, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Exit 1, with the command that lists the existing ones."""
    assert 1 == main(["queue", *command, "x", "--url", url(port)])
    assert (
        f"error: 127.0.0.1:{port} answered 404: no such queue; "
        "`braidmq queue list` lists the existing ones\n" == capsys.readouterr().err
    )


def test_a_missing_permission_is_reported(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is changed."""
    world.declare("orders.a")

    assert 1 == main(["queue", "delete", "orders.a", "--yes", "--url", url(port, ORDERS_KEY)])
    assert (
        "answered 403: this API key lacks the permission delete_queue; "
        in capsys.readouterr().err
    )
    assert ["orders.a"] == named(world)
