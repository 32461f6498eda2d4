"""What is measured of the dashboard is what the page and its users ask for."""

import http.client
import json
import re
from pathlib import Path
from typing import Final

import pytest

from bench import blip, dashboard, first_page
from bench.dashboard import ALL_KEY, PAGES, PATHS, SOME_KEY, WATCHED

LISTS: Final = Path(dashboard.__file__).parents[1] / "src/braidmq/admin/static/lists.js"


@pytest.mark.slow
def test_topics_are_asked_for_by_keys_that_see_all_and_that_see_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns are compared with every name; whoever looks has the topics open."""
    asked: list[tuple[str, str]] = []
    get = dashboard.get

    def noted(
        connection: http.client.HTTPConnection, path: str, key: str
    ) -> http.client.HTTPResponse:
        asked.append((path, key))
        return get(connection, path, key)

    monkeypatch.setattr(dashboard, "get", noted)
    monkeypatch.setattr(first_page, "rows", lambda _: iter(()))  # a browser asks by itself
    page, _ = dashboard.rows(tmp_path / "run", messages=blip.FENCE_MESSAGES, rounds=1)

    assert "a page of /api/topics, of 10,000" == page.name
    assert [PAGES] * 2 * len(PATHS) == [
        asked.count((path, key)) for path in PATHS for key in (ALL_KEY, SOME_KEY)
    ]
    assert {"/api/events", *WATCHED} == {path for path, _ in asked} - set(PATHS)


def test_the_lists_are_loaded_as_the_page_loads_them() -> None:
    """As many rows, and as often."""
    page = LISTS.read_text()
    rows = re.search(r"PAGE_ROWS = ([\d_]+);", page)
    refresh_ms = re.search(r"REFRESH_MS = ([\d_]+);", page)

    assert rows is not None
    assert refresh_ms is not None
    assert f"/api/topics?limit={int(rows[1])}" in WATCHED
    assert int(refresh_ms[1]) == dashboard.WATCH_EVERY_S * 1000


@pytest.mark.slow
def test_the_key_that_sees_some_sees_a_fifth(tmp_path: Path) -> None:
    """One that saw nothing, or all, would be measured for nothing."""
    with (
        dashboard.start(tmp_path / "run") as broker,
        blip.open_connection(broker) as connection,
    ):
        blip.publish_each(connection, [f"topic-{number}" for number in range(1_000)])
        web = dashboard.connect(broker)
        totals = [
            json.loads(dashboard.get(web, "/api/topics", key).read())["total"]
            for key in (ALL_KEY, SOME_KEY)
        ]
        web.close()

    assert [1_000, 200] == totals
