"""The site builds without a warning, and what is made from the code is what the code says."""

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
    """Built as `make docs` does: warnings are errors, references are looked up."""
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
    """What a page leads to, loads, and can be led to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loaded: set[str] = set()
        self.ids: set[str] = set()
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        if "id" in said:
            self.ids.add(said["id"])
        if tag == "a" and "href" in said:
            self.links.add(said["href"])
        elif tag in {"link", "script", "img"}:
            self.loaded.add(said.get("src") or said.get("href", ""))


@pytest.mark.slow
def test_every_page_is_there_and_every_link_leads_somewhere(site: Path) -> None:
    """Also those within a page, which only the built one has."""
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
def test_it_is_read_without_a_network(site: Path) -> None:
    """Nothing is loaded from elsewhere."""
    loaded = {what for path in site.rglob("*.html") for what in Links(path).loaded}

    assert [] == [what for what in sorted(loaded) if "//" in what]


@pytest.mark.parametrize("name", generate.pages())
def test_what_is_made_from_the_code_is_current(name: str) -> None:
    """`make docs` writes it anew."""
    assert generate.pages()[name] == (generate.PLACE / name).read_text("utf-8")


def test_the_commands_are_all_there() -> None:
    """Those of the interface that users rely on."""
    text = (ROOT / "docs/reference/command-line.md").read_text("utf-8")
    told = set(re.findall(r"^## `braidmq (.*)`$", text, re.MULTILINE))

    assert {"serve", "publish", "subscribe", "topics", "top", "bench", "demo", "doctor"} <= told
    assert {f"queue {verb}" for verb in ("create", "list", "info", "delete", "purge")} <= told
    assert {"dlq list", "dlq replay", "dlq purge", "keys new", "keys list"} <= told
    assert {"wal verify", "wal dump", "wal repair", "config show", "discover"} <= told
