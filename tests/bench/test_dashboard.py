"""The dashboard benchmark makes the requests that the page and its users make."""

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
def test_topics_are_requested_with_a_full_and_a_limited_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patterns are matched against every name; viewers have the list of topics open."""
    requested: list[tuple[str, str]] = []
    get = dashboard.get

    def recorded_get(
        connection: http.client.HTTPConnection, path: str, key: str
    ) -> http.client.HTTPResponse:
        requested.append((path, key))
        return get(connection, path, key)

    monkeypatch.setattr(dashboard, "get", recorded_get)
    monkeypatch.setattr(
        first_page, "rows", lambda _: iter(())
    )  # a browser makes its own requests
    page, _ = dashboard.rows(tmp_path / "run", messages=blip.FENCE_MESSAGES, rounds=1)

    assert "a page of /api/topics, of 10,000" == page.name
    assert [PAGES] * 2 * len(PATHS) == [
        requested.count((path, key)) for path in PATHS for key in (ALL_KEY, SOME_KEY)
    ]
    assert {"/api/events", *WATCHED} == {path for path, _ in requested} - set(PATHS)


def test_the_lists_are_loaded_as_the_page_loads_them() -> None:
    """The same number of rows, at the same interval."""
    page = LISTS.read_text()
    rows = re.search(r"PAGE_ROWS = ([\d_]+);", page)
    refresh_ms = re.search(r"REFRESH_MS = ([\d_]+);", page)

    assert rows is not None
    assert refresh_ms is not None
    assert f"/api/topics?limit={int(rows[1])}" in WATCHED
    assert int(refresh_ms[1]) == dashboard.WATCH_EVERY_S * 1000


@pytest.mark.slow
def test_the_limited_key_sees_a_fifth(tmp_path: Path) -> None:
    """Measuring one that saw nothing or everything would be pointless."""
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
