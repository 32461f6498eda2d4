"""Slow work of the broker: searches for rare messages, and work on a whole log or queue."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qs, urlsplit

import pytest

from braidmq.wal.format import HEADER_BYTES, encode_gap, encode_record, scan
from tests.browser.stage import PATIENCE_MS, Stage, Tab, staged

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow

ROW: Final = "details.message"
BETWEEN: Final = 3_500_000
"""Ids between two messages; the broker searches 1,000,000 for one page."""

SEARCH: Final = "**/api/topics/*/messages?*"

# Gives the test control over the page's timeouts: those of changes and of /api/keys expire when
# `expire()` is called. Other requests of a view keep theirs, as they may still be under way.
IMPATIENT: Final = """
const made = [];
const expiring = [];
AbortSignal.timeout = () => {
  const one = new AbortController();
  made.push(one);
  return one.signal;
};
const plainly = fetch;
globalThis.fetch = (address, options) => {
  const own = made.splice(0);
  if ((options.method ?? "GET") !== "GET" || address === "/api/keys") expiring.push(...own);
  return plainly(address, options);
};
globalThis.expire = () => expiring.splice(0).forEach((one) => one.abort());
"""

# Another request, for which the page does time out.
ASK: Final = """async () => {
  const { get, path } = await import("/static/api.js");
  globalThis.answer = get(path("keys")).catch((error) => error.message);
}"""


@pytest.fixture(scope="module")
def stage(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A broker with millions of ids between its first messages and the others.

    One record stands for them, like the one that a repair writes for lost ids.
    """
    directory = tmp_path_factory.mktemp("patience")
    with staged(directory) as first:
        first.post("rare", "first")
        first.post("steady", "first")
        first.stop()
    append_gap(directory, BETWEEN)
    with staged(directory) as stage:
        stage.post("late", "first")
        stage.post("rare", "second")
        yield stage


def append_gap(directory: Path, count: int) -> None:
    """Append a gap of *count* ids to the log of a stopped broker."""
    (segment,) = (directory / "data" / "wal").glob("*.wal")
    next_id = scan(segment.read_bytes()[HEADER_BYTES:], 1).next_id
    gap = encode_gap(next_id, next_id + count - 1)
    with segment.open("ab") as log:
        log.write(encode_record(next_id, gap, fence=True))


class Held:
    """Holds requests back; lets them through one by one, and at the end all."""

    def __init__(self, tab: Tab, pattern: str) -> None:
        self._page = tab.page
        self._pattern = pattern
        self._routes: list[Route] = []
        self._is_open = False
        self._page.route(pattern, self._take)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_open = True
        for route in self._routes:
            route.continue_()
        self._page.unroute(self._pattern)

    def _take(self, route: "Route") -> None:
        if self._is_open:
            route.continue_()
        else:
            self._routes.append(route)

    def wait(self) -> "Route":
        """Return the next request, once there is one."""
        end = time.monotonic() + PATIENCE_MS / 1000
        while not self._routes:
            assert time.monotonic() < end, f"no request for {self._pattern}"
            self._page.wait_for_timeout(10)  # Playwright handles routes during this wait
        return self._routes.pop(0)

    def pass_on(self) -> str:
        """Let the next request through, once there is one; return its address."""
        route = self.wait()
        route.continue_()
        return route.request.url


def offsets(tab: Tab) -> list[int]:
    rows = tab.page.locator(ROW)
    return [int(row.get_attribute("data-offset") or 0) for row in rows.all()]


def without_following(tab: Tab, topic: str) -> None:
    """Open a topic and turn off Follow, so that the page sends no requests by itself."""
    tab.goto_topic(topic)
    tab.page.get_by_label("Follow", exact=True).uncheck()
    tab.page.locator(ROW).nth(1).wait_for()


def look_from(tab: Tab, offset: int) -> None:
    tab.page.get_by_label("Start at").select_option("offset")
    tab.page.get_by_label("Offset").fill(str(offset))
    tab.button("Show")


