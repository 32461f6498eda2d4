"""Topics over HTTP: pages, what is asked for, and who sees which."""

from urllib.parse import quote

import pytest
from starlette.testclient import TestClient

from tests.unit.admin.sources import (
    ADMIN,
    ORDERS,
    FakeSource,
    names_by_page,
)


def test_topics_come_in_pages(client: TestClient, source: FakeSource) -> None:
    """`next` is what to ask for after, and null at the end."""
    source.topics.names = ["c", "a", "b/ü?&", "d"]
    pages = names_by_page(client, "/api/topics", "topics", 3)

    assert [["a", "b/ü?&", "c"], ["d"]] == pages


def test_a_topic_is_shown_with_its_numbers(client: TestClient, source: FakeSource) -> None:
    """The names of the fields are the API."""
    source.topics.names = ["a"]
    page = client.get("/api/topics", headers=ADMIN).json()

    expected = {"name": "a", "messages": 1, "last_offset": 2, "subscriptions": 3}
    assert {"topics": [expected], "next": None, "total": 1} == page


def test_a_key_sees_the_topics_that_it_may_use(client: TestClient, source: FakeSource) -> None:
    """Publishing or subscribing is enough; names of other people's topics stay theirs."""
    source.topics.names = ["in.a", "orders.b", "secret.c"]
    page = client.get("/api/topics", headers=ORDERS).json()

    assert ["in.a", "orders.b"] == [topic["name"] for topic in page["topics"]]


@pytest.mark.parametrize("limit", ["0", "-1", "1001", "x", "", "1.5", "\u0663", 5000 * "9"])
def test_a_bad_limit_is_refused(client: TestClient, limit: str) -> None:
    """400, and what would be good."""
    response = client.get("/api/topics", headers=ADMIN, params={"limit": limit})

    assert 400 == response.status_code
    assert {"error": "limit must be a whole number from 1 to 1000"} == response.json()


def test_search_and_sort_are_handed_on(client: TestClient, source: FakeSource) -> None:
    """By name, unless something else is said; any other word is refused."""
    client.get("/api/topics", headers=ADMIN)
    client.get("/api/topics?search=%C3%BC&sort=messages", headers=ADMIN)
    refused = client.get("/api/topics?sort=size", headers=ADMIN)

    assert [("", "name"), ("\u00fc", "messages")] == source.topics.asked
    assert (400, {"error": "sort must be one of name, messages, last"}) == (
        refused.status_code,
        refused.json(),
    )


@pytest.mark.parametrize(
    "name", ["a", "a/messages", "a/b/c", "?x=1&y", "#", "%2F", "\u202e", "/"]
)
def test_a_topic_is_found_by_any_name(
    client: TestClient, source: FakeSource, name: str
) -> None:
    """What is percent-encoded belongs to the name, and slashes are part of it."""
    source.topics.names = [name]
    answer = client.get(f"/api/topics/{quote(name, safe='')}", headers=ADMIN)

    assert (200, name) == (answer.status_code, answer.json()["name"])


def test_a_topic_that_may_not_be_seen_is_403(client: TestClient, source: FakeSource) -> None:
    """Whether it is there or not; one that may be seen and is not there is 404."""
    source.topics.names = ["secret.a", "orders.a"]
    paths = ("secret.a", "secret.none", "orders.a", "in.none")
    answers = [client.get(f"/api/topics/{path}", headers=ORDERS) for path in paths]

    assert [403, 403, 200, 404] == [answer.status_code for answer in answers]
    assert {"error": "no such topic"} == answers[-1].json()
