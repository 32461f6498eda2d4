"""Signing in, what the page offers to each key, and what it shows without a broker."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from tests.browser.stage import Stage, Tab, staged

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow

ADMIN: Final = "the-key-of-an-administrator"
READER: Final = "the-key-of-another-user"
LISTENER: Final = "the-key-of-a-reader"


def _section(
    name: str, key: str, patterns: str, *, publish: str | None = None, admin: bool = False
) -> str:
    digest = hashlib.sha256(key.encode()).hexdigest()
    return (
        f'[[auth.keys]]\nname = "{name}"\nhash = "sha256:{digest}"\n'
        f"publish = {publish or patterns}\nsubscribe = {patterns}\n"
        f"admin = {str(admin).lower()}\n"
    )


CONFIG: Final = (
    _section("ada", ADMIN, '["*"]', admin=True)
    + _section("bob", READER, '["open.*"]')
    + _section("eve", LISTENER, '["open.*"]', publish="[]")
)


@pytest.fixture(scope="module")
def keyed(chromium: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("keyed")
    with staged(directory, config=CONFIG, dev=False, key=ADMIN) as stage:
        stage.post("open.news", {"n": 1})
        stage.post("closed.news", {"n": 2})
        yield stage


def sign_in(tab: Tab, key: str) -> None:
    tab.page.get_by_label("API key").fill(key)
    tab.button("Sign in")


def test_without_a_key_the_page_only_asks_for_one(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """It shows no names and no numbers of the broker."""
    tab = new_tab(keyed.origin)
    tab.open("#/topics")
    tab.page.get_by_label("API key").wait_for()

    assert "Sign in" == tab.text("h1")
    assert not tab.page.locator("nav.side").is_visible()
    assert [] == [a.url for a in tab.answers if a.ok and "/api/topics" in a.url]


def test_an_unknown_key_is_refused(keyed: Stage, new_tab: Callable[..., Tab]) -> None:
    """One line says so; the page does not store the key, and the user can try again."""
    tab = new_tab(keyed.origin)
    tab.open()
    for key, problem in (
        ("wrong", "Unknown API key."),
        ("two words", "A key holds only printable ASCII"),
        ("dev-key", "Unknown API key."),
        ("ключ", "A key holds only printable ASCII"),
        ("", "Enter an API key."),
    ):
        sign_in(tab, key)
        tab.page.locator("#sign-in-problem", has_text=problem).wait_for()

        assert "Sign in" == tab.text("h1")
        assert tab.page.evaluate("() => sessionStorage.getItem('braidmq.key')") is None
    sign_in(tab, ADMIN)
    tab.until("document.querySelector('h1').textContent === 'Overview'")


def test_a_valid_key_is_kept_in_the_tab_until_sign_out(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """It survives a reload, and is stored nowhere but in this tab."""
    tab = new_tab(keyed.origin)
    tab.open()
    sign_in(tab, ADMIN)
    tab.until("document.getElementById('live').textContent === 'Live'")
    tab.page.reload()
    tab.until("document.querySelector('h1')?.textContent === 'Overview'")
    assert ADMIN not in str(tab.page.evaluate("() => JSON.stringify(localStorage)"))
    assert [] == tab.page.context.cookies()

    tab.button("Sign out")
    tab.page.get_by_label("API key").wait_for()
    assert tab.page.evaluate("() => sessionStorage.getItem('braidmq.key')") is None
    tab.page.reload()
    tab.page.get_by_label("API key").wait_for()


def test_a_key_sees_only_what_it_may_use(keyed: Stage, new_tab: Callable[..., Tab]) -> None:
    """Neither other topics nor an administrator's buttons."""
    tab = new_tab(keyed.origin)
    tab.open("#/topics")
    sign_in(tab, READER)
    tab.page.locator("tbody tr").first.wait_for()
    assert ["open.news"] == tab.page.locator("tbody td.wide").all_inner_texts()

    tab.open("#/queues")
    tab.sees("No queues yet")
    assert 0 == tab.page.get_by_role("button", name="New queue…").count()
    tab.open("#/keys")
    tab.sees("Administrators only")
    tab.goto_topic("closed.news")
    tab.sees("This key cannot read the topic")
    tab.button("Publish…")
    tab.sees("This key cannot publish to the topic")
    assert 0 == tab.page.get_by_label("Payload", exact=True).count()


