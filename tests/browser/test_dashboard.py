"""The dashboard in a real browser against a real broker: what operators see and do."""

import json
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import nacl.public
import pytest

from tests.browser.stage import Stage, Tab, staged

pytestmark = pytest.mark.slow

ROW: Final = "details.message"


def test_a_development_broker_signs_in_by_itself_and_is_live(tab: Tab) -> None:
    """The page opens without asking for a key."""
    tab.open()
    tab.until("document.getElementById('live').textContent === 'Live'")

    assert "Overview" == tab.text("h1")
    assert "dev" == tab.text("#who bdi")


def test_repeated_pauses_leave_no_listeners_behind(tab: Tab) -> None:
    """A page may be open for days, so nothing may pile up each second."""
    tab.open()
    left = tab.page.evaluate(
        """async () => {
          const { pause } = await import("/static/dom.js");
          const { signal } = new AbortController();
          let left = 0;
          for (const [name, change] of [["addEventListener", 1], ["removeEventListener", -1]]) {
            const act = signal[name];
            signal[name] = (...given) => { left += change; act.apply(signal, given); };
          }
          for (let n = 0; n < 5; n += 1) await pause(1, signal);
          return left;
        }"""
    )

    assert 0 == left


def test_a_message_published_on_the_page_shows_up_there(stage: Stage, tab: Tab) -> None:
    """Form, log and list agree to the byte: nothing rewrites what was typed."""
    typed = '{ "n": 12345678901234567890,\n  "price": 1.10 }'
    tab.goto_topic("from.the.page")
    tab.sees("This topic does not exist yet")
    tab.button("Publish…")
    tab.page.get_by_label("Payload", exact=True).fill(typed)
    tab.button("Add header")
    tab.page.get_by_label("Header name").fill("trace")
    tab.page.get_by_label("Header value").fill("abc")
    tab.button("Publish")
    tab.sees("Published at offset")
    tab.page.keyboard.press("Escape")
    tab.page.locator(f"{ROW} > summary").first.click()

    pretty = tab.text(".payload-view pre")
    tab.button("Text")
    tab.until("document.querySelector('.payload-view pre').textContent.length > 1")
    as_sent = tab.page.locator(".payload-view pre").text_content()
    headers = tab.text(".message-about .facts")
    with stage.client("blip") as client, client.subscribe("from.the.page") as messages:
        client.publish("from.the.page", b"end")
        (end,) = messages.fetch(max=1)
    assert b"end" == end.payload
    assert '{\n  "n": 12345678901234567890,\n  "price": 1.10\n}' == pretty
    assert typed == as_sent
    assert ["trace", "abc"] == headers.split("\n")


def test_invalid_json_is_reported_before_it_is_sent(stage: Stage, tab: Tab) -> None:
    """The form says why, and publishes nothing."""
    tab.goto_topic("not.json")
    tab.button("Publish…")
    tab.page.get_by_label("Payload", exact=True).fill("{oops")
    tab.button("Publish")
    tab.sees("Invalid JSON")

    assert [] == stage.api("GET", "/api/topics?search=not.json")["topics"]


def test_messages_can_be_browsed_from_any_offset_and_time(stage: Stage, tab: Tab) -> None:
    """From an offset, from a time, oldest first and newest first, page by page."""
    with stage.client("blip") as client:
        for n in range(60):
            client.publish("browsed", b"%d" % n)
    page = stage.api("GET", "/api/topics/browsed/messages?limit=1000")
    offsets = [message["offset"] for message in page["messages"]]

    def first() -> str:
        return str(tab.page.locator(ROW).first.get_attribute("data-offset"))

    tab.goto_topic("browsed")
    tab.page.locator(ROW).first.wait_for()
    assert str(offsets[-1]) == first()
    tab.button("Older messages")
    tab.until(f"document.querySelectorAll('{ROW}').length === 60")

    tab.page.get_by_label("Start at").select_option("oldest")
    tab.until(f"document.querySelector('{ROW}').dataset.offset === '{offsets[0]}'")

    tab.page.get_by_label("Start at").select_option("offset")
    tab.page.get_by_label("Offset").fill(str(offsets[40]))
    tab.button("Show")
    tab.until(f"document.querySelector('{ROW}').dataset.offset === '{offsets[40]}'")
    assert 20 == tab.page.locator(ROW).count()
    assert f"from={offsets[40]}" in tab.page.url

    tab.page.get_by_label("Start at").select_option("time")
    tab.page.get_by_label("Time in UTC").fill("2020-01-01T00:00:00")
    tab.button("Show")
    tab.until(f"document.querySelector('{ROW}').dataset.offset === '{offsets[0]}'")
    tomorrow = datetime.now(UTC).year + 1
    tab.page.get_by_label("Time in UTC").fill(f"{tomorrow}-01-01T00:00:00")
    tab.button("Show")
    tab.sees("No messages from this point on.")