@contextmanager
def aborting(tab: Tab, route: "Route") -> Iterator[None]:
    """Assert that the page aborts a request, which the browser may report a bit later."""
    request = route.request
    with tab.page.expect_event("requestfailed", lambda failed: failed == request) as failed:
        yield
    assert "net::ERR_ABORTED" == failed.value.failure


def test_a_search_for_a_rare_message_continues_until_it_is_found(
    stage: Stage, tab: Tab
) -> None:
    """Part by part, with its progress; the page never says that there are no messages."""
    newest = stage.api("GET", "/api/topics/rare")["last_offset"]
    without_following(tab, "rare")
    with Held(tab, SEARCH) as held:
        look_from(tab, 2)
        for reached in ("1,000,001", "2,000,001", "3,000,001"):
            held.pass_on()
            tab.sees(f"Searching… nothing found yet up to offset {reached}")
            assert [] == offsets(tab)
            assert not tab.page.get_by_text("No messages").is_visible()
        assert "from=3000002&" in held.pass_on()
        tab.page.locator(ROW).wait_for()

    assert [newest] == offsets(tab)
    assert not tab.page.get_by_role("button", name="Stop").is_visible()
    assert not tab.page.get_by_role("button", name="Newer messages").is_visible()
    assert "" == tab.text(".messages-told")


def test_an_older_message_is_searched_for_backwards(stage: Stage, tab: Tab) -> None:
    """In as many parts as the broker needs, each from where the last one ended.

    Searching backwards skips lost ids at no cost, and a million messages would take long to
    write, so the test fakes the broker's answers for empty parts of the log.
    """
    about = stage.api("GET", "/api/topics/rare")
    parts = {None: 3_000_000, 3_000_000: 2_000_000}

    def empty(route: "Route") -> None:
        query = parse_qs(urlsplit(route.request.url).query)
        reached = parts.get(int(query["from"][0]) if "from" in query else None)
        assert ["desc"] == query["order"]
        if reached is None:
            route.continue_()
        else:
            route.fulfill(json={"messages": [], "next": reached})

    without_following(tab, "rare")
    with Held(tab, SEARCH) as held:
        tab.button("Show")
        for reached in ("3,000,000", "2,000,000"):
            empty(held.wait())
            tab.sees(f"Searching… nothing found yet down to offset {reached}")
            assert [] == offsets(tab)
        given_up = held.wait()
        assert "from=2000000" in given_up.request.url
        with aborting(tab, given_up):
            tab.page.get_by_role("button", name="Stop").click()
            tab.sees("Stopped. Nothing was found down to offset 2,000,000.")
        tab.button("Older messages")
        assert "from=2000000" in held.pass_on()
        tab.page.locator(ROW).wait_for()

    assert [about["first_offset"]] == offsets(tab)
    assert about["last_offset"] > parts[None]
    assert "" == tab.text(".messages-told")
    assert not tab.page.get_by_role("button", name="Older messages").is_visible()


def test_the_oldest_message_of_a_late_topic_is_found(stage: Stage, tab: Tab) -> None:
    """However far it is from the start of the log."""
    tab.goto_topic("late", "?order=asc")
    tab.page.locator(ROW).wait_for()

    assert "No messages" not in tab.text(".messages-panel")


def test_a_search_that_finds_nothing_says_so_at_its_end(stage: Stage, tab: Tab) -> None:
    """Not before."""
    last = stage.api("GET", "/api/topics/rare")["last_offset"]
    tab.goto_topic("rare", f"?order=asc&from={last + 1}")
    tab.sees("No messages from this point on.")

    assert not tab.page.get_by_text("Searching").is_visible()