def test_publishing_with_a_read_only_key_shows_an_error(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """The error names the missing permission; the input stays."""
    tab = new_tab(keyed.origin)
    tab.open("#/topics/open.news")
    sign_in(tab, LISTENER)
    tab.page.locator("details.message").wait_for()
    tab.button("Publish…")
    tab.page.get_by_label("Payload", exact=True).fill("[1]")
    tab.button("Publish")
    tab.sees("This key cannot publish to the topic: it lacks the publish permission.")

    assert "[1]" == tab.page.get_by_label("Payload", exact=True).input_value()


def test_a_revoked_key_ends_the_session(keyed: Stage, new_tab: Callable[..., Tab]) -> None:
    """Even on a view whose own requests succeed, as the live stream is refused."""
    tab = new_tab(keyed.origin)
    tab.open("#/keys")
    sign_in(tab, ADMIN)
    tab.until("document.querySelector('h1').textContent === 'Users and keys'")
    refusal = json.dumps({"error": "an API key is needed"})
    for path in ("session", "events"):
        tab.page.route(f"**/api/{path}", lambda route: route.fulfill(status=401, body=refusal))
    # As if the broker had restarted with other keys: the page opens the stream again.
    tab.page.evaluate(
        """async () => {
          const live = await import("/static/live.js");
          live.stopLive();
          live.startLive();
        }"""
    )
    tab.until("document.querySelector('h1').textContent === 'Sign in'")

    assert tab.page.evaluate("() => sessionStorage.getItem('braidmq.key')") is None


def test_the_page_reports_a_lost_broker_and_recovers(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    """A new view waits for the broker; after signing out nothing is visible."""
    with staged(tmp_path) as first:
        tab, other = new_tab(first.origin), new_tab(first.origin)
        for one in (tab, other):
            one.open()
            one.until("document.querySelector('[data-number=in]')")
        first.stop()
        tab.page.get_by_role("link", name="Queues").click()
        tab.sees("The broker cannot be reached.")
        tab.sees("Retrying automatically.")
        other.button("Sign out")
        other.page.get_by_label("API key").wait_for()
        assert 0 == other.page.locator(".tiles").count()
    with staged(tmp_path, "--http", first.facts["http"]):
        tab.sees("No queues yet")
        other.button("Use the development key")
        other.until("document.getElementById('live').textContent === 'Live'")
        for one in (tab, other):
            one.page.close()
            assert [] == [c for c in one.complaints if "net::ERR_" not in c]
            one.complaints.clear()


def test_sign_out_and_restart_with_a_development_broker(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    """A reload does not sign in again; the page survives a restart without one."""
    with staged(tmp_path) as first:
        tab = new_tab(first.origin)
        tab.open()
        tab.until("document.getElementById('live').textContent === 'Live'")
        tab.button("Sign out")
        tab.page.get_by_label("API key").wait_for()
        tab.page.reload()
        tab.button("Use the development key")
        tab.until("document.getElementById('live').textContent === 'Live'")
        first.stop()
        tab.until("document.getElementById('live').textContent === 'Reconnecting…'")
    with staged(tmp_path, "--http", first.facts["http"]):
        tab.until("document.getElementById('live').textContent === 'Live'")
        tab.page.close()

    # Failed connections are in the browser's console; the page itself has no errors.
    assert [] == [c for c in tab.complaints if "net::ERR_" not in c]
    tab.complaints.clear()
