"""`braidmq topics` lists all pages; `braidmq top` orders its rows."""

import json

import pytest

from braidmq.cli.data.top import _rates
from braidmq.cli.main import main
from tests.unit.admin.world import World
from tests.unit.cli.serving import url


def test_the_busiest_topics_come_first() -> None:
    """By messages per second; the first time, when no rate is known, by their total."""
    now = {"a": 10, "b": 300, "new": 5}

    assert ["b", "a", "new"] == [name for name, _, _ in _rates({}, now, 1.0)]
    assert [("a", 4.0, 10), ("new", 0.5, 5), ("b", 0.0, 300)] == _rates(
        {"a": 2, "b": 300}, now, 2.0
    )


def test_all_pages_are_listed(
    world: World, port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """However many topics there are, and whatever they are called."""
    names = [f"t&{number:03}" for number in range(450)] + ["ü/ ?#"]
    for name in names:
        world.publish(name, b"x")

    assert 0 == main(["topics", "--url", url(port), "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert sorted(names) == [row["name"] for row in rows]
    assert {"name": "t&000", "messages": 1, "last_offset": 1, "subscriptions": 0} == rows[0]


def test_the_url_may_come_from_the_environment(
    world: World,
    port: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where other users do not see it, and the shell's history does not keep it."""
    world.publish("a", b"x")
    monkeypatch.setenv("BRAIDMQ_URL", url(port))

    assert 0 == main(["topics"])
    assert "name\tmessages\tlast_offset\tsubscriptions\na\t1\t1\t0\n" == capsys.readouterr().out
