"""The overview while the broker is busy: its numbers and each of its charts."""

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
