"""A topic's page: its columns, the drawer to publish, links to messages, a queue's policy."""

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Final

import pytest

from tests.browser.stage import Stage, Tab

pytestmark = pytest.mark.slow

ROW: Final = "details.message"
LIT: Final = "nav a[aria-current]"


def test_columns_have_headings_and_the_payload_most_of_the_width(
    stage: Stage, tab: Tab
) -> None:
    """Each heading stands above its column."""
    stage.post("columns", {"n": 1})
    tab.goto_topic("columns")
    tab.page.locator(ROW).wait_for()
    heads = tab.page.locator(".message-heads > span")
    columns = tab.page.locator(f"{ROW} > summary > *")
    places = [
        [
            round(one["x"])
            for one in found.evaluate_all("(a) => a.map((e) => e.getBoundingClientRect())")
        ]
        for found in (heads, columns)
    ]
    payload = columns.last.bounding_box()
    assert payload is not None

    assert ["Offset", "Time (UTC)", "Origin", "Size", "Payload"] == heads.all_inner_texts()
    assert places[0] == places[1]
    assert payload["width"] > tab.page.locator(".messages").bounding_box()["width"] / 2  # type: ignore[index]  # it is visible


def test_the_drawer_is_out_of_the_way_and_keeps_what_was_typed(stage: Stage, tab: Tab) -> None:
    """Its button opens it, a click beside it closes it, and it links to what was published."""
    stage.post("drawn", 0)
    tab.goto_topic("drawn")
    form = tab.page.get_by_role("dialog")
    payload = tab.page.get_by_label("Payload", exact=True)
    assert 0 == form.count()
    tab.button("Publish…")
    payload.fill("[1]")
    tab.page.mouse.click(100, 400)
    form.wait_for(state="detached")
    tab.button("Publish…")
    assert "[1]" == payload.input_value()
    tab.button("Publish")
    tab.sees("Published at offset")
    tab.until(f"document.querySelectorAll('{ROW}').length === 2")
    form.get_by_role("link").click()
    tab.until("document.querySelector('h1').textContent.startsWith('Message ')")
    assert "[\n  1\n]" == tab.text(".payload-view pre")

    tab.open("#/topics")
    tab.button("Publish to a topic…")
    form.get_by_label("Topic").fill("drawn")
    tab.button("Continue")
    tab.page.get_by_role("dialog", name="Publish to drawn").wait_for()
    assert payload.evaluate("(e) => document.activeElement === e")


def test_every_message_has_an_address(stage: Stage, tab: Tab) -> None:
    """It can be copied, and opens that message, of a topic, a queue or a dead letter."""
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    stage.overfill("linked", waiting=1, dead=1)
    offset = stage.post("a/b?c#d", {"which": "this one"})
    stage.post("a/b?c#d", {"which": "another"})
    tab.open("#/topics/a%2Fb%3Fc%23d")
    row = tab.page.locator(f'{ROW}[data-offset="{offset}"]')
    row.locator("summary").click(position={"x": 400, "y": 10})
    row.get_by_role("button", name="Copy the link").click()
    row.get_by_role("button", name="Copied").wait_for()
    copied = str(tab.page.evaluate("() => navigator.clipboard.readText()"))
    tab.open(copied.removeprefix(f"{tab.origin}/"))
    tab.page.locator(".payload-view pre").wait_for()

    assert copied.endswith(f"/#/topics/a%2Fb%3Fc%23d/{offset}")
    assert f"Message {offset}" == tab.text("h1").split("\n")[0].strip()
    assert "this one" in tab.text(".payload-view pre")
    tab.page.get_by_role("link", name="Show in the list").click()
    tab.page.locator(ROW).nth(1).wait_for()
    assert str(offset) == tab.page.locator(ROW).first.get_attribute("data-offset")

    for place, lit in (
        ("queues/linked", "Queues"),
        ("dead-letters/dlq.linked", "Dead letters"),
    ):
        tab.open(f"#/{place}")
        tab.page.locator(f"{ROW} a.message-offset").click()
        tab.page.locator(".payload-view pre").wait_for()
        assert lit in tab.text(LIT)
    number = tab.page.url.rpartition("/")[2]
    tab.open("#/topics/dlq.linked/" + number)
    tab.page.locator(LIT, has_text="Queues").wait_for()
    tab.open("#/topics/a%2Fb%3Fc%23d/1")
    tab.sees("No such message")


