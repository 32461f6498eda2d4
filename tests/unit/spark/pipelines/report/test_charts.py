"""Charts: SVG with names as text and sizes in proportion."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.spark.pipelines.report.charts import (
    NAME_WIDTH_MAX,
    WIDTH,
    Bar,
    as_text,
    bars,
    columns,
)

SIZES = [Bar("a", 100, "100"), Bar("b", 50, "50"), Bar("c", 0, "0"), Bar("d", 1e-9, "few")]
SHOWN = {
    "sensors/temp": "sensors/temp",
    "": "",
    "<script>alert('x')</script>": "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;",
    'a"b&c': "a&quot;b&amp;c",
    "\x1b[31mred\x00": "\\x1b[31mred\\x00",
    "a\u202egpj.exe": "a\\u202egpj.exe",
    "x" * 100: "x" * 35 + "…",
    "温度" * 30: "温度" * 8 + "温…",
    "\ud800": "\\ud800",
}


def widths(svg: str, kind: str = "bar") -> list[float]:
    return [
        float(rect.attrib["width"])
        for rect in ET.fromstring(svg).iter("rect")  # noqa: S314 - our own SVG
        if rect.attrib["class"] == kind
    ]


@pytest.mark.parametrize(("name", "shown"), SHOWN.items())
def test_a_name_is_text_without_controls_and_bounded(name: str, shown: str) -> None:
    """Whatever a topic is called, the page only displays it."""
    assert shown == as_text(name, 36)


@given(st.text(max_size=80))
def test_no_name_becomes_markup(name: str) -> None:
    """The chart has the name, truncated, as text and never as a tag."""
    svg = bars("x", "t", "d", [Bar(name, 1, name)])
    found = ET.fromstring(svg)  # noqa: S314 - our own SVG

    assert ["title", "desc", "text", "text", "rect", "rect"] == [child.tag for child in found]
    assert len(as_text(name)) <= 6 * NAME_WIDTH_MAX


def test_bars_are_as_long_as_their_share() -> None:
    """The largest fills the width, zero has none, and a tiny value stays visible."""
    assert [WIDTH, WIDTH / 2, 0, 1.5] == widths(bars("x", "t", "d", SIZES))
    assert [WIDTH] * 4 == widths(bars("x", "t", "d", SIZES), "track")


def test_columns_stand_on_one_line() -> None:
    """Each is as high as its share; with every=2, every second one is labelled."""
    svg = columns("x", "t", "d", SIZES, every=2)
    rects = [rect.attrib for rect in ET.fromstring(svg).iter("rect")]  # noqa: S314 - our own SVG

    assert {138.0} == {float(rect["y"]) + float(rect["height"]) for rect in rects}
    assert [120, 60, 0, 1.5] == [float(rect["height"]) for rect in rects]
    assert ["100", "a", "c"] == re.findall(r"<text[^>]*>(\w+)<", svg)


@pytest.mark.parametrize("draw", [bars, columns])
def test_a_chart_describes_what_it_shows(draw: object) -> None:
    """In words, for screen readers, and also when it is empty."""
    assert callable(draw)
    svg = draw("hours", "By <hour>", "The most: 3 & 4", [])

    assert 'role="img"' in svg
    assert 'aria-labelledby="hours-title hours-desc"' in svg
    assert '<title id="hours-title">By &lt;hour&gt;</title>' in svg
    assert '<desc id="hours-desc">The most: 3 &amp; 4</desc>' in svg
