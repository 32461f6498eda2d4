"""The dashboard of a broker with a history: many topics, cursors, users, and damage."""

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.requests import SinkKey
from tests.browser.stage import PATIENCE_MS, Stage, Tab, staged
from tests.integration.flights import FLIGHT, SCHEMA, rows
from tests.integration.vibe import peer as vibe
from tests.integration.vibe_peer import CREATE_USER, GRANT_PERMISSION, connect, request

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = pytest.mark.slow

TOPICS: Final = 10_000
PAGE_ROWS: Final = 50
LIST_BYTES_MAX: Final = 16 * 1024
"""Limit of one page of topics with short names, as JSON."""

SEGMENT_BYTES: Final = 1024 * 1024
BODY_BYTES: Final = 128 * 1024
SEALED: Final = 8
"""Sealed segments of a log; the broker's slow check takes a second for each."""

REFRESH_MS: Final = 11_000
"""Time after which the log's page has refreshed."""

CONFIG: Final = "[wal]\nsegment_bytes = 65536\n"
TORN: Final = b"\x07torn"


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "data" / "wal").glob("*.wal"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("at-work")


@pytest.fixture(scope="module")
def stage(chromium: "Browser", directory: Path) -> Iterator[Stage]:
    """A broker with a torn write in its log and 10,000 topics."""
    with staged(directory, config=CONFIG) as first:
        first.post("before", {"n": 1})
        first.stop()
    with segments(directory)[-1].open("ab") as log:
        log.write(TORN)
    with staged(directory, *FLIGHT, config=CONFIG) as stage:
        with closing(endpoint_of(stage)) as endpoint:
            names = [f"plant.{n:05}" for n in range(TOPICS)]
            staged_rows = endpoint.stage(None, SCHEMA, rows(*names, names[4711]))
            endpoint.commit(SinkKey("query", "sink", 0), [staged_rows.id])
        yield stage


def endpoint_of(stage: Stage) -> Endpoint:
    return Endpoint(f"grpc://{stage.facts['flight']}", "dev-key")


def administer(stage: Stage, *commands: tuple[int, dict[str, object]]) -> None:
    """Connect over Vibe as an administrator and send commands that must succeed."""
    host, _, port = stage.facts["vibe"].rpartition(":")
    frames = [connect()]
    frames += [
        request(kind, "r", payload=json.dumps(given).encode()) for kind, given in commands
    ]
    with (
        socket.create_connection((host, int(port)), timeout=PATIENCE_MS / 1000) as peer,
        peer.makefile("rb") as incoming,
    ):
        for frame in frames:
            peer.sendall(frame)
            head = incoming.read(5)
            answer = incoming.read(int.from_bytes(head[:4], "big"))
            assert vibe.ERROR != vibe.parse(vibe.V1_1, answer, head[4]).kind, answer


def cells(tab: Tab, key: str) -> list[str]:
    """Return the cells of a row."""
    row = tab.page.locator(f'tr[data-key="{key}"]')
    row.wait_for()
    return row.locator("td").all_inner_texts()


def test_ten_thousand_topics_are_shown_a_page_at_a_time(stage: Stage, tab: Tab) -> None:
    """The broker searches, sorts and pages; the page holds only what it shows."""
    tab.open("#/topics")
    tab.sees("1\N{EN DASH}50 of 10,001 topics")
    assert PAGE_ROWS == tab.page.locator("tbody tr").count()
    sizes = [len(a.body()) for a in tab.answers if a.ok and "/api/topics?" in a.url]
    assert sizes
    assert LIST_BYTES_MAX > max(sizes)

    tab.button("Next")
    tab.page.locator('tr[data-key="plant.00049"]').wait_for()
    tab.sees("51\N{EN DASH}100 of 10,001 topics")
    tab.button("Previous")
    tab.page.locator('tr[data-key="before"]').wait_for()
    tab.page.locator("th button", has_text="Messages").click()
    tab.until("document.querySelector('tbody tr').dataset.key === 'plant.04711'")
    assert "2" == cells(tab, "plant.04711")[1]
    tab.page.locator("th button", has_text="Last offset").click()
    tab.until("document.querySelectorAll('tbody tr')[1].dataset.key === 'plant.09999'")

    tab.page.get_by_label("Search topics").fill("PLANT.099")
    tab.sees("1\N{EN DASH}50 of 100 topics")
    tab.button("Next")
    tab.until("document.querySelector('.pager button:last-child').disabled")
    assert PAGE_ROWS == tab.page.locator("tbody tr").count()
    tab.page.get_by_label("Search topics").fill("plant.09998")
    tab.until("document.querySelector('.list-summary').textContent === '1 topic'")
    assert ["plant.09998"] == tab.page.locator("tbody td.wide").all_inner_texts()


def test_spark_cursors_are_shown_with_their_lag(stage: Stage, tab: Tab) -> None:
    """With position and lag; an administrator can remove one."""
    with closing(endpoint_of(stage)) as endpoint:
        endpoint.open_cursor("nightly", 1)
        endpoint.open_cursor("live", None)
        endpoint.move_cursor("nightly", 3)
    tab.open("#/cursors")
    live, nightly = stage.api("GET", "/api/cursors")["cursors"]

    assert nightly["lag"] > TOPICS > live["lag"]
    for cursor in (live, nightly):
        numbers = [f"{cursor[name]:,}" for name in ("initial", "position", "lag")]
        assert [cursor["name"], "dev", *numbers] == cells(tab, cursor["name"])[:5]
    assert (1, 3) == (nightly["initial"], nightly["position"])
    assert tab.page.locator('tr[data-key="nightly"] .warn-text').is_visible()

    tab.page.locator('tr[data-key="nightly"]').get_by_role("button", name="Remove").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Type the name to confirm").fill("live")
    dialog.get_by_role("button", name="Remove cursor").click()
    tab.sees("The name does not match. Nothing was changed.")
    dialog.get_by_label("Type the name to confirm").fill("nightly")
    dialog.get_by_role("button", name="Remove cursor").click()
    tab.sees("Cursor removed.")
    assert ["live"] == [c["name"] for c in stage.api("GET", "/api/cursors")["cursors"]]


def test_users_are_shown_with_their_grants_and_no_password(stage: Stage, tab: Tab) -> None:
    """The users of Vibe clients, beside the API keys."""
    granted = {"queuePattern": "orders.*", "operations": ["Publish", "CreateQueue"]}
    administer(
        stage,
        (CREATE_USER, {"username": "ada", "password": "countess"}),
        (CREATE_USER, {"username": "bob.2", "password": "builder"}),
        (GRANT_PERMISSION, {"username": "ada", **granted}),
    )
    tab.open("#/keys")

    assert ["ada", "orders.* create queue, publish"] == cells(tab, "ada")[:2]
    assert ["bob.2", "none", "user"] == cells(tab, "bob.2")[:3]
    assert re.search(r"\d\d:\d\d", cells(tab, "ada")[3])
    key = ["dev", "* publish, subscribe", "API key admin", "\N{EN DASH}"]
    assert key == cells(tab, "dev")
    assert not re.search("countess|builder|argon2|sha256", tab.page.content())


def test_many_users_are_shown_a_page_at_a_time(stage: Stage, tab: Tab) -> None:
    """The broker searches and pages them, after the API keys."""
    crew: list[dict[str, object]] = [
        {"username": f"crew.{n:02}", "password": "anchors"} for n in range(PAGE_ROWS)
    ]
    administer(stage, *((CREATE_USER, one) for one in crew))
    tab.open("#/keys?search=crew")
    tab.sees(f"{PAGE_ROWS} users and keys")
    tab.open("#/keys")
    tab.sees(f"1\N{EN DASH}{PAGE_ROWS} of ")
    assert ["dev", "crew.00"] == [name for name in keys_of(tab) if name in {"dev", "crew.00"}]
    tab.button("Next")
    tab.until("document.querySelector('.pager button:last-child').disabled")
    assert f"crew.{PAGE_ROWS - 1}" == keys_of(tab)[-1]
    tab.page.get_by_label("Search by name").fill("W.4")
    tab.until("document.querySelector('.list-summary').textContent === '10 users and keys'")

    assert [f"crew.4{n}" for n in range(10)] == keys_of(tab)


def keys_of(tab: Tab) -> list[str]:
    """Return the keys of the rows that are shown."""
    rows = tab.page.locator("tbody tr")
    return [row.get_attribute("data-key") or "" for row in rows.all()]


def test_a_torn_write_is_listed_in_the_quarantine(tab: Tab) -> None:
    """The bytes after the last complete record, with the file that keeps them."""
    tab.open("#/log")
    tab.page.get_by_role("table", name="Quarantine").wait_for()
    (name, size) = (
        tab.page.get_by_role("table", name="Quarantine").locator("td").all_inner_texts()
    )

    assert re.fullmatch(r"\d{20}\.wal\..*", name)
    assert f"{len(TORN)} B" == size


def integrity(tab: Tab) -> list[str]:
    """Return the integrity that the log's page shows for each segment."""
    shown = tab.page.get_by_role("table", name="Segments")
    shown.wait_for()
    return shown.locator("td:last-child").all_inner_texts()


def test_verified_segments_stay_verified(stage: Stage, tab: Tab) -> None:
    """Unchecked segments and the one being written are marked as such."""
    tab.open("#/log")
    before = integrity(tab)
    sealed = len(before) - 1
    assert sealed > 2
    assert [*(["not checked"] * sealed), "being written"] == before

    tab.button("Verify sealed segments")
    tab.sees(f"{sealed} sealed segments verified, no damage.")
    tab.open("#/log")
    assert [*(["verified"] * sealed), "being written"] == integrity(tab)


def test_a_damaged_segment_is_marked(new_tab: Callable[..., Tab], tmp_path: Path) -> None:
    """It and no other; the mark stays visible after the broker exits because of it.

    The broker's own slow check would also find the damage. So the test damages the log only
    once the page has asked, and the log is one that the check needs several seconds for.
    """

    def damage_and_verify(route: "Route") -> None:
        with segments(tmp_path)[1].open("r+b") as log:
            log.seek(SEGMENT_BYTES // 2)
            byte = log.read(1)[0]
            log.seek(-1, os.SEEK_CUR)
            log.write(bytes([byte ^ 0x01]))
        route.continue_()

    with staged(tmp_path, config=f"[wal]\nsegment_bytes = {SEGMENT_BYTES}\n") as stage:
        with stage.client("blip") as client:
            for _ in range(SEALED * SEGMENT_BYTES // BODY_BYTES + SEALED):
                client.publish("bulk", bytes(BODY_BYTES))
        tab = new_tab(stage.origin)
        tab.page.clock.install()
        tab.open("#/log")
        before = integrity(tab)
        assert len(before) > SEALED
        assert {"not checked", "being written"} == set(before)

        tab.page.route("**/api/log/verify", damage_and_verify)
        tab.button("Verify sealed segments")
        tab.sees("1 segment is damaged: run braidmq wal verify")
        whole = ["verified"] * (len(before) - 3)
        damaged = ["verified", "damaged", *whole, "being written"]
        assert damaged == integrity(tab)

        stage.kill()
        tab.page.clock.fast_forward(REFRESH_MS)
        tab.sees("The broker cannot be reached.")
        assert damaged == integrity(tab)
        tab.complaints = [c for c in tab.complaints if "net::ERR_" not in c]
