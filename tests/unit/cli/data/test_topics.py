"""`braidmq topic`, against the real HTTP API on a real socket."""

import json

import pytest

from braidmq.cli.main import main
from tests.unit.admin.world import World
from tests.unit.cli.serving import url


def test_a_topic_is_deleted_by_any_name(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --yes, no confirmation is needed; --force reaches the broker."""
    names = ["a b/ü", "plain"]
    for name in names:
        world.publish(name, b"x")
    assert 0 == main(["topic", "delete", names[0], "--yes", "--url", url(port)])
    forced = ["topic", "delete", names[1], "-y", "--force", "--json", "--url", url(port)]
    assert 0 == main(forced)

    said, shown = capsys.readouterr().out.splitlines()
    assert ("deleted topic a b/ü", {"name": "plain"}) == (said, json.loads(shown))
    assert [None, None] == [world.engine.broker.topics.find(name) for name in names]


def test_a_queue_is_not_deleted_as_a_topic(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what to do; an unknown topic is told where to look."""
    world.declare("q")

    assert 1 == main(["topic", "delete", "q", "--yes", "--url", url(port)])
    assert 1 == main(["topic", "delete", "nope", "--yes", "--url", url(port)])
    error = capsys.readouterr().err
    assert "the topic is a queue: delete the queue first" in error
    assert "`braidmq topics` lists the existing ones" in error
