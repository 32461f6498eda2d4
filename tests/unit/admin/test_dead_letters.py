"""Dead letters over HTTP: where they are, what each says, and sending them back."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.messages import SHOWN_BYTES_MAX
from braidmq.broker.authorize import Principal
from tests.unit.admin.sources import (
    ADMIN,
    ORDERS,
    ORDERS_KEY,
    FakeLetters,
    FakeSource,
    facts,
)

LETTERS = "/api/dead-letters"
REPLAY = "/api/dead-letters/replay"


@pytest.fixture
def letters(source: FakeSource) -> FakeLetters:
    return source.letters


def test_queues_of_dead_letters_are_listed_with_counts(
    client: TestClient, source: FakeSource, letters: FakeLetters
) -> None:
    """In pages, and no other queues among them."""
    for queue, offset in (("dlq.b", 1), ("dlq.a", 2), ("dlq.a", 3)):
        letters.add(queue, offset)
    source.queues.rows["a"] = facts("a")
    first = client.get(LETTERS, headers=ADMIN, params={"limit": 1}).json()
    rest = client.get(LETTERS, headers=ADMIN, params={"after": first["next"]}).json()

    row = {"queue": "dlq.a", "messageCount": 2, "inFlight": 2, "subscriberCount": 1}
    assert {"queues": [row], "next": "dlq.a", "total": 2} == first
    assert (["dlq.b"], None, 2) == (
        [row["queue"] for row in rest["queues"]],
        rest["next"],
        rest["total"],
    )


def test_a_letter_says_what_became_of_it(client: TestClient, letters: FakeLetters) -> None:
    """The names of the fields are the API; the payload is shown as messages' are."""
    letters.add("dlq.a", 4)
    page = client.get(LETTERS, headers=ADMIN, params={"queue": "dlq.a"}).json()

    letter = {
        "offset": 4,
        "id": "m4",
        "reason": "rejected",
        "deathQueue": "a",
        "attempts": 3,
        "timestamp": "1970-01-01T00:00:02Z",
        "payload": {"n": 1},
        "encoding": "json",
        "size": 8,
        "sealed": False,
        "truncated": False,
        "headers": {"trace": "t"},
    }
    assert {"letters": [letter], "next": None} == page


def test_a_long_letter_is_cut(client: TestClient, letters: FakeLetters) -> None:
    """As a long message is, and it says so."""
    letters.add("dlq.a", 4, (SHOWN_BYTES_MAX + 1) * b"x")
    (letter,) = client.get(LETTERS, headers=ADMIN, params={"queue": "dlq.a"}).json()["letters"]

    assert (SHOWN_BYTES_MAX, SHOWN_BYTES_MAX + 1, True) == (
        len(letter["payload"]),
        letter["size"],
        letter["truncated"],
    )


def test_letters_come_in_pages(client: TestClient, letters: FakeLetters) -> None:
    """`next` is the offset to go on from."""
    for offset in (2, 4, 6, 8, 10):
        letters.add("dlq.a", offset)
    pages = []
    following: int | None = 1
    while following is not None:
        params: dict[str, str | int] = {"queue": "dlq.a", "from": following, "limit": 2}
        page = client.get(LETTERS, headers=ADMIN, params=params).json()
        pages.append([letter["offset"] for letter in page["letters"]])
        following = page["next"]

    assert [[2, 4], [6, 8], [10]] == pages


def test_a_bad_offset_is_refused(client: TestClient, letters: FakeLetters) -> None:
    """400, as a bad limit is."""
    letters.add("dlq.a", 1)
    asked = [{"queue": "dlq.a", "from": "x"}, {"queue": "dlq.a", "limit": "0"}, {"limit": "0"}]

    assert [400, 400, 400] == [
        client.get(LETTERS, headers=ADMIN, params=params).status_code for params in asked
    ]


