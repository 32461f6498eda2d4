"""Hostile names, headers and payloads are shown as text."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import pytest

from tests.browser.stage import Stage, Tab

if TYPE_CHECKING:
    from playwright.sync_api import Route

pytestmark = pytest.mark.slow

ROW: Final = "details.message"

HOSTILE: Final = {
    "a script": "<script>globalThis.hacked = 1; alert(1)</script>",
    "an image": '"><img src=x onerror="globalThis.hacked = 1">',
    "an svg": "<svg/onload=globalThis.hacked=1>",
    "an address": "javascript:globalThis.hacked=1",
    "a template": "${globalThis.hacked=1}{{globalThis.hacked=1}}",
    "right to left": "invoice\u202etxt.exe\u2066\u200f",
    "invisible characters": "a\u200bb\ufeffc",
    "a path": "../../api/keys?x=1#/keys",
    "per cent": "100%/%2F%00",
    "controls": "tab\tline\nbell\x07",
    "10 KB": "n" * 10_240,
    "10 KB of markup": "<b>" * 3_413,
}

SHOWN: Final = {kind: HOSTILE[kind] for kind in ("an image", "right to left", "10 KB")}
BADGE_CHARS_MAX: Final = 40
NARROW: Final = {"width": 360, "height": 800}


def seen(text: str) -> str:
    """Return *text* as the page shows it, with code points for invisible characters."""
    invisible = "\t\n\x07\u200b\u200f\u202e\u2066\ufeff"
    return "".join(f"U+{ord(c):04X}" if c in invisible else c for c in text)


def cut(text: str) -> str:
    """Return *text* as a badge shows it, shortened to a few characters."""
    rest = f"… {len(text):,} characters" if len(text) > BADGE_CHARS_MAX else ""
    return seen(text[:BADGE_CHARS_MAX]) + rest


def is_unharmed(tab: Tab) -> bool:
    """Return whether no shown text has become an element or has run."""
    found = tab.page.evaluate(
        """() => [
          globalThis.hacked ?? null,
          document.querySelectorAll("main script, main img, main iframe, main b > b").length,
          document.querySelectorAll("main [onerror], main [onload]").length,
        ]"""
    )
    return bool([None, 0, 0] == found)


def test_hostile_topics_are_text_and_work(stage: Stage, tab: Tab) -> None:
    """In the list, in headings, headers and payloads; their messages can be opened."""
    with stage.client("blip") as client:
        for name in HOSTILE.values():
            stage.post(name, name, headers={name[:200]: name, "plain": name})
            client.publish(name, name.encode())
    for kind, name in HOSTILE.items():
        tab.open("#/topics?search=" + quote(name[:64], safe=""))
        link = tab.page.locator("tbody a").first
        assert (kind, seen(name)[:100]) == (kind, (link.text_content() or "")[:100])

        tab.goto_topic(name)
        tab.page.locator(ROW).nth(1).wait_for()
        heading = tab.page.locator("h1").text_content() or ""
        assert (kind, seen(name)[:100]) == (kind, heading[: len(seen(name)[:100])])

        tab.page.locator(f"{ROW} > summary").nth(1).click()
        tab.until("document.querySelector('.payload-view pre')?.textContent.length > 1")
        payload = tab.page.locator(".payload-view pre").text_content()
        with_lines = seen(name).replace("U+0009", "\t").replace("U+000A", "\n")
        assert (kind, with_lines) == (kind, payload)
        about = tab.page.locator(".message-about").text_content() or ""
        assert (kind, True) == (kind, seen(name)[:100] in about)
        assert (kind, True) == (kind, is_unharmed(tab))


AS_SENT: Final = (
    b'{"n": 1, "item": "tea"}',
    b'{"n":1}',
    b"  [ 1.10,12345678901234567890 , 1e2 ]",
    b'"payload"',
    b'"a \\" b \\\\"',
    b'{"payload": {"payload":"}"}, "encoding":"json","size":1}',
    b'{"messages" : [{"payload" : [ "]" ]}]}',
    b'{"a" : 1, "a":2}',
    '{"é": "ü🍵"}'.encode(),
    b'{"broken": ',
    b'\xff "payload":1',
    b"",
    b"null",
)


def test_a_list_shows_payloads_as_they_were_sent(stage: Stage, tab: Tab) -> None:
    """Each one unchanged, spaces included, whatever precedes it."""
    with stage.client("blip") as client:
        for payload in AS_SENT:
            client.publish("as.sent", payload)
    stage.overfill("letters.as.sent", waiting=1, dead=1)
    tab.goto_topic("as.sent", "?order=asc")
    tab.page.locator(ROW).nth(len(AS_SENT) - 1).wait_for()
    found = tab.page.locator(".message-preview").all_inner_texts()
    shown = {b"": "empty", AS_SENT[10]: f"{len(AS_SENT[10])} B, binary"}
    assert [shown.get(p) or p.decode().strip() for p in AS_SENT] == [f.strip() for f in found]

    tab.open("#/dead-letters/dlq.letters.as.sent")
    tab.page.locator(ROW).wait_for()
    assert '{"n": 1}' == tab.text(".message-preview")


@pytest.mark.parametrize("kind", SHOWN)
def test_a_hostile_schema_is_text(stage: Stage, new_tab: Callable[..., Tab], kind: str) -> None:
    """Beside a topic's name; it comes from a header that publishers set."""
    given = SHOWN[kind]
    topic = f"schema.{kind}"
    stage.post(topic, 1, headers={"schemaId": given})
    assert given == stage.api("GET", f"/api/topics/{quote(topic)}")["schema"]
    tab = new_tab(stage.origin, viewport=NARROW)
    tab.goto_topic(topic)
    tab.page.locator("h1 .marks .badge").wait_for()

    assert f"schema {cut(given)}" == tab.page.locator("h1 .marks .badge").text_content()
    assert NARROW["width"] == tab.width()
    assert is_unharmed(tab)


