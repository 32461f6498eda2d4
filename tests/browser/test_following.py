"""A topic's page shows new messages, and does not disturb a user who is busy with it."""

from typing import Final

import pytest

from tests.browser.stage import Stage, Tab

pytestmark = pytest.mark.slow

ROW: Final = "details.message"
OFFER: Final = "Show new messages"
SHOWN_MAX: Final = 500


def offsets(tab: Tab) -> list[int]:
    found = tab.page.evaluate(
        f"() => [...document.querySelectorAll('{ROW}')].map((row) => row.dataset.offset)"
    )
    return [int(offset) for offset in found]


def until_first(tab: Tab, offset: int) -> None:
    """Wait until the message at *offset* is on top."""
    tab.until(f"document.querySelector('{ROW}')?.dataset.offset === '{offset}'")


def until_counted(tab: Tab, messages: int) -> None:
    """Wait until the page counts that many messages, apart from the list."""
    tab.until(
        f"document.querySelector('[data-number=messages]')?.textContent.startsWith('{messages}')"
    )


def test_new_messages_appear_on_top(stage: Stage, tab: Tab) -> None:
    """On the page of a topic, without a click."""
    stage.post("followed", "first")
    tab.goto_topic("followed")
    tab.page.locator(ROW).wait_for()
    assert tab.page.get_by_label("Follow", exact=True).is_checked()
    offset = stage.post("followed", "second")
    until_first(tab, offset)

    assert "second" in tab.text(ROW)


def test_a_topic_that_does_not_exist_yet_can_be_followed(stage: Stage, tab: Tab) -> None:
    """Until its first message arrives the page is empty, without an error."""
    tab.goto_topic("not.yet")
    tab.sees("This topic does not exist yet")
    tab.sees("No messages yet")
    assert 0 == tab.page.locator(".problem-box").count()
    first = stage.post("not.yet", "first")
    until_first(tab, first)
    second = stage.post("not.yet", "second")
    until_first(tab, second)

    assert [second, first] == offsets(tab)


def test_following_a_flood_shows_the_newest_messages(stage: Stage, tab: Tab) -> None:
    """The page leaves out messages that arrive too fast, and marks the gap."""
    stage.post("flooded", "first")
    tab.goto_topic("flooded")
    tab.page.locator(ROW).first.wait_for()
    with stage.client("blip") as client:
        client.publish_many("flooded", [b"%d" % n for n in range(400)])
    offset = stage.post("flooded", "last")
    until_first(tab, offset)

    assert tab.page.locator(".messages-gap").count() == 1
    assert tab.page.locator(ROW).count() < 400


def test_an_open_message_stays_where_it_is(stage: Stage, tab: Tab) -> None:
    """New ones appear when the user asks for them, or closes the open one."""
    first = stage.post("opened", {"n": 1})
    tab.goto_topic("opened")
    summary = tab.page.locator(f'{ROW}[data-offset="{first}"] > summary')
    summary.click()
    second = stage.post("opened", {"n": 2})
    offer = tab.page.get_by_role("button", name=OFFER)
    offer.wait_for()
    assert [first] == offsets(tab)

    offer.press("Enter")
    until_first(tab, second)
    tab.until("document.activeElement.matches('summary')")
    assert not offer.is_visible()
    assert tab.page.locator(f'{ROW}[data-offset="{first}"][open]').is_visible()

    third = stage.post("opened", {"n": 3})
    offer.wait_for()
    assert [second, first] == offsets(tab)
    summary.click()
    until_first(tab, third)
    assert not offer.is_visible()


def test_a_user_who_has_scrolled_down_is_not_disturbed(stage: Stage, tab: Tab) -> None:
    """Nothing moves until the user scrolls back to the top."""
    for n in range(60):
        stage.post("scrolled", n)
    tab.goto_topic("scrolled")
    tab.page.locator(ROW).nth(49).wait_for()
    before = offsets(tab)
    tab.page.get_by_role("button", name="Older messages").scroll_into_view_if_needed()
    offset = stage.post("scrolled", "new")
    tab.page.get_by_role("button", name=OFFER).wait_for()
    assert before == offsets(tab)

    tab.page.evaluate("() => scrollTo(0, 0)")
    until_first(tab, offset)


@pytest.mark.parametrize("choice", ["oldest", "off"])
def test_a_list_that_is_not_followed_stays_as_it_is(
    stage: Stage, tab: Tab, choice: str
) -> None:
    """With another start or without Follow, which keeps its state."""
    topic = f"elsewhere.{choice}"
    first = stage.post(topic, 1)
    tab.goto_topic(topic)
    tab.page.locator(ROW).wait_for()
    if choice == "off":
        tab.page.get_by_label("Follow", exact=True).uncheck()
    else:
        tab.page.get_by_label("Start at").select_option("oldest")
        assert not tab.page.get_by_label("Follow", exact=True).is_visible()
    second = stage.post(topic, 2)
    until_counted(tab, 2)
    assert [first] == offsets(tab)

    tab.page.get_by_label("Start at").select_option("oldest")
    tab.page.get_by_label("Start at").select_option("newest")
    until_first(tab, second)
    assert (choice == "oldest") == tab.page.get_by_label("Follow", exact=True).is_checked()


def test_messages_that_following_drops_can_be_loaded_again(stage: Stage, tab: Tab) -> None:
    """A page that is open for days stays short, without gaps."""
    with stage.client("blip") as client:
        client.publish_many("long", [b"%d" % n for n in range(SHOWN_MAX + 10)])
    tab.goto_topic("long")
    for n in range(50, SHOWN_MAX + 1, 50):
        tab.until(f"document.querySelectorAll('{ROW}').length === {n}")
        tab.button("Older messages")
    tab.until(f"document.querySelectorAll('{ROW}').length === {SHOWN_MAX + 10}")
    all_of_it = offsets(tab)
    tab.page.evaluate("() => scrollTo(0, 0)")
    newest = stage.post("long", "new")
    until_first(tab, newest)
    assert [newest, *all_of_it[: SHOWN_MAX - 1]] == offsets(tab)

    tab.button("Older messages")
    tab.until(f"document.querySelectorAll('{ROW}').length === {SHOWN_MAX + 11}")
    assert [newest, *all_of_it] == offsets(tab)
