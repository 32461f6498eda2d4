"""The overview while the broker is busy: its numbers and each of its charts."""

import itertools
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.stage import Stage, Tab
from tests.browser.traffic import consuming, publishing

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.slow


def test_numbers_and_charts_follow_publishes(stage: Stage, tab: Tab) -> None:
    """Publishes over Blip show up at once, in the numbers and in the charts."""
    tab.open()
    tab.until("document.querySelector('[data-number=in]')")
    assert 0 == tab.page.locator(".plot .area.of-blip").count()

    with publishing(stage, "meters"):
        tab.until("parseFloat(document.querySelector('[data-number=in]').textContent) > 0")
        tab.page.locator(".plot .area.of-blip").first.wait_for(state="attached")
        label = tab.page.locator(".plot").first.get_attribute("aria-label")

    assert label is not None
    assert label.startswith("Messages in, last two minutes. Now: Blip ")


CHARTS: Final = {
    "Messages in": ["Blip"],
    "Messages out": ["Blip"],
    "Backlog": ["Waiting", "In flight"],
    "Commit to disk": ["Median", "99th percentile"],
    "Memory": ["Process", "Messages held"],
    "Event loop": [],  # 0 for a loop that is never late
}
"""The series of each chart that are above 0 while the broker is busy."""

CHART: Final = (
    "[...document.querySelectorAll('.plot')].find(one => one.ariaLabel.startsWith(%s))"
)


def test_every_chart_shows_its_series(stage: Stage, tab: Tab) -> None:
    """A series whose name differs between page and broker would stay at 0."""
    stage.api("POST", "/api/queues", {"name": "charted"})  # it keeps all messages
    tab.open()
    with publishing(stage, "charted"), consuming(stage, "charted"):
        for title, series in CHARTS.items():
            for name in series:
                label = CHART % json.dumps(f"{title}, last two minutes. Now: ")
                after = json.dumps(f"{name} ")
                tab.until(f"parseFloat({label}?.ariaLabel.split({after})[1]) > 0")

    assert list(CHARTS) == tab.page.locator(".chart-title").all_inner_texts()
    assert len(CHARTS) == tab.page.locator(".plot").count()


DRAW: Final = """async ([stacked, rows]) => {
  const { chart } = await import("/static/chart.js");
  const series = [0, 1, 2].map((n) => (
    { name: `s${n}`, of: "of-main", value: (point) => point.row[n] }));
  const start = Date.parse("2026-01-31T12:00:00Z");
  const time = (n) => new Date(start + 1000 * n).toISOString();
  const points = rows.map((row, n) => ({ row, time: time(n) }));
  const drawn = chart({ title: "t", series, format: String, stacked });
  document.querySelector("main").append(drawn.element);
  drawn.draw(points);
  const found = [...drawn.element.querySelectorAll("polyline, polygon")].map((shape) =>
    shape.getAttribute("points").split(" ").map((point) => Number(point.split(",")[1])));
  drawn.element.remove();
  return found;
}"""
"""Draws a chart of three series, and returns the heights of each of its shapes."""


def test_no_line_of_a_chart_hides_another(tab: Tab) -> None:
    """Lines of equal values are drawn beside each other, at zero and at the top as well."""
    tab.open("#/keys")
    rows = [[0, 0, 0], [5, 5, 5], [5, 5, 4.99], [9, 1, 9]]
    lines = tab.page.evaluate(DRAW, [False, rows])
    at_each_time = list(zip(*lines, strict=True))

    assert [len(rows)] * 3 == [len(line) for line in lines]
    for heights in at_each_time:
        low, middle, high = sorted(heights)
        assert middle - low >= 1.9
        assert high - middle >= 1.9
    assert at_each_time[3][1] > at_each_time[3][0]  # the smaller value is the lower one


def test_bands_of_a_chart_lie_on_each_other(tab: Tab) -> None:
    """Each begins where the one below it ends, and the smallest can be seen."""
    tab.open("#/keys")
    bands = tab.page.evaluate(DRAW, [True, [[1000, 1, 1000], [500, 1, 700]]])
    assert 3 == len(bands)
    for below, above in itertools.pairwise(bands):
        assert (
            below[:2] == above[:1:-1]
        )  # the upper edge from the left, the lower from the right
    assert all(
        base - top >= 1.9 for top, base in zip(bands[1][:2], bands[1][:1:-1], strict=True)
    )
    assert 2 == len(tab.page.evaluate(DRAW, [True, [[3, 0, 2], [3, 0, 2]]]))


def test_updates_do_not_move_the_focus(stage: Stage, tab: Tab) -> None:
    """A keyboard user keeps the focus, and a link being clicked is not replaced."""
    tab.open()
    tab.until("document.querySelector('[data-number=log] a')")
    tab.page.evaluate(
        """() => {
          globalThis.link = document.querySelector("[data-number=log] a");
          globalThis.before = document.querySelector("main").innerText;
          link.focus();
        }"""
    )
    with publishing(stage, "focus"):
        tab.until("document.querySelector('main').innerText !== before")
        tab.until("parseFloat(document.querySelector('[data-number=in]').textContent) > 0")

    assert tab.page.evaluate("() => document.activeElement === link && link.isConnected")


def test_an_alarm_is_a_line_on_the_first_page(
    stage: Stage, new_tab: Callable[..., Tab]
) -> None:
    """As the broker words it; the page says as well that the broker works on."""
    tab = new_tab(stage.origin)

    def with_an_alarm(route: "Route") -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "alarms": ["the clock <b>lies"]})

    tab.page.route("**/api/overview", with_an_alarm)
    tab.open()
    tab.page.locator(".problem-box", has_text="The clock <b>lies.").wait_for()

    assert 1 == tab.page.locator(".problem-box").count()
    assert 1 == tab.page.get_by_text("Accepting work").count()
