"""The plot of a run: one file that loads nothing and runs nothing."""

from array import array
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from braidmq.base.errors import ConfigError
from braidmq.cli.bench.load import Measured
from braidmq.cli.bench.plot import kind_of, svg, write
from braidmq.cli.bench.report import Figures, figures
from tests.unit.cli.bench.test_report import load

SPACE = "{http://www.w3.org/2000/svg}"


def run(count: int = 1000) -> tuple[Figures, Measured]:
    measured = Measured(published=count, delivered=count, publish_s=1.0, deliver_s=1.0)
    measured.latencies = array("d", [n / count for n in range(count)])
    measured.published_at = Counter({0: count // 2, 3: count // 2})
    measured.delivered_at = Counter({1: count})
    return figures(load(), measured, (50,)), measured


def test_a_plot_has_a_line_for_each_rate_and_one_for_the_latency() -> None:
    """Rates are per second: 500 in a tenth of one are 5,000."""
    picture = ET.fromstring(svg(*run()))  # noqa: S314 - our own text
    lines = picture.findall(f"{SPACE}polyline")
    words = [text.text for text in picture.findall(f"{SPACE}text")]

    assert ["l p", "l d", "l d"] == [line.get("class") for line in lines]
    assert {"p50", "p99.9", "10,000"} <= set(words)
    # A tenth of a second in which nothing happened is a zero, not a shorter line.
    assert [4, 2, 121] == [len((line.get("points") or "").split()) for line in lines]


@pytest.mark.parametrize("count", [1, 2, 9, 50])
def test_few_messages_can_be_plotted_too(count: int) -> None:
    """Percentiles that need more of them are left out."""
    picture = ET.fromstring(svg(*run(count)))  # noqa: S314 - our own text
    words = {text.text for text in picture.findall(f"{SPACE}text")}

    assert "p99.99" not in words


def test_a_run_that_measured_nothing_can_be_plotted() -> None:
    """QoS 0 may lose everything."""
    empty = Measured()

    assert ET.fromstring(svg(figures(load(), empty, (50,)), empty)) is not None  # noqa: S314 - our own text


@pytest.mark.parametrize("name", ["plot.svg", "plot.HTML"])
def test_the_file_needs_nothing_else(name: str, tmp_path: Path) -> None:
    """No script, no link, and no address but the namespace of SVG."""
    write(tmp_path / name, *run())
    text = (tmp_path / name).read_text("utf-8")

    assert text.startswith("<!doctype html>" if name.endswith("HTML") else "<svg")
    for what in ("<script", "href", "src=", "url(", "@import"):
        assert what not in text
    assert 1 == text.count("http")


def test_another_kind_of_file_is_refused() -> None:
    """Before anything is measured."""
    with pytest.raises(
        ConfigError, match=r"--plot: must be a file that ends in \.svg or \.html"
    ):
        kind_of(Path("x.png"))
