"""The page of `pipeline report` in a browser, on the narrow screen of a phone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import pytest

from braidmq.spark.pipelines.report.page import Findings, TopicFit, TopicVolume, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTH: Final = 360
NOON: Final = datetime(2026, 11, 16, 12, tzinfo=UTC)
LONG: Final = "sensors/" + "temperature" * 10
TOPICS: Final = ("orders", "bench.fa5f6a11", LONG)
FOUND: Final = Findings(
    source="data",
    volumes=[TopicVolume(t, 2_000_000, 10**9, 5e2, 4e2, 9e2, NOON, NOON) for t in TOPICS],
    hours=[(NOON, 6_000_000)],
    deaths=[("dlq.work", "MaxDeliveriesExceeded", 1_200)],
    fits=[TopicFit(t, "sensor.Temperature", 10, 1, 5.0, 9.0, 12) for t in TOPICS],
    delays=[("below 10 ms", 20), ("10 ms and more", 10)],
)

BROKEN: Final = """() => [...document.querySelectorAll('h1, h2, dt, caption, thead th')]
  .flatMap(head => {
    const walker = document.createTreeWalker(head, NodeFilter.SHOW_TEXT);
    const broken = [];
    for (let node; (node = walker.nextNode()); ) {
      for (const word of node.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map(box => box.top)).size > 1)
          broken.push(word[0]);
      }
    }
    return broken;
  })"""
"""Finds words in headings that span more than one line."""

GAPS: Final = """() => [...document.querySelectorAll('.scroll + .scroll, .pair + .pair')]
  .map(box => box.getBoundingClientRect().top
    - box.previousElementSibling.getBoundingClientRect().bottom)"""


@pytest.fixture
def narrow(chromium: "Browser") -> Iterator["Page"]:
    context = chromium.new_context(viewport={"width": WIDTH, "height": 740})
    found = context.new_page()
    found.set_content(page(FOUND))
    yield found
    context.close()


def test_a_wide_table_scrolls_in_its_own_box(narrow: "Page") -> None:
    """The page itself is only as wide as the screen."""
    hidden = "boxes => boxes.map(box => box.scrollWidth - box.clientWidth)"
    boxes = narrow.locator(".scroll").evaluate_all(hidden)

    assert WIDTH == narrow.evaluate("document.documentElement.scrollWidth")
    assert boxes[0] > 0, "a table of seven columns must scroll"


def test_no_word_in_a_heading_is_broken(narrow: "Page") -> None:
    """Topic names may be, as they have no spaces."""
    assert [] == narrow.evaluate(BROKEN)


def test_tables_have_space_between_them(narrow: "Page") -> None:
    """So that a caption visibly belongs to the table below it."""
    gaps = narrow.evaluate(GAPS)

    assert gaps
    assert min(gaps) >= 16