def test_payloads_are_shown_in_every_suitable_form(stage: Stage, tab: Tab) -> None:
    """Bytes as hex, text with its lines, and sealed payloads with sender and recipient."""
    recipient = nacl.public.PrivateKey.generate().public_key.encode()
    with stage.client("blip") as client:
        client.publish("views", b"\x00\xff\x10A")
        client.publish("views", b"two\nlines")
    with stage.client("qumbed") as client:
        client.publish("views", b'{"t": 21.5}', recipient=recipient)
    tab.goto_topic("views")
    rows = tab.page.locator(ROW)
    rows.nth(2).wait_for()
    for n in range(3):
        rows.nth(n).locator("summary").click()
        rows.nth(n).locator(".payload-view > *").first.wait_for()

    def ways(n: int) -> list[str]:
        return rows.nth(n).locator(".segmented button").all_inner_texts()

    assert [["Sealed", "Hex"], ["Text", "Hex"], ["Hex"]] == [ways(n) for n in range(3)]
    assert "end-to-end encrypted" in rows.nth(0).locator(".sealed").inner_text()
    assert "senderPublicKey" in rows.nth(0).locator(".sealed").inner_text()
    tab.until(f"document.querySelectorAll('{ROW} pre')[1].textContent.startsWith('000000')")
    assert "two\nlines" == rows.nth(1).locator("pre").inner_text()
    assert "00 ff 10 41" in rows.nth(2).locator("pre").inner_text()


def test_topics_can_be_searched_sorted_and_paged(stage: Stage, tab: Tab) -> None:
    """The broker does the work, and the URL keeps the state."""
    with stage.client("blip") as client:
        for n in range(60):
            client.publish(f"bulk.{n:02}", b"x")
        client.publish("bulk.37", b"y")
        client.publish("another", b"x")  # not found by the search
    tab.open("#/topics")
    tab.page.get_by_label("Search topics").fill("BULK.")
    tab.sees("1\N{EN DASH}50 of 60 topics")
    tab.button("Next")
    tab.sees("51\N{EN DASH}60 of 60 topics")
    assert "bulk.50" in tab.text("tbody tr")
    tab.page.reload()
    tab.sees("51\N{EN DASH}60 of 60 topics")
    tab.button("Previous")
    tab.sees("1\N{EN DASH}50 of 60 topics")
    tab.open("#/topics?search=BULK.&after=bulk.49&skipped=many")  # typed by hand
    tab.sees("10 of 60 topics")
    tab.page.get_by_label("Search topics").fill("bulk.37")
    tab.until("document.querySelector('.list-summary').textContent === '1 topic'")
    tab.page.get_by_label("Search topics").fill("BULK.")
    tab.sees("1\N{EN DASH}50 of 60 topics")
    tab.page.locator("th button", has_text="Messages").click()
    tab.until("document.querySelector('tbody tr').textContent.includes('bulk.37')")
    assert "descending" == tab.page.locator("th", has_text="Messages").get_attribute(
        "aria-sort"
    )
    assert "sort=messages" in tab.page.url
    tab.page.get_by_label("Search topics").fill("nothing is called this")
    tab.sees("No matches.")


def test_queues_can_be_sorted_by_waiting_messages(stage: Stage, tab: Tab) -> None:
    """The fullest queue first."""
    for name, count in (("sorted.a", 1), ("sorted.b", 3), ("sorted.c", 2)):
        stage.api("POST", "/api/queues", {"name": name})
        for n in range(count):
            stage.post(name, n)
    tab.open("#/queues?search=sorted.")
    tab.until("document.querySelectorAll('tbody tr').length === 3")
    assert "sorted.a" in tab.text("tbody tr")
    tab.page.locator("th button", has_text="Waiting").click()
    tab.until("document.querySelector('tbody tr').textContent.includes('sorted.b')")

    names = tab.page.locator("tbody td.wide").all_inner_texts()
    assert ["sorted.b", "sorted.c", "sorted.a"] == names


