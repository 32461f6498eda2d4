"""Who gets in, what the page offers them, and what it says while the broker is away."""

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
READER: Final = "the-key-of-somebody-else"
LISTENER: Final = "the-key-of-somebody-who-only-reads"


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


def test_without_a_key_there_is_nothing_but_the_question(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """No name and no number of the broker is shown to whoever has no key."""
    tab = new_tab(keyed.origin)
    tab.open("#/topics")
    tab.page.get_by_label("API key").wait_for()

    assert "Sign in" == tab.text("h1")
    assert not tab.page.locator("nav.side").is_visible()
    assert [] == [a.url for a in tab.answers if a.ok and "/api/topics" in a.url]


def test_a_key_that_is_nobodys_is_refused(keyed: Stage, new_tab: Callable[..., Tab]) -> None:
    """One line says so, nothing is kept, and the next try is possible."""
    tab = new_tab(keyed.origin)
    tab.open()
    for key, told in (
        ("wrong", "Unknown API key."),
        ("two words", "A key holds only printable ASCII"),
        ("dev-key", "Unknown API key."),
        ("ключ", "A key holds only printable ASCII"),
        ("", "Enter an API key."),
    ):
        sign_in(tab, key)
        tab.page.locator("#sign-in-problem", has_text=told).wait_for()

        assert "Sign in" == tab.text("h1")
        assert tab.page.evaluate("() => sessionStorage.getItem('braidmq.key')") is None
    sign_in(tab, ADMIN)
    tab.until("document.querySelector('h1').textContent === 'Overview'")


def test_a_good_key_lasts_for_the_tab_until_sign_out(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """It survives a reload, is in no other place than this tab, and goes when told to."""
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


def test_a_key_sees_and_is_offered_what_it_may(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """Topics of others are not there, and neither are an administrator's buttons."""
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
    tab.sees("This key cannot publish to the topic")
    assert 0 == tab.page.get_by_label("Payload", exact=True).count()


def test_a_key_that_only_reads_is_told_so_when_it_publishes(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """In words about the key; what was typed stays."""
    tab = new_tab(keyed.origin)
    tab.open("#/topics/open.news")
    sign_in(tab, LISTENER)
    tab.page.locator("details.message").wait_for()
    tab.page.get_by_label("Payload", exact=True).fill("[1]")
    tab.button("Publish")
    tab.sees("This key cannot publish to the topic: it lacks the publish permission.")

    assert "[1]" == tab.page.get_by_label("Payload", exact=True).input_value()


def test_a_key_that_is_taken_back_ends_the_visit(
    keyed: Stage, new_tab: Callable[..., Tab]
) -> None:
    """Also on a page whose own questions are answered: the live numbers are refused."""
    tab = new_tab(keyed.origin)
    tab.open("#/keys")
    sign_in(tab, ADMIN)
    tab.until("document.querySelector('h1').textContent === 'Users and keys'")
    refusal = json.dumps({"error": "an API key is needed"})
    for path in ("session", "events"):
        tab.page.route(f"**/api/{path}", lambda route: route.fulfill(status=401, body=refusal))
    # As if the broker had come back with other keys: the stream breaks and is asked for again.
    tab.page.evaluate(
        """async () => {
          const live = await import("/static/live.js");
          live.stopLive();
          live.startLive();
        }"""
    )
    tab.until("document.querySelector('h1').textContent === 'Sign in'")

    assert tab.page.evaluate("() => sessionStorage.getItem('braidmq.key')") is None


def test_without_its_broker_the_page_says_so_and_comes_back(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    """A view that was never seen waits for it; whoever signs out sees nothing any more."""
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


def test_a_development_broker_is_left_and_found_again(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    """Signed out is signed out; and a restart is told, and survived without a reload."""
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

    # While nobody listened, the browser wrote that down; the page itself said nothing.
    assert [] == [c for c in tab.complaints if "net::ERR_" not in c]
    tab.complaints.clear()