def test_a_search_can_be_stopped_and_resumed(stage: Stage, tab: Tab) -> None:
    """With the keyboard: the start button turns into the stop button."""
    tab.goto_topic("rare", "?order=asc&from=1")
    tab.page.locator(ROW).wait_for()
    with Held(tab, SEARCH) as held:
        tab.page.get_by_role("button", name="Newer messages").press("Enter")
        held.pass_on()
        tab.sees("Searching… nothing found yet up to offset 2,000,000")
        given_up = held.wait()
        with aborting(tab, given_up):
            tab.page.keyboard.press("Enter")
            tab.sees("Stopped. Nothing more was found up to offset 2,000,000.")
    assert not tab.page.get_by_text("Searching").is_visible()
    assert [1] == offsets(tab)

    tab.page.keyboard.press("Enter")
    tab.page.locator(ROW).nth(1).wait_for()
    assert "" == tab.text(".messages-told")
    assert 2 == len(offsets(tab))


@pytest.mark.parametrize("other", ["start", "page"])
def test_a_search_ends_when_the_user_moves_on(stage: Stage, tab: Tab, other: str) -> None:
    """To another start or another view, so that the broker does no useless work."""
    without_following(tab, "rare")
    with Held(tab, SEARCH) as held:
        look_from(tab, 2)
        held.pass_on()
        given_up = held.wait()
        with aborting(tab, given_up):
            if other == "start":
                tab.page.get_by_label("Start at").select_option("newest")
                assert "order=desc" in held.pass_on()
                tab.page.locator(ROW).nth(1).wait_for()
            else:
                tab.open("#/topics")
                tab.until("document.querySelector('tbody tr')")

    assert not tab.page.get_by_text("Searching").is_visible()


def test_a_rare_topic_can_be_followed(stage: Stage, tab: Tab) -> None:
    """A message far behind the last one appears like any other, without a gap."""
    tab.goto_topic("steady")
    tab.page.locator(ROW).wait_for()
    offset = stage.post("steady", "second")
    tab.until(f"document.querySelector('{ROW}').dataset.offset === '{offset}'")

    assert 0 == tab.page.locator(".messages-gap").count()


def replay(tab: Tab) -> None:
    tab.open("#/dead-letters/dlq.slow")
    tab.button("Replay all…")
    tab.button("Replay all")


def purge(tab: Tab) -> None:
    tab.open("#/dead-letters/dlq.slow")
    tab.button("Purge…")
    tab.page.get_by_label("Type the name to confirm").fill("dlq.slow")
    tab.page.get_by_role("dialog").get_by_role("button", name="Purge").click()


def verify(tab: Tab) -> None:
    tab.open("#/log")
    tab.button("Verify sealed segments")


def delete(tab: Tab) -> None:
    tab.open("#/queues?search=dlq.slow")
    tab.button("Delete…")
    tab.page.get_by_label("Type the name to confirm").fill("dlq.slow")
    tab.page.get_by_role("dialog").get_by_role("button", name="Delete queue").click()


LONG: Final = {
    "verify": (verify, "**/api/log/verify", "verified, no damage."),
    "replay": (replay, "**/api/dead-letters/replay", "0 letters replayed."),
    "purge": (purge, "**/api/queues/*/purge", "0 messages purged."),
    "delete": (delete, "**/api/queues/dlq.slow", "Queue deleted."),
}


@pytest.mark.parametrize("name", LONG)
def test_the_page_waits_for_long_work_to_end(
    stage: Stage, new_tab: Callable[..., Tab], name: str
) -> None:
    """The broker continues with it, so the page must not report a timeout."""
    begin, address, end = LONG[name]
    if name == "replay":
        stage.overfill("slow", waiting=1, dead=1)
        stage.api("POST", "/api/queues/dlq.slow/purge")
    tab = new_tab(stage.origin)
    tab.page.add_init_script(IMPATIENT)
    tab.open()
    with Held(tab, address) as work, Held(tab, "**/api/keys") as other:
        begin(tab)
        route = work.wait()
        tab.page.evaluate(ASK)
        other.wait()
        tab.page.evaluate("() => expire()")
        assert "the broker did not answer in time" == tab.page.evaluate("() => answer")
        assert route.request.failure is None
        route.continue_()

    tab.sees(end)
    assert not tab.page.get_by_text("did not answer in time").is_visible()