def test_dead_letters_show_their_reason_and_can_be_replayed(stage: Stage, tab: Tab) -> None:
    """One by one or all at once, to their original queue."""
    stage.overfill("mail", waiting=1, dead=3)
    tab.open("#/dead-letters")
    tab.page.get_by_role("link", name="dlq.mail").click()
    tab.page.locator(ROW).nth(2).wait_for()
    assert "queue full" in tab.text(f"{ROW} > summary")

    stage.api("POST", "/api/queues/mail/purge")  # makes room again
    tab.page.locator(f"{ROW} > summary").nth(1).click()
    replayed = tab.page.locator(ROW).nth(1).get_attribute("data-offset")
    tab.button("Replay this letter")
    tab.sees("Letter replayed.")
    tab.until(f"document.querySelectorAll('{ROW}').length === 2")

    assert 0 == tab.page.locator(f'{ROW}[data-offset="{replayed}"]').count()
    assert (1, 2) == (
        stage.queue("mail")["messageCount"],
        stage.queue("dlq.mail")["messageCount"],
    )

    stage.api("DELETE", "/api/queues/mail")
    stage.api("POST", "/api/queues", {"name": "mail"})
    tab.button("Replay all…")
    tab.button("Replay all")
    tab.sees("2 letters replayed.")
    tab.sees("No dead letters")
    assert 2 == stage.queue("mail")["messageCount"]


def test_a_purge_must_be_confirmed_with_the_name(stage: Stage, tab: Tab) -> None:
    """The page refuses a wrong name, and nothing is lost."""
    stage.overfill("parcels", waiting=1, dead=2)
    tab.open("#/dead-letters/dlq.parcels")
    tab.page.locator(ROW).first.wait_for()
    tab.button("Purge…")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Type the name to confirm").fill("dlq.parcel")
    dialog.get_by_role("button", name="Purge").click()
    tab.sees("The name does not match. Nothing was changed.")
    assert 2 == stage.queue("dlq.parcels")["messageCount"]

    dialog.get_by_label("Type the name to confirm").fill("dlq.parcels")
    dialog.get_by_role("button", name="Purge").click()
    tab.sees("2 messages purged.")
    assert 0 == stage.queue("dlq.parcels")["messageCount"]


def test_a_queue_can_be_created_and_deleted_on_the_page(stage: Stage, tab: Tab) -> None:
    """The form shows what is wrong; the list shows the new queue."""
    tab.open("#/queues")
    tab.button("New queue…")
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_role("button", name="Create queue").click()
    tab.sees("Enter a name.")
    dialog.get_by_label("Name").fill("invoices")
    dialog.get_by_label("Delivery").select_option("FanOutWithAck")
    dialog.get_by_label("Maximum waiting").fill("10")
    dialog.get_by_role("button", name="Create queue").click()
    tab.page.get_by_role("link", name="invoices", exact=True).wait_for()
    made = stage.queue("invoices")
    assert ("FanOutWithAck", 10) == (made["deliveryMode"], made["maxQueueSize"])

    row = tab.page.locator('tr[data-key="invoices"]')
    row.get_by_role("button", name="Delete…").click()
    dialog.get_by_label("Type the name to confirm").fill("invoices")
    dialog.get_by_role("button", name="Delete queue").click()
    tab.sees("Queue deleted.")
    row.wait_for(state="detached")


