"""The overview while the broker is at work: its numbers, and each of its charts."""

import json
from typing import Final

import pytest

from tests.browser.stage import Stage, Tab
from tests.browser.traffic import consuming, publishing

pytestmark = pytest.mark.slow


def test_numbers_and_charts_move_while_messages_are_published(stage: Stage, tab: Tab) -> None:
    """What is published over Blip is seen as it happens, in the numbers and in the charts."""
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
    "Event loop": [],  # a loop that is never late is at 0, as it should be
}
"""What each chart shows above 0 while there is work."""

CHART: Final = (
    "[...document.querySelectorAll('.plot')].find(one => one.ariaLabel.startsWith(%s))"
)


def test_every_chart_shows_its_numbers(stage: Stage, tab: Tab) -> None:
    """A number that the page knew by another name than the broker would be 0 for ever."""
    stage.api("POST", "/api/queues", {"name": "charted"})  # where all of it stays
    tab.open()
    with publishing(stage, "charted"), consuming(stage, "charted"):
        for title, series in CHARTS.items():
            for name in series:
                label = CHART % json.dumps(f"{title}, last two minutes. Now: ")
                after = json.dumps(f"{name} ")
                tab.until(f"parseFloat({label}?.ariaLabel.split({after})[1]) > 0")

    assert list(CHARTS) == tab.page.locator(".chart-title").all_inner_texts()
    assert len(CHARTS) == tab.page.locator(".plot").count()


def test_numbers_that_move_leave_the_focus_where_it_is(stage: Stage, tab: Tab) -> None:
    """A keyboard is not thrown off the page each second, nor a click lost with its link."""
    tab.open()
    tab.until("document.querySelector('[data-number=log] a')")
    tab.page.evaluate(
        """() => {
          globalThis.link = document.querySelector("[data-number=log] a");
          globalThis.said = document.querySelector("main").innerText;
          link.focus();
        }"""
    )
    with publishing(stage, "focus"):
        tab.until("document.querySelector('main').innerText !== said")
        tab.until("parseFloat(document.querySelector('[data-number=in]').textContent) > 0")

    assert tab.page.evaluate("() => document.activeElement === link && link.isConnected")
