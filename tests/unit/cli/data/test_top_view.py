"""What `top` shows of one sample."""

import json
from io import StringIO

import pytest
from rich.console import Console

from braidmq.admin import events
from braidmq.cli.data.top_view import Point, View, drawn, facts, plain, point_of, size, title

NUMBERS: dict[str, object] = {
    "time": "2026-11-16T12:00:00Z",
    "in": {"blip": 1200.4, "vibe": 0.0, "qumbed": 3.0, "http": 0.0, "spark": 0.0},
    "out": {"blip": 900.0, "vibe": 20.0, "qumbed": 0.0, "http": 0.0, "spark": 0.0},
    "in_bytes": 123_456.0,
    "acks": 910.0,
    "backlog": 4_321,
    "in_flight": 17,
    "dead_letters": 2,
    "fsync_p50_ms": 0.8,
    "fsync_p99_ms": 4.25,
    "commits": 88.0,
    "memory_bytes": 3_145_728,
    "rss_bytes": 73_400_320,
    "connections": {"blip": 3, "vibe": 0},
    "loop_lag_ms": 0.3,
    "log_bytes": 5_368_709_120,
}
OVERVIEW: dict[str, object] = {
    "version": "0.1.0",
    "ready": True,
    "reason": "",
    "uptime_s": 3_725.0,
    "memory_limit_bytes": 268_435_456,
}


def point(**changes: object) -> Point:
    found = point_of("numbers", {**NUMBERS, **changes})
    assert found is not None
    return found


def view(*topics: tuple[str, float | None, int]) -> View:
    return View("127.0.0.1:9100", OVERVIEW, point(), list(topics))


def screen(shown: View, *, height: int = 40) -> str:
    console = Console(file=StringIO(), width=100, height=height, force_terminal=True)
    console.print(drawn(shown, height=height))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_newest_point_of_a_history_is_shown() -> None:
    """So that `--once` need not wait for the next second."""
    older = {**NUMBERS, "backlog": 1}

    assert point() == point_of("history", [older, NUMBERS])


@pytest.mark.parametrize(
    ("name", "data"),
    [("history", []), ("other", NUMBERS), ("numbers", {"in": 7}), ("numbers", [])],
)
def test_events_without_a_point_are_ignored(name: str, data: object) -> None:
    """A newer broker may send more than this version knows."""
    assert point_of(name, data) is None


def test_plain_lines_show_everything() -> None:
    """Rates by strand and in total, and each number that the broker sends."""
    lines = plain(view(("orders", 12.5, 100), ("evil\x1b[2J\ttopic", None, 3))).splitlines()

    assert "BraidMQ 0.1.0 at 127.0.0.1:9100, ready, up 1 h 2 min" == lines[0]
    for line in (
        "blip\t1200\t900",
        "total\t1203\t920",
        "backlog\t4,321 waiting, 17 in flight",
        "dead letters\t2",
        "fsync\t0.80 ms p50, 4.25 ms p99, loop lag 0.3 ms",
        "memory\t3.0 MiB of 256.0 MiB, process 70.0 MiB",
        "log\t5.0 GiB",
        "connections\tblip 3",
        "orders\t12\t100",
        "evil\\x1b[2J\\ttopic\t\t3",
    ):
        assert line in lines, line


@pytest.mark.parametrize("nothing", [0.0, None])
def test_an_idle_broker_has_no_fsync_times(nothing: float | None) -> None:
    """Nothing was measured, which is not the same as zero."""
    idle = point(fsync_p50_ms=nothing, fsync_p99_ms=nothing, loop_lag_ms=None)

    assert ("fsync", "- p50, - p99") in facts(View("h:1", OVERVIEW, idle, []))


def test_a_screen_takes_no_markup_and_no_escapes_from_a_name() -> None:
    """A topic may have any name."""
    written = screen(view(("[red]a", 1.0, 2), ("\x1b[2Jb", 1.0, 2), (500 * "c", 1.0, 2)))

    assert "[red]a" in written
    assert "\x1b[2J" not in written
    assert "…" in written


def test_a_small_screen_has_fewer_topics() -> None:
    """And at least one."""
    topics = [(f"topic-{n}", 1.0, n) for n in range(50)]

    assert 1 == screen(view(*topics), height=5).count("topic-")
    assert 12 == screen(view(*topics), height=30).count("topic-")


def test_a_broker_that_is_not_ready_says_why() -> None:
    """In the first line."""
    shown = View(
        "h:1", {"version": "1", "ready": False, "reason": "shutting down"}, point(), []
    )

    assert "BraidMQ 1 at h:1, not ready: shutting down" == title(shown)


def test_json_has_the_names_of_the_http_api() -> None:
    """One sample is one object."""
    shown = json.loads(json.dumps(view(("orders", None, 3)).as_json()))

    assert NUMBERS == shown["numbers"]
    assert [{"name": "orders", "rate": None, "messages": 3}] == shown["topics"]


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1023, "1,023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**42, "4.0 TiB")],
)
def test_sizes_are_for_people(count: int, shown: str) -> None:
    """In binary units, as in the settings."""
    assert shown == size(count)


def test_a_point_has_the_fields_that_the_api_sends() -> None:
    """It is declared twice: the API's would load the web server, and has no defaults."""
    assert events.Point.__struct_encode_fields__ == Point.__struct_encode_fields__