def test_subscriptions_and_connections_are_shown_and_can_be_closed(
    stage: Stage, tab: Tab
) -> None:
    """A subscription shows its lag; an administrator may close its connection."""
    with stage.client("blip") as client, client.subscribe("watched") as messages:
        for n in range(5):
            client.publish("watched", b"%d" % n)
        tab.open("#/subscriptions?search=watched")
        tab.page.locator("tbody tr").wait_for()
        cells = tab.page.locator("tbody td")
        # Topic, strand, principal, QoS, lag, in flight.
        assert ["watched", "Blip", "dev", "1", "5", "0"] == cells.all_inner_texts()[:6]
        for message in messages.fetch(max=2):
            message.ack()
        tab.until("document.querySelectorAll('tbody td')[4].innerText === '3'")

        number = tab.page.locator("tbody td").last.inner_text()
        tab.page.locator("tbody td").last.get_by_role("link").click()
        tab.page.locator(f'tr[data-key="{number}"]').wait_for()
        assert f"Connection {number}" == tab.text("h1")
        tab.button("Close")
        tab.button("Close connection")
        tab.sees("Connection closed.")
        tab.sees("Not connected")
        assert messages.topic == "watched"


def test_connections_of_one_client_are_one_row(stage: Stage, tab: Tab) -> None:
    """With its name and strands; the row leads to each of its connections."""
    with (
        stage.client("blip") as blip,
        stage.client("vibe") as vibe,
        blip.subscribe("of.a.client"),
        vibe.subscribe("of.a.client.too"),
    ):
        tab.open("#/connections")
        row = tab.page.locator('tr[data-key="dev@127.0.0.1"]')
        row.wait_for()
        name, address, by_strand = row.locator("td").all_inner_texts()[:3]
        counted = by_strand.split()
        assert ("dev", "127.0.0.1", ["Blip", "Vibe"]) == (name, address, counted[::2])
        assert 1 == tab.page.locator("tbody tr", has_text="dev").count()
        connections = sum(int(number) for number in counted[1::2])

        row.get_by_role("link").click()
        tab.until("document.querySelector('h1').textContent === 'dev at 127.0.0.1'")
        tab.sees(f"{connections} connections")
        strands = tab.page.locator("tbody td:nth-child(2)").all_inner_texts()
        assert {"Blip", "Vibe"} == set(strands)
        assert connections == len(strands)
        assert "Connections" == tab.text("nav a[aria-current]")


def test_readers_can_be_sorted_by_lag(stage: Stage, tab: Tab) -> None:
    """The slowest first, the address keeps it, and a second click undoes it."""

    def lags() -> list[str]:
        return tab.page.locator("tbody td:nth-child(5)").all_inner_texts()

    with stage.client("blip") as client, ExitStack() as subscribed:
        for topic, waiting in (("lags.a", 1), ("lags.b", 3), ("lags.c", 2)):
            subscribed.enter_context(client.subscribe(topic))
            for _ in range(waiting):
                client.publish(topic, b"x")
        tab.open("#/subscriptions?search=lags.")
        tab.until("document.querySelectorAll('tbody tr').length === 3")
        assert ["1", "3", "2"] == lags()
        tab.page.locator("th button", has_text="Lag").click()
        tab.until("document.querySelector('tbody tr').textContent.includes('lags.b')")
        assert ["3", "2", "1"] == lags()
        heading = tab.page.locator("th", has_text="Lag")
        assert "descending" == heading.get_attribute("aria-sort")
        assert "sort=lag" in tab.page.url
        tab.page.locator("th button", has_text="Lag").click()
        tab.until("document.querySelector('tbody tr').textContent.includes('lags.a')")
        assert None is heading.get_attribute("aria-sort")


def test_overview_topic_and_list_count_the_same_subscriptions(stage: Stage, tab: Tab) -> None:
    """In the same words: a consumer of a queue is a subscription everywhere."""
    stage.api("POST", "/api/queues", {"name": "counted"})
    with (
        stage.client("blip") as blip,
        stage.client("vibe") as vibe,
        blip.subscribe("counted.too"),
        vibe.subscribe("counted"),
    ):
        tab.open("#/subscriptions")
        tab.until("document.querySelector('.list-summary').textContent.includes(' sub')")
        listed = tab.text(".list-summary")
        tab.open("#/overview")
        tab.page.locator(".tile small", has_text=listed).wait_for()
        tab.goto_topic("counted")
        tile = tab.page.locator(".tile", has_text="Subscriptions")
        tile.get_by_text("1", exact=True).wait_for()
        tile.locator("a").click()
        tab.until("document.querySelectorAll('tbody tr').length === 2")