def test_a_queue_shows_its_policy_above_its_messages(stage: Stage, tab: Tab) -> None:
    """Under Queues in the menu, whichever address led there."""
    stage.overfill("policed", waiting=4, dead=0)
    for route in ("#/topics/policed", "#/queues/policed"):
        tab.open(route)
        tab.page.locator(".queue-facts").wait_for()
        tab.page.locator(ROW).first.wait_for()
        tab.page.locator(".crumbs a", has_text="Queues").wait_for()
        facts, messages = (
            tab.page.locator(each).bounding_box() for each in (".queue-facts", ".messages")
        )
        assert facts is not None
        assert messages is not None

        assert (route, "Queues") == (route, tab.text(LIT))
        assert facts["y"] + facts["height"] < messages["y"]
        assert "4 of 4" in tab.text(".queue-facts")
    tab.goto_topic("columns")
    assert "Topics" == tab.text(LIT)


def test_the_page_of_a_queue_deletes_the_queue(stage: Stage, tab: Tab) -> None:
    """Its name must be typed; the broker would refuse to delete it as a topic."""
    stage.overfill("dropped", waiting=2, dead=0)
    tab.open("#/queues/dropped")
    tab.page.locator(".queue-facts").wait_for()
    tab.button("Delete…")
    dialog = tab.page.get_by_role("dialog", name="Delete this queue?")
    dialog.get_by_label("Type the name to confirm").fill("dropped")
    dialog.get_by_role("button", name="Delete queue").click()
    tab.sees("Queue deleted.")
    tab.until("document.querySelector('h1').textContent === 'Queues'")

    assert [] == stage.api("GET", "/api/queues?search=dropped")["queues"]


@pytest.mark.parametrize(
    ("options", "mark", "text"),
    [
        ({"overflowStrategy": "DropOldest"}, "drops messages", "drops the oldest one"),
        ({"overflowStrategy": "DropNewest"}, "refuses messages", "are refused"),
        ({"overflowStrategy": "BlockPublisher"}, "publishers wait", "publishers wait"),
        ({"overflowStrategy": "RedirectToDlq"}, "redirects messages", "become dead letters"),
        (
            {"overflowStrategy": "RedirectToDlq", "enableDeadLetterQueue": False},
            "refuses messages",
            "are refused",
        ),
        (
            {"deliveryMode": "FanOutWithoutAck", "maxQueueSize": None},
            "drops messages",
            "no consumer",
        ),
    ],
)
def test_a_queue_that_drops_or_refuses_has_a_warning(
    stage: Stage, tab: Tab, options: dict[str, object], mark: str, text: str
) -> None:
    """In the list and on its page, once there is no room; not before."""
    stage.api("POST", "/api/queues", {"name": "warned", "maxQueueSize": 2, **options})
    is_bounded = options.get("maxQueueSize", 2) is not None
    if is_bounded:
        stage.post("warned", 1)
        tab.open("#/queues/warned")
        tab.page.locator(".queue-facts").wait_for()
        assert 0 == tab.page.locator(".problem-box").count()
        stage.post("warned", 2)
    tab.open("#/queues?search=warned")
    tab.page.locator("tbody .badge.warn").wait_for()
    assert mark == tab.text("tbody .badge.warn")
    tab.open("#/queues/warned")
    tab.page.locator(".problem-box.warn", has_text=text).wait_for()
    stage.api("DELETE", "/api/queues/warned")


def test_every_time_is_in_one_named_zone(stage: Stage, new_tab: Callable[..., Tab]) -> None:
    """The browser's; the row, the tooltip, the envelope and the search agree."""
    offset = stage.post("zoned", 1)
    sent = stage.api("GET", f"/api/topics/zoned/messages/{offset}")["timestamp"]
    tab = new_tab(stage.origin, timezone_id="Asia/Tokyo")
    tab.goto_topic("zoned")
    tab.page.locator(f"{ROW} > summary").click(position={"x": 400, "y": 10})
    tab.page.locator(".payload-view pre").wait_for()
    there = datetime.fromisoformat(sent).astimezone(timezone(timedelta(hours=9)))
    here = f"{there:%Y-%m-%dT%H:%M:%S}"
    exact = f"{here.replace('T', ' ')}{sent[19:].rstrip('Z')} Asia/Tokyo"

    assert "Times in Asia/Tokyo" == tab.text("#zone")
    assert "Time (Asia/Tokyo)" == tab.text(".message-heads .message-time")
    assert exact == tab.page.locator(f"{ROW} time").get_attribute("title")
    assert exact in tab.text(".message-about")
    assert here[11:] == tab.text(f"{ROW} time")[:8]
    tab.page.get_by_label("Start at").select_option("time")
    tab.page.get_by_label("Time in Asia/Tokyo").fill(here)
    tab.button("Show")
    tab.until(f"document.querySelector('{ROW}')?.dataset.offset === '{offset}'")
