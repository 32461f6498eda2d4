"""Rules for the dashboard's files: no markup from strings, nothing inline, nothing remote.

The content security policy catches what these rules miss; the rules catch mistakes before the
policy does so in front of a user.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
STATIC: Final = ROOT / "src" / "braidmq" / "admin" / "static"

LINES_MAX: Final = 500
BYTES_MAX: Final = 200 * 1000
"""All files together; a browser test measures what the first page loads."""

MARKUP: Final = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|setHTMLUnsafe|srcdoc|DOMParser"
    r"|createContextualFragment|document\.write(ln)?|eval|Function|javascript:)\b"
    r"|setAttribute\(\s*[\"']style"
)
REMOTE: Final = re.compile(r"(https?:)?//(?!www\.w3\.org/2000/svg|127\.0\.0\.1)[\w-]+\.[\w.-]+")
INLINE: Final = re.compile(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", re.IGNORECASE)
COMMENT: Final = re.compile(r"(//|/\*|<!doctype|<svg) ?\S", re.IGNORECASE)


@dataclass(frozen=True)
class File:
    """One file of the page."""

    name: str
    text: str


Rule = Callable[[File], Iterator[str]]


def nothing_becomes_markup(file: File) -> Iterator[str]:
    """Names and payloads are text: dom.js creates elements, never from a string."""
    if file.name.endswith(".js"):
        for number, line in enumerate(file.text.splitlines(), 1):
            if found := MARKUP.search(line):
                yield f"{number}: {found.group()}: create elements with h() of dom.js"


def nothing_is_inline(file: File) -> Iterator[str]:
    """Scripts and styles are files, as the content security policy demands."""
    if file.name.endswith(".html"):
        yield from (f"{found.group()!r} is inline" for found in INLINE.finditer(file.text))


def nothing_is_remote(file: File) -> Iterator[str]:
    """The page works on a machine without a network."""
    yield from (f"{found.group()!r} is on another host" for found in REMOTE.finditer(file.text))


def files_are_short(file: File) -> Iterator[str]:
    """A file can be read in one sitting."""
    lines = len(file.text.splitlines())
    if lines > LINES_MAX:
        yield f"{lines} lines, at most {LINES_MAX}"


def files_say_what_they_are(file: File) -> Iterator[str]:
    """Each starts with a comment, as Python modules do with a docstring."""
    if not COMMENT.match(file.text):
        yield "no comment on top: say what the file is, and what it is not"


RULES: Final[tuple[Rule, ...]] = (
    nothing_becomes_markup,
    nothing_is_inline,
    nothing_is_remote,
    files_are_short,
    files_say_what_they_are,
)


@pytest.fixture(scope="module")
def files() -> list[File]:
    return [File(path.name, path.read_text("utf-8")) for path in sorted(STATIC.iterdir())]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule.__name__))
def test_the_files_of_the_page_follow(rule: Rule, files: list[File]) -> None:
    """Each rule holds in every file."""
    found = [f"{file.name}:{finding}" for file in files for finding in rule(file)]

    assert [] == found


def test_the_page_stays_small(files: list[File]) -> None:
    """There is no build step, so the browser loads the sources as they are."""
    assert BYTES_MAX > sum(len(file.text.encode()) for file in files)


def test_every_file_is_used(files: list[File]) -> None:
    """Each is named by another, or is a view, which the router names."""
    everything = "".join(file.text for file in files)
    unnamed = {
        file.name
        for file in files
        if file.name != "index.html"
        and f"/{file.name}" not in everything
        and f'"{file.name.removeprefix("view_").removesuffix(".js")}"' not in everything
    }

    assert set() == unnamed


BAD: Final[list[tuple[Rule, str, str]]] = [
    (nothing_becomes_markup, "a.js", "place.innerHTML = name;"),
    (nothing_becomes_markup, "a.js", 'place.insertAdjacentHTML("beforeend", name);'),
    (nothing_becomes_markup, "a.js", "document.write(name);"),
    (nothing_becomes_markup, "a.js", 'new Function("return 1")();'),
    (nothing_becomes_markup, "a.js", 'place.setAttribute("style", text);'),
    (nothing_is_inline, "a.html", "<script>alert(1)</script>"),
    (nothing_is_inline, "a.html", "<style>p {}</style>"),
    (nothing_is_inline, "a.html", '<p style="color: red">'),
    (nothing_is_inline, "a.html", '<p onclick="go()">'),
    (nothing_is_remote, "a.css", "@import url(https://fonts.example.com/a.css);"),
    (nothing_is_remote, "a.html", '<script src="//cdn.example.com/a.js"></script>'),
    (files_are_short, "a.js", "// A file.\n" * (LINES_MAX + 1)),
    (files_say_what_they_are, "a.js", "import x from './x.js';"),
]
GOOD: Final[list[tuple[Rule, str, str]]] = [
    (nothing_becomes_markup, "a.js", "element.textContent = name; element.style.width = w;"),
    (nothing_becomes_markup, "a.js", "// a function that evaluates"),
    (nothing_is_inline, "a.html", '<script src="/static/a.js"></script><p class="on">'),
    (nothing_is_remote, "a.svg", '<svg xmlns="http://www.w3.org/2000/svg">'),
    (nothing_is_remote, "a.js", 'const blip = "127.0.0.1:5555"; // see docs'),
    (files_say_what_they_are, "a.css", "/* A file. */"),
]


@pytest.mark.parametrize(("rule", "name", "text"), BAD)
def test_each_rule_finds_what_it_forbids(rule: Rule, name: str, text: str) -> None:
    """One bad example gives one finding."""
    assert 1 == len(list(rule(File(name, text))))


@pytest.mark.parametrize(("rule", "name", "text"), GOOD)
def test_each_rule_accepts_good_code(rule: Rule, name: str, text: str) -> None:
    """A rule that complains about good code would soon be turned off."""
    assert [] == list(rule(File(name, text)))