def test_the_log_shows_its_segments_and_can_be_verified(stage: Stage, tab: Tab) -> None:
    """Ids, state and, on demand, integrity."""
    with stage.client("blip") as client:
        for _ in range(6):
            client.publish("sealing", bytes(40_000))
    segments = stage.api("GET", "/api/log")["segments"]
    sealed = len(segments) - 1
    assert sealed >= 2

    def column(n: int) -> list[str]:
        return tab.page.locator(f"tbody td:nth-child({n})").all_inner_texts()

    tab.open("#/log")
    tab.page.locator("tbody tr").first.wait_for()
    ids = [f"{s['first_id']:,} – {s['last_id']:,}" for s in segments]  # noqa: RUF001 - the page's dash
    assert [segment["name"] for segment in segments] == column(1)
    assert ids[:sealed] == column(2)[:sealed]
    assert ["sealed"] * sealed + ["open"] == column(4)
    assert ["not checked"] * sealed + ["being written"] == column(5)
    tab.button("Verify sealed segments")
    tab.sees(f"{sealed} sealed segments verified, no damage.")
    assert ["verified"] * sealed + ["being written"] == column(5)


def test_keys_are_listed_without_secrets(tab: Tab) -> None:
    """Names and patterns only."""
    tab.open("#/keys")
    tab.page.locator("tbody tr").first.wait_for()

    assert "sha256" not in tab.text("main")
    assert "dev" in tab.text("tbody tr")


def test_an_empty_list_says_what_to_do_next(tab: Tab) -> None:
    """With a command and a button that copies it."""
    tab.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    tab.open("#/cursors")
    tab.sees("No Spark cursors")
    tab.page.get_by_role("button", name="Copy the command").click()
    tab.page.get_by_role("button", name="Copied").wait_for()

    copied = tab.page.evaluate("() => navigator.clipboard.readText()")
    words = shlex.split(str(copied))
    assert ["braidmq", "pipeline", "archive"] == words[:3]
    assert {"--group", "--api-key", "dev-key"} <= set(words)


def test_an_empty_broker_says_what_to_do_first(
    tmp_path: Path, new_tab: Callable[..., Tab]
) -> None:
    """In an order that works: a subscription gets only later messages."""
    with staged(tmp_path) as stage:
        tab = new_tab(stage.origin)
        tab.open()
        tab.page.locator(".first-steps code").nth(1).wait_for()
        steps = [
            shlex.split(c) for c in tab.page.locator(".first-steps code").all_inner_texts()
        ]
        assert [["subscribe", "hello"], ["publish", "hello"]] == [words[1:3] for words in steps]
        assert f"blip://dev-key@{stage.facts['blip']}" == steps[0][-1] == steps[1][-1]

        stage.post("hello", {"n": 1})
        tab.page.locator(".first-steps").wait_for(state="detached")
        tab.page.close()


def test_an_unknown_address_shows_page_not_found(tab: Tab) -> None:
    """The page links back to the overview; it is never blank."""
    tab.open("#/nonsense/1")
    assert "Page not found" == tab.text("h1")
    tab.page.get_by_role("link", name="Go to the overview").click()
    tab.until("document.querySelector('h1').textContent === 'Overview'")


def test_a_list_stays_while_the_broker_does_not_answer(stage: Stage, tab: Tab) -> None:
    """The rows stay, with a note, and are updated afterwards."""
    stage.post("outlasting", 1)
    tab.open("#/topics?search=outlasting")
    tab.page.locator("tbody tr").wait_for()
    tab.page.route("**/api/topics?*", lambda route: route.abort())
    tab.sees("The broker cannot be reached.")
    assert "outlasting" in tab.text("tbody tr")

    tab.page.unroute("**/api/topics?*")
    tab.button("Try again")
    tab.page.locator(".list .problem-box").wait_for(state="detached")
    assert "outlasting" in tab.text("tbody tr")
    tab.complaints = [c for c in tab.complaints if "net::ERR_FAILED" not in c]


def test_an_api_error_is_shown_on_the_page(tab: Tab) -> None:
    """In the broker's own words, where the list would be."""
    tab.page.route(
        "**/api/topics?*",
        lambda route: route.fulfill(
            status=503, body=json.dumps({"error": "recovering the log"})
        ),
    )
    tab.open("#/topics")
    tab.sees("Recovering the log.")
    tab.page.unroute("**/api/topics?*")
    tab.button("Try again")
    tab.page.locator("table").wait_for()
