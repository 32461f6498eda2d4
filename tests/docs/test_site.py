"""The site builds without warnings, and its generated pages are up to date."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

import pytest

from docs import generate
from tests.docs.test_snippets import ROOT

SECONDS_MAX: Final = 110
LIMIT_BYTES: Final = 1_000_000


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built like `make docs` does: warnings are errors, references are checked."""
    place = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "-b", "html", "-q"),
            *("-W", "--keep-going", "-n", "-d", str(place / "trees")),
            *(str(ROOT / "docs"), str(place / "html")),
        ],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        text=True,
        timeout=SECONDS_MAX,
    )
    assert (0, "") == (done.returncode, done.stderr)
    return place / "html"


class Links(HTMLParser):
    """The links, loaded files and ids of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.add(values["href"])
        elif tag in {"link", "script", "img"}:
            self.loaded.add(values.get("src") or values.get("href", ""))


@pytest.mark.slow
def test_every_page_exists_and_every_link_works(site: Path) -> None:
    """Including anchors, which only the built pages have."""
    pages = {path.relative_to(site).as_posix(): Links(path) for path in site.rglob("*.html")}
    sources = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    assert set() == {p.with_suffix(".html").as_posix() for p in sources} - pages.keys()
    broken = []
    for name, page in pages.items():
        for link in page.links:
            target, _, anchor = link.partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            place = (site / name).parent / target if target else site / name
            known = place.resolve().relative_to(site.resolve()).as_posix()
            if not place.exists() or (
                anchor and known in pages and anchor not in pages[known].ids
            ):
                broken.append((name, link))

    assert [] == broken


@pytest.mark.slow
def test_the_site_works_without_a_network(site: Path) -> None:
    """It loads nothing from other hosts."""
    loaded = {what for path in site.rglob("*.html") for what in Links(path).loaded}

    assert [] == [what for what in sorted(loaded) if "//" in what]


@pytest.mark.parametrize("name", generate.pages())
def test_generated_pages_are_up_to_date(name: str) -> None:
    """`make docs` regenerates them."""
    assert generate.pages()[name] == (generate.PLACE / name).read_text("utf-8")


def test_the_command_reference_is_complete() -> None:
    """It has every command that users rely on."""
    text = (ROOT / "docs/reference/command-line.md").read_text("utf-8")
    listed = set(re.findall(r"^## `braidmq (.*)`$", text, re.MULTILINE))

    assert {
        "serve",
        "publish",
        "subscribe",
        "topics",
        "top",
        "bench",
        "demo",
        "doctor",
    } <= listed
    assert {f"queue {verb}" for verb in ("create", "list", "info", "delete", "purge")} <= listed
    assert {"dlq list", "dlq replay", "dlq purge", "keys new", "keys list"} <= listed
    assert {"wal verify", "wal dump", "wal repair", "config show", "discover"} <= listed