@pytest.mark.parametrize("kind", [*SHOWN, "a property", "another property"])
def test_a_hostile_reason_is_text(stage: Stage, new_tab: Callable[..., Tab], kind: str) -> None:
    """In the list of dead letters and in the details, whatever the log holds."""
    given = {**SHOWN, "a property": "constructor", "another property": "toString"}[kind]
    queue = f"reason.{kind.replace(' ', '.')}"
    stage.overfill(queue, waiting=1, dead=1)

    def with_reason(route: "Route") -> None:
        answer = route.fetch()
        page = answer.json()
        page["letters"][0]["reason"] = given
        route.fulfill(response=answer, json=page)

    tab = new_tab(stage.origin, viewport=NARROW)
    tab.page.route("**/api/dead-letters?queue=*", with_reason)
    tab.open(f"#/dead-letters/dlq.{queue}")
    tab.page.locator(f"{ROW} > summary").click()
    badge = tab.page.locator(f"{ROW} > summary .badge")
    reason = tab.page.locator(".message-about dd").first
    reason.wait_for()

    assert cut(given) == badge.text_content()
    assert seen(given)[:40] == (reason.text_content() or "")[:40]
    assert NARROW["width"] == tab.width()
    assert is_unharmed(tab)


@pytest.mark.parametrize("name", [".", ".."])
def test_a_topic_of_dots_works_like_any_other(stage: Stage, tab: Tab, name: str) -> None:
    """Its link opens it, its messages are listed, and the page can publish to it."""
    with stage.client("blip") as client:
        client.publish(name, b"from elsewhere")
    tab.open("#/topics?search=" + quote(name, safe=""))
    tab.page.get_by_role("link", name=name, exact=True).click()
    tab.page.locator(ROW).first.wait_for()
    assert name == (tab.page.locator("h1 bdi").text_content() or "")

    tab.button("Publish…")
    tab.page.get_by_label("Payload", exact=True).fill('"from the page"')
    tab.button("Publish")
    tab.sees("Published at offset")
    tab.page.locator(ROW).nth(1).wait_for()
    assert 2 == stage.api("GET", f"/api/topics/%FF{name}")["messages"]


def test_a_confirmation_must_match_exactly(stage: Stage, tab: Tab) -> None:
    """A look-alike with a Cyrillic o, or a name with a part missing, does not count."""
    name = "orders.\u05ea\u05d5\u05e8.eu"
    stage.overfill(name, waiting=1, dead=1)
    tab.open("#/dead-letters/" + quote(f"dlq.{name}", safe=""))
    tab.page.locator(f"{ROW} > summary").click()
    tab.button("Purge…")
    dialog = tab.page.get_by_role("dialog")
    for typed in (f"dlq.{name}".replace("o", "\u043e"), "dlq.orders..eu", name):
        dialog.get_by_label("Type the name to confirm").fill(typed)
        dialog.get_by_role("button", name="Purge").click()
        tab.sees("The name does not match.")
    dialog.get_by_label("Type the name to confirm").fill(f"dlq.{name}")
    dialog.get_by_role("button", name="Purge").click()
    tab.sees("1 message purged.")


def test_names_that_differ_only_in_spaces_look_different(stage: Stage, tab: Tab) -> None:
    """By number and kind of spaces; payloads are shown unchanged."""
    names = ["blank a b", "blank a  b", "blank a\u00a0b", "blank a\u3000b"]
    for name in names:
        stage.post(name, "\u3053\u3000")
    tab.open("#/topics?search=blank")
    tab.page.locator("tbody tr").nth(3).wait_for()

    shown = tab.page.locator("tbody td.wide").all_inner_texts()
    assert {"blank a b", "blank a  b", "blank aU+00A0b", "blank aU+3000b"} == set(shown)
    tab.goto_topic(names[3])
    assert "U+3000" not in tab.text(".message-preview")


