"""The front door: a short and honest README, and pages that say what they are for.

The README's figures are those of the benchmark page, which holds the runs that were recorded.
"""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.docs.test_snippets import ROOT, documents, read

LINES_MAX: Final = 150
PEERS: Final = ("RabbitMQ", "NATS JetStream", "Redis Streams", "Kafka")
COMPARED: Final = (
    "A confirm means",
    "Queue features",
    "Log features",
    "Protocols",
    "End-to-end encryption",
    "Spark",
    "Replication",
    "Ecosystem",
    "Memory",
)
# 1,234,567, 12.5, 300/s, 12 MiB: what could only have been measured.
FIGURE: Final = re.compile(
    r"(?<![\w.,-])(\d{1,3}(?:,\d{3})+|\d+\.\d+|\d+(?=/s)|\d+(?= (?:MiB|GiB|KiB|ms|us)\b))"
)
VERSION: Final = re.compile(r"(?:Spark|0-9-1 and) \d+\.\d+")
INTRODUCTION_MIN: Final = 60
PAGES: Final = [name for name in documents() if name.startswith("docs/")]


def rows(document: str) -> list[list[str]]:
    """Return the cells of every table row."""
    lines = [line for line in read(document).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def figures(text: str) -> list[str]:
    return FIGURE.findall(VERSION.sub("", text))


def test_the_readme_is_short() -> None:
    """At most 150 lines."""
    assert len(read("README.md").splitlines()) <= LINES_MAX


def test_every_figure_of_the_readme_was_measured() -> None:
    """Each number in its tables stands in the benchmark page, digit for digit."""
    found = [figure for row in rows("README.md") for cell in row for figure in figures(cell)]
    measured = set(figures(read("docs/benchmarks.md")))

    assert len(found) > 10
    assert [] == [figure for figure in found if figure not in measured]


def test_figures_are_found_in_text() -> None:
    """Rates, ratios and sizes are figures; versions of protocols and small counts are not."""
    assert ["528,046", "9.27", "100", "20"] == figures("528,046/s is 9.27, 100/s, < 20 MiB")
    assert [] == figures("AMQP 0-9-1 and 1.0, 2 min, 4 queues, for Spark 3.5")


def test_both_sides_of_a_ratio_come_from_one_row_of_the_run() -> None:
    """Otherwise two true figures could make an untrue comparison."""
    run = [figures(line) for line in read("docs/benchmarks.md").splitlines()]
    compared = [figures(" ".join(row)) for row in rows("README.md") if len(row) == 4]
    measured = [found for found in compared if found]

    assert len(measured) >= 5
    assert [] == [one for one in measured if not any(set(one) <= set(row) for row in run)]


def test_the_readme_compares_row_by_row() -> None:
    """With every peer, in every respect; no cell is empty."""
    table = [row for row in rows("README.md") if len(row) == 6]

    assert ["", "BraidMQ", *PEERS] == table[0]
    names = [row[0] for row in table[2:]]
    assert [True] * len(COMPARED) == [
        name.startswith(start) for name, start in zip(names, COMPARED, strict=True)
    ]
    assert all(all(row) for row in table[2:])


def test_the_readme_says_when_not_to_use_it() -> None:
    """No replication first of all, before what it survives."""
    text = read("README.md")
    limits = text[text.index("## When not to use it") : text.index("## What it survives")]

    assert "There is no replication" in limits


def test_the_first_commands_are_the_light_ones() -> None:
    """`make run`, a publish, `make demo`."""
    text = read("README.md")
    first = re.findall(r"^```sh\n(\S+ \S+)", text, re.MULTILINE)[:3]

    assert ["make run", ".venv/bin/braidmq publish", "make demo"] == first


@pytest.mark.parametrize("document", ["README.md", *PAGES])
def test_pictures_exist(document: str) -> None:
    """Those of Markdown, of HTML and of directives."""
    text = read(document)
    used = re.findall(r'(?:src|srcset)="([^"]+)"', text)
    used += re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text)
    used += re.findall(r"\{image\} (\S+)", text)
    place = (ROOT / document).parent

    assert [] == [name for name in used if not Path(place / name).exists()]


@pytest.mark.parametrize("document", PAGES)
def test_a_page_says_first_what_it_is_for(document: str) -> None:
    """A title, then a paragraph before any table, list, block or further heading."""
    lines = [line for line in read(document).splitlines() if line and line[:4] != "<!--"]

    assert lines[0].startswith("# ")
    assert re.match(r"[A-Z*`[]", lines[1]), lines[1]
    assert len(lines[1]) >= INTRODUCTION_MIN