def test_letters_are_for_those_who_may_consume_or_destroy_them(
    client: TestClient, source: FakeSource, letters: FakeLetters
) -> None:
    """To publish to the queue is not enough: headers are the publisher's."""
    for queue in ("dlq.a", "orders.dead", "in.dead"):
        letters.add(queue, 1)
    asked = [
        client.get(LETTERS, headers=ORDERS, params={"queue": queue}).status_code
        for queue in ("dlq.a", "orders.dead", "in.dead")
    ]
    listed = client.get(LETTERS, headers=ORDERS).json()["queues"]
    source.principals[ORDERS_KEY] = Principal("o", publish=[], subscribe=[], admin=True)

    assert [403, 200, 403] == asked
    assert ["in.dead", "orders.dead"] == [row["queue"] for row in listed]
    assert 200 == client.get(LETTERS, headers=ORDERS, params={"queue": "dlq.a"}).status_code


def test_a_replay_says_how_many_went(client: TestClient, letters: FakeLetters) -> None:
    """Without a count, or with null, all of them."""
    for offset in (1, 2, 3):
        letters.add("dlq.a", offset)
    asked: list[dict[str, object]] = [
        {"queue": "dlq.a", "count": 2},
        {"queue": "dlq.a"},
        {"queue": "dlq.a", "count": None},
    ]
    answers = [client.post(REPLAY, headers=ADMIN, json=body).json() for body in asked]

    assert [{"queue": "dlq.a", "replayed": count} for count in (2, 3, 3)] == answers
    assert [("dlq.a", 2), ("dlq.a", None), ("dlq.a", None)] == letters.replays


BAD_REPLAYS: list[tuple[object, str]] = [
    ({}, "queue: must be the name of a queue"),
    ({"queue": "dlq.a", "count": 0}, "count: must be a whole number from 1 to 2147483647"),
    ({"queue": "dlq.a", "count": True}, "count: must be a whole number"),
    ({"queue": "dlq.a", "count": "2"}, "count: must be a whole number"),
    ({"queue": "dlq.a", "count": 2**31}, "count: must be a whole number"),
    ({"queue": "dlq.a", "n": 1}, "n: unknown; known are count, offset, queue"),
]


@pytest.mark.parametrize(("body", "problem"), BAD_REPLAYS)
def test_a_bad_replay_is_named(
    client: TestClient, letters: FakeLetters, body: object, problem: str
) -> None:
    """400, and nothing was sent back."""
    letters.add("dlq.a", 1)
    answer = client.post(REPLAY, headers=ADMIN, json=body)

    assert 400 == answer.status_code
    assert answer.json()["error"].startswith(problem)
    assert [] == letters.replays


def test_a_replay_needs_a_key_that_may_purge(client: TestClient, letters: FakeLetters) -> None:
    """What is sent back is gone from here."""
    letters.add("orders.dead", 1)
    body = {"queue": "orders.dead"}
    answers = [client.post(REPLAY, headers=headers, json=body) for headers in ({}, ORDERS)]

    assert [401, 403] == [answer.status_code for answer in answers]
    assert [] == letters.replays


def test_what_holds_no_letters_is_404(client: TestClient, source: FakeSource) -> None:
    """An ordinary queue is not one of dead letters."""
    source.queues.rows["a"] = facts("a")
    answers = [
        client.get(LETTERS, headers=ADMIN, params={"queue": "a"}),
        client.post(REPLAY, headers=ADMIN, json={"queue": "a"}),
    ]

    assert [(404, {"error": "no such queue of dead letters"})] * 2 == [
        (answer.status_code, answer.json()) for answer in answers
    ]


def test_one_letter_is_sent_back_by_its_offset(
    client: TestClient, letters: FakeLetters
) -> None:
    """Only that one; what is not there is 404, and a count beside it is a contradiction."""
    letters.add("dlq.a", 4)
    bodies: list[dict[str, object]] = [
        {"queue": "dlq.a", "offset": 4},
        {"queue": "dlq.a", "offset": 5},
        {"queue": "dlq.a", "offset": 4, "count": 1},
        {"queue": "dlq.a", "offset": 0},
    ]
    answers = [client.post(f"{LETTERS}/replay", headers=ADMIN, json=body) for body in bodies]

    assert [200, 404, 400, 400] == [answer.status_code for answer in answers]
    assert {"queue": "dlq.a", "replayed": 1} == answers[0].json()
    assert [("dlq.a", 4)] == letters.replayed_alone
    assert [] == letters.replays