def test_a_name_of_several_lines_can_be_confirmed(tab: Tab) -> None:
    """The field accepts no line break, so the name without it confirms."""
    tab.open()
    tab.page.evaluate(
        """async () => {
          const { confirm } = await import("/static/dialogs.js");
          const question = { title: "Purge?", text: "", action: "Purge", act() {} };
          confirm({ ...question, typed: "two\\nlines" })
            .then((done) => { globalThis.confirmed = done; });
        }"""
    )
    dialog = tab.page.get_by_role("dialog")
    for typed in ("two", "two lines", "twolines"):
        assert tab.page.evaluate("() => globalThis.confirmed ?? null") is None
        dialog.get_by_label("Type the name to confirm").fill(typed)
        dialog.get_by_role("button", name="Purge").click()
    tab.until("globalThis.confirmed === true")


def test_hostile_subscriptions_are_text(stage: Stage, tab: Tab) -> None:
    """In the list of subscriptions."""
    name = HOSTILE["an image"]
    with stage.client("blip") as client, client.subscribe(name):
        tab.open("#/subscriptions")
        tab.page.locator("tbody tr").first.wait_for()
        assert name == tab.page.locator("tbody td.wide").first.text_content()

    assert is_unharmed(tab)


@pytest.mark.parametrize("kind", SHOWN)
def test_a_hostile_client_is_text(stage: Stage, new_tab: Callable[..., Tab], kind: str) -> None:
    """In the list of clients, and above its connections."""
    given = SHOWN[kind]

    def with_principal(route: "Route") -> None:
        answer = route.fetch()
        page = answer.json()
        for row in page.get("clients") or page["connections"]:
            row["principal"] = given
        route.fulfill(response=answer, json=page)

    tab = new_tab(stage.origin, viewport=NARROW)
    tab.page.route("**/api/clients?*", with_principal)
    tab.page.route("**/api/connections?*", with_principal)
    with stage.client("blip") as client, client.subscribe("of.a.hostile.client"):
        tab.open("#/connections")
        link = tab.page.locator("tbody a").first
        assert seen(given)[:100] == (link.text_content() or "")[:100]
        assert NARROW["width"] == tab.width()
        link.click()
        tab.page.locator("h1 bdi").wait_for()
        assert seen(given)[:100] == (tab.page.locator("h1 bdi").text_content() or "")[:100]

    assert NARROW["width"] == tab.width()
    assert is_unharmed(tab)


def test_text_cannot_become_markup_or_script(tab: Tab) -> None:
    """The browser refuses, whatever a later change of the page may attempt."""
    tab.open("#/topics")
    refused = tab.page.evaluate(
        """async () => {
          let violations = 0;
          addEventListener("securitypolicyviolation", () => { violations += 1; });
          const ways = {
            innerHTML: () => { document.querySelector("main").innerHTML = "<b>x</b>"; },
            insertAdjacentHTML: () => document.body.insertAdjacentHTML("beforeend", "<b>x</b>"),
            write: () => document.write("<b>x</b>"),
            srcdoc: () => { document.createElement("iframe").srcdoc = "<b>x</b>"; },
            script: () => { document.createElement("script").text = "hacked = 1"; },
            policy: () => globalThis.trustedTypes.createPolicy("mine", {}),
          };
          const refused = Object.entries(ways).map(([name, way]) => {
            try { way(); return `${name} works`; } catch { return name; }
          });
          while (violations < refused.length)
            await new Promise((resolve) => setTimeout(resolve));
          return refused;
        }"""
    )
    reported = [text for text in tab.complaints if "policy violated" in text]
    tab.complaints.clear()

    expected = ["innerHTML", "insertAdjacentHTML", "write", "srcdoc", "script", "policy"]
    assert expected == refused
    assert len(expected) == len(reported)


def test_hostile_addresses_do_no_harm(tab: Tab) -> None:
    """Any link to the page ends on one of its own views."""
    for route in (
        "#/topics/%",
        "#/topics/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
        "#/topics/a/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E",
        "#/queues/%22%3E%3Cb%3E/99999999999999999999999",
        "#/topics/a?from=<script>&time=never&order=sideways",
        "#/topics?search=%22%3E%3Cscript%3Ealert(1)%3C/script%3E&sort=nothing&after=%00",
        "#/connections/%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E%40",
        "#/__proto__",
        "#//evil.example/",
    ):
        tab.open(route)

        assert (route, True) == (route, is_unharmed(tab))
