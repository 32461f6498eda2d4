"""The page's layout and accessibility: every width, both themes, keyboard only, its size.

The screenshots stay in build/screenshots for people to look at.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.stage import SCREENSHOTS, Stage, Tab, staged

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow

FIRST_PAGE_BYTES_MAX: Final = 150 * 1000
CONTRAST_MIN: Final = 4.5
"""The contrast that WCAG 2 requires of text at level AA."""

VIEWS: Final = {
    "overview": "#/overview",
    "topics": "#/topics",
    "topic": "#/topics/plant.1.line.01",
    "queues": "#/queues",
    "queue": "#/queues/orders",
    "publish": "#/queues/orders?publish=yes",
    "message": "#/queues/orders/2",
    "dead-letters": "#/dead-letters",
    "letters": "#/dead-letters/dlq.orders",
    "subscriptions": "#/subscriptions",
    "connections": "#/connections",
    "client": "#/connections/dev%40127.0.0.1",
    "cursors": "#/cursors",
    "log": "#/log",
    "keys": "#/keys",
}

# Finds visible text with too little contrast to its background.
PALE: Final = """(least) => {
  const parse = (color) => color.match(/[\\d.]+/g).map(Number);
  const shine = (rgb) => {
    const [r, g, b] = rgb.slice(0, 3).map((c) => c / 255)
      .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const pale = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    const left = "option, :disabled, svg, noscript";
    if (!node.data.trim() || !element.checkVisibility() || element.closest(left)) continue;
    const [a, b] = [shine(parse(getComputedStyle(element).color)), shine(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least) pale.push(`${node.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return pale;
}"""

# Counts the places whose table is wider than they are, so that its edge cannot be seen.
CUT_OFF: Final = """() => [...document.querySelectorAll(".list-place, .panel")]
  .filter((place) => place.scrollWidth > place.clientWidth).length"""

# Finds controls without an accessible name.
NAMELESS: Final = """() => {
  const used = "a, button, input, select, textarea, dialog, svg[role], table";
  const called = (element) =>
    element.getAttribute("aria-label") || element.getAttribute("aria-labelledby")
    || element.labels?.length
    || (element.textContent.trim() && !element.matches("select, textarea, dialog"));
  return [...document.querySelectorAll(used)]
    .filter((element) => element.checkVisibility() && !called(element))
    .map((element) => element.outerHTML.slice(0, 120));
}"""


# Finds rows of tiles that end before the edge, and values that wrap or are cut off.
UNTIDY: Final = """() => {
  const edge = document.querySelector(".tiles").getBoundingClientRect().right;
  const tiles = [...document.querySelectorAll(".tile")];
  const box = (element) => element.getBoundingClientRect();
  const untidy = tiles.filter((tile, n) =>
    (!tiles[n + 1] || box(tiles[n + 1]).top > box(tile).top) && edge - box(tile).right > 3);
  for (const value of document.querySelectorAll(".tile dd")) {
    const range = document.createRange();
    const text = value.querySelector("a")?.firstChild ?? value.firstChild;
    range.selectNodeContents(text);
    const lines = new Set([...range.getClientRects()].map((rect) => rect.top));
    if (lines.size > 1 || value.scrollWidth > value.clientWidth) untidy.push(value);
  }
  return untidy.map((element) => element.innerText);
}"""


@pytest.fixture(scope="module")
def furnished(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with something to show on every page."""
    config = "[wal]\nsegment_bytes = 65536\n"
    with staged(tmp_path_factory.mktemp("furnished"), config=config) as stage:
        stage.overfill("orders", waiting=3, dead=4)
        with stage.client("blip") as blip, stage.client("vibe") as vibe:
            for n in range(70):
                reading = {"meter": n, "kwh": n / 7, "at": [{"site": "north", "ok": True}]}
                blip.publish(f"plant.{n % 7}.line.{n:02}", json.dumps(reading).encode())
            for n in range(40):
                blip.publish("archive", bytes(range(256)) * 16)
                vibe.publish("meters", b'{"kwh": %d}' % n)
            with blip.subscribe("meters"), vibe.subscribe("plant.0.line.00"):
                yield stage


def show(tab: Tab, view: str) -> None:
    """Open a view and wait for its data."""
    tab.open(VIEWS[view])
    tab.until("document.getElementById('live').textContent === 'Live'")
    tab.until("!document.querySelector('main').textContent.includes('Loading…')")
    tab.until(
        "document.querySelector('main :is(tbody tr, .message, .payload, .empty, .tiles)')"
    )
    if view == "publish":
        tab.page.get_by_role("dialog", name="Publish to orders").wait_for()
    if view in {"topic", "queue", "letters"}:
        tab.page.locator("details.message > summary").first.click()
        tab.page.locator(".payload-view pre").wait_for()


@pytest.mark.parametrize(
    ("width", "theme"),
    list(itertools.product([360, 900, 1600], ["light", "dark"])),
)
def test_every_view_fits_every_width_in_both_themes(
    furnished: Stage, new_tab: Callable[..., Tab], width: int, theme: str
) -> None:
    """No horizontal scrolling, no pale text, no unnamed control; with a screenshot."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    tab = new_tab(
        furnished.origin,
        viewport={"width": width, "height": 740 if width == 360 else 900},
        color_scheme=theme,
    )
    for view in VIEWS:
        show(tab, view)
        tab.page.screenshot(path=SCREENSHOTS / f"{view}-{width}-{theme}.png", full_page=True)

        assert (view, width) == (view, tab.width())
        assert (view, 0) == (view, tab.page.evaluate(CUT_OFF))
        assert (view, []) == (view, tab.page.evaluate(PALE, CONTRAST_MIN))
        assert (view, []) == (view, tab.page.evaluate(NAMELESS))


@pytest.mark.parametrize("width", [360, 700, 900, 1280, 1600])
def test_tiles_fill_their_rows_and_values_their_lines(
    furnished: Stage, new_tab: Callable[..., Tab], width: int
) -> None:
    """At every width: no row of tiles has a gap, and "14 min 10 s" is on one line."""
    long = {"uptime_s": 86_399, "log_bytes": 1023 * 2**40, "messages": 99_999_999_999}
    yesterday = (datetime.now(UTC) - timedelta(seconds=86_390)).isoformat()

    def with_long_values(route: "Route") -> None:
        answer = route.fetch()
        about = {**answer.json(), **long, "last_timestamp": yesterday}
        route.fulfill(response=answer, json=about)

    tab = new_tab(furnished.origin, viewport={"width": width, "height": 900})
    tab.page.route(re.compile("/api/(overview|topics/plant.1.line.01)$"), with_long_values)
    for view, seen in (("overview", "23 h 59 min"), ("topic", "23 h ago"), ("log", "always")):
        show(tab, view)
        tab.page.locator(".tile", has_text=seen).wait_for()

        assert (view, []) == (view, tab.page.evaluate(UNTIDY))


def test_the_theme_can_be_chosen_and_stays(
    furnished: Stage, new_tab: Callable[..., Tab]
) -> None:
    """It follows the system by default; the button's choice survives a reload."""
    tab = new_tab(furnished.origin, color_scheme="light")

    def background() -> str:
        return str(
            tab.page.evaluate(
                "() => getComputedStyle(document.documentElement).backgroundColor"
            )
        )

    show(tab, "overview")
    light = background()
    tab.page.emulate_media(color_scheme="dark")
    dark = background()
    assert light != dark

    tab.page.get_by_role("button", name="Theme: auto").click()
    assert light == background()
    tab.page.get_by_role("button", name="Theme: light").click()
    tab.page.emulate_media(color_scheme="light")
    tab.page.reload()
    assert dark == background()
    tab.page.get_by_role("button", name="Theme: dark").wait_for()


def test_the_first_page_is_small(furnished: Stage, new_tab: Callable[..., Tab]) -> None:
    """Everything that it loads is less than 150 KB uncompressed."""
    tab = new_tab(furnished.origin)
    show(tab, "overview")
    sizes = {
        answer.url.removeprefix(furnished.origin): len(answer.body())
        for answer in tab.answers
        if not answer.url.endswith("/api/events")
    }

    assert {"/static/main.js", "/static/view_overview.js"} <= set(sizes)
    assert FIRST_PAGE_BYTES_MAX > sum(sizes.values()), sizes


def test_small_screens_have_a_menu_button(
    furnished: Stage, new_tab: Callable[..., Tab]
) -> None:
    """Screen readers hear its state; Escape or a choice closes the menu."""
    tab = new_tab(furnished.origin, viewport={"width": 360, "height": 740})
    show(tab, "overview")
    menu = tab.page.get_by_role("button", name="Menu")
    nav = tab.page.locator("nav.side")
    assert ("false", False) == (menu.get_attribute("aria-expanded"), nav.is_visible())
    menu.click()
    assert ("true", True) == (menu.get_attribute("aria-expanded"), nav.is_visible())
    tab.page.keyboard.press("Escape")
    assert not nav.is_visible()
    menu.click()
    tab.page.get_by_role("link", name="Queues").click()
    tab.until("document.querySelector('h1').textContent === 'Queues'")
    assert not nav.is_visible()


class KeyboardUser:
    """Uses the page without a mouse."""

    def __init__(self, tab: Tab) -> None:
        self._tab = tab
        self._keys = tab.page.keyboard

    def press(self, *keys: str) -> None:
        for key in keys:
            self._keys.press(key)

    def type(self, text: str) -> None:
        self._keys.type(text)

    def at(self) -> str:
        """Return the element that has the focus, which must be visible."""
        name, outline = self._tab.page.evaluate(
            """() => {
              const at = document.activeElement;
              if (at === document.body) return ["the end", "of the page"];
              const name = at.getAttribute("aria-label") || at.id || at.textContent.trim();
              return [name, getComputedStyle(at).outlineStyle];
            }"""
        )
        assert outline != "none", f"the focus on {name!r} is invisible"
        return str(name)

    def tab_to(self, name: str) -> None:
        """Press Tab until the focus is on *name*."""
        passed = []
        for _ in range(60):
            self.press("Tab")
            passed.append(self.at())
            if passed[-1] == name:
                return
        pytest.fail(f"Tab never reached {name!r}, but {passed}")


def test_everything_works_with_the_keyboard_alone(
    furnished: Stage, new_tab: Callable[..., Tab]
) -> None:
    """Skip the menu, open a topic, publish, read the message, open and close a dialog."""
    tab = new_tab(furnished.origin, viewport={"width": 1280, "height": 900})
    show(tab, "overview")
    user = KeyboardUser(tab)
    user.press("Tab")
    assert "skip" == user.at()
    user.press("Enter")
    assert "main" == tab.page.evaluate("() => document.activeElement.id")

    show(tab, "overview")
    user.tab_to("Topics")
    user.press("Enter")
    tab.until("document.activeElement.matches('h1') && document.title.startsWith('Topics')")
    user.tab_to("Search topics")
    user.type("archive")
    tab.until("document.querySelectorAll('tbody tr').length === 1")
    user.tab_to("archive")
    user.press("Enter")
    tab.until("document.activeElement.matches('h1') && document.title.startsWith('archive')")
    user.tab_to("Publish…")
    user.press("Enter")
    assert "payload" == user.at()
    user.type('{"typed": true}')
    user.tab_to("Publish")
    user.press("Enter")
    tab.sees("Published at offset")
    tab.until("document.querySelector('.message-preview').textContent.includes('typed')")
    assert "Publish" == user.at()
    user.press("Escape")
    assert "Publish…" == user.at()
    user.tab_to("follow")
    user.press("Tab", "Enter")
    tab.page.locator(".payload-view pre").wait_for()

    show(tab, "queues")
    user.tab_to("New queue…")
    user.press("Enter")
    assert "queue-name" == user.at()
    user.press("Escape")
    assert "New queue…" == user.at()


def test_values_are_formatted_correctly(furnished: Stage, new_tab: Callable[..., Tab]) -> None:
    """Numbers, sizes and times, and the parsers of events and routes."""
    tab = new_tab(furnished.origin)
    show(tab, "keys")
    found = tab.page.evaluate(
        """async () => {
          const format = await import("/static/format.js");
          const { parser } = await import("/static/live.js");
          const { match } = await import("/static/router.js");
          const events = [];
          const take = parser((event, data) => events.push([event, data]));
          const unix = "event: a\\ndata: 1\\n\\n: a comment\\n";
          const dos = "data: 2\\r\\ndata: 3\\r\\n\\r\\ndata: 4";
          for (const piece of unix + dos) take(piece);
          return {
            counts: [0, 1234567, null].map(format.count),
            compact: [0, 0.25, 12, 9999, 12345, undefined].map(format.compact),
            bytes: [0, 1023, 1536, 150 * 1024, 2 ** 40].map(format.bytes),
            durations: [0, 0.5, 59, 61, 90061].map(format.duration),
            milliseconds: [0.1234, 5, 250.4, 2500].map(format.milliseconds),
            plurals: [format.plural(1, "letter"), format.plural(2, "letter")],
            events,
            routes: ["", "#/topics/a%2Fb?from=3", "#/topics/", "#/x", "#/queues/a/7"]
              .map((hash) => match(hash)?.module ?? null),
            name: match("#/topics/a%2Fb").params.name,
          };
        }"""
    )

    assert found == {
        "counts": ["0", "1,234,567", "\N{EN DASH}"],
        "compact": ["0", "0.25", "12", "9,999", "12.3K", "\N{EN DASH}"],
        "bytes": ["0 B", "1023 B", "1.5 KiB", "150 KiB", "1 TiB"],
        "durations": ["0 s", "0.5 s", "59 s", "1 min 1 s", "1 d 1 h"],
        "milliseconds": ["0.12 ms", "5 ms", "250 ms", "2.5 s"],
        "plurals": ["1 letter", "2 letters"],
        "events": [["a", "1"], ["message", "2\n3"]],
        "routes": ["overview", "topic", None, None, "message"],
        "name": "a/b",
    }
