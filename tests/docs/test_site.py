"""The site builds without warnings, and its generated pages are up to date."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from docs import generate
from tests.browser.stage import launched, skip_without_browser
from tests.docs.test_snippets import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SECONDS_MAX: Final = 110
WIDTHS: Final = (390, 1280)


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


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    skip_without_browser()
    with launched() as browser:
        yield browser


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_is_wider_than_the_screen(site: Path, chromium: "Browser", width: int) -> None:
    """On a phone and on a desk; tables and blocks scroll by themselves. Pictures load."""
    page = chromium.new_page(viewport={"width": width, "height": 900})
    wrong = []
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        found = page.evaluate("document.documentElement.scrollWidth")
        broken = page.evaluate(
            "[...document.images].filter((image) => !image.naturalWidth).map((i) => i.src)"
        )
        if (found, broken) != (width, []):
            wrong.append((path.name, found, broken))
    page.close()

    assert [] == wrong


@pytest.mark.slow
def test_the_search_finds_a_page(site: Path, chromium: "Browser") -> None:
    """In the built files alone, without a server."""
    page = chromium.new_page()
    page.goto(f"{(site / 'search.html').as_uri()}?q=fsync")
    page.locator("#search-results li a").first.wait_for()
    found = page.locator("#search-results li a").all_inner_texts()
    page.close()

    assert "Guarantees" in found


@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_landing_page_shows_the_picture_of_its_theme(
    site: Path, chromium: "Browser", theme: str
) -> None:
    """One of the two, and the terminal."""
    page = chromium.new_page(color_scheme="dark" if theme == "dark" else "light")
    page.goto((site / "index.html").as_uri())
    shown = page.evaluate(
        "[...document.images].filter((image) => image.checkVisibility())"
        ".map((image) => image.src.split('/').pop())"
    )
    page.close()

    assert [f"dashboard-{theme}.png", "terminal.svg"] == shown


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
