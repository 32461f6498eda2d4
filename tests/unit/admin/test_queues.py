"""Queues over HTTP: what is shown, what may be asked, and how it is refused."""

from dataclasses import replace

import pytest
from msgspec import to_builtins
from starlette.testclient import TestClient

from braidmq.admin.queues import DECLARING, as_json
from braidmq.server.engine.refusals import UnavailableError
from braidmq.wire.vibe.queue_options import OptionError, QueueOptions
from tests.unit.admin.sources import (
    ADMIN,
    ADMIN_KEY,
    ORDERS,
    FakeQueues,
    FakeSource,
    facts,
    names_by_page,
)


@pytest.fixture
def queues(source: FakeSource) -> FakeQueues:
    return source.queues


def test_a_queue_is_shown_in_the_words_that_declare_it() -> None:
    """The names of the fields are the API; null is no limit."""
    shown = to_builtins(as_json(facts("orders", waiting=5)))

    assert {
        "name": "orders",
        "messageCount": 5,
        "inFlight": 2,
        "subscriberCount": 1,
        "deliveryMode": "RoundRobin",
        "maxQueueSize": None,
        "overflowStrategy": "RedirectToDlq",
        "messageTtl": None,
        "maxRetryAttempts": 3,
        "enableDeadLetterQueue": True,
        "deadLetterQueueName": "dlq.orders",
        "durable": True,
        "createdAt": "1970-01-01T00:00:01.500000Z",
    } == shown
    assert shown.keys() >= DECLARING


def test_limits_are_shown_as_numbers() -> None:
    """A time to live in ms, a size in messages; 0 attempts are no limit."""
    shown = as_json(replace(facts("q"), ttl_ms=1500, max_size=9, max_attempts=0))

    assert (1500, 9, None) == (
        shown.message_ttl,
        shown.max_queue_size,
        shown.max_retry_attempts,
    )


def test_queues_come_in_pages(client: TestClient, queues: FakeQueues) -> None:
    """`next` is what to ask for after, and null at the end."""
    queues.rows = {name: facts(name) for name in ("c", "a", "b/?&", "d")}
    pages = names_by_page(client, "/api/queues", "queues", 3)
    total = client.get("/api/queues", headers=ADMIN, params={"limit": 1}).json()["total"]

    assert ([["a", "b/?&", "c"], ["d"]], 4) == (pages, total)


def test_queues_are_sorted_as_asked(client: TestClient, queues: FakeQueues) -> None:
    """By name without a word; what it cannot be sorted by is named."""
    codes = [
        client.get(f"/api/queues{query}", headers=ADMIN).status_code
        for query in ("", "?sort=waiting", "?sort=size")
    ]

    assert ([200, 200, 400], ["name", "waiting"]) == (codes, queues.sorts)


def test_a_key_sees_the_queues_that_it_may_use(client: TestClient, queues: FakeQueues) -> None:
    """Names of other people's queues stay theirs, in the list and one by one."""
    queues.rows = {name: facts(name) for name in ("in.a", "orders.b", "secret.c")}
    page = client.get("/api/queues", headers=ORDERS).json()
    paths = ("/api/queues/orders.b", "/api/queues/secret.c", "/api/queues/secret.none")

    assert ["in.a", "orders.b"] == [queue["name"] for queue in page["queues"]]
    assert 2 == page["total"]
    assert [200, 403, 403] == [client.get(p, headers=ORDERS).status_code for p in paths]


@pytest.mark.parametrize("name", ["orders", "a/b", "a/purge", "\u00fc ?#"])
def test_a_queue_is_found_by_any_name(
    client: TestClient, queues: FakeQueues, name: str
) -> None:
    """Dead letters of Blip topics are on queues with names of any characters."""
    queues.rows = {name: facts(name, waiting=3)}
    path = f"/api/queues/{quoted(name)}"

    assert name == client.get(path, headers=ADMIN).json()["name"]
    assert {"name": name, "purged": 3} == client.post(f"{path}/purge", headers=ADMIN).json()
    assert {"name": name} == client.delete(path, headers=ADMIN).json()
    assert {} == queues.rows


def test_what_is_not_there_is_404(client: TestClient) -> None:
    """Whatever was to be done with it."""
    answers = [
        client.get("/api/queues/x", headers=ADMIN),
        client.delete("/api/queues/x", headers=ADMIN),
        client.post("/api/queues/x/purge", headers=ADMIN),
    ]

    assert [(404, {"error": "no such queue"})] * 3 == [
        (a.status_code, a.json()) for a in answers
    ]


def test_a_new_queue_is_201_and_shown(client: TestClient, queues: FakeQueues) -> None:
    """The options are those of the body, those that it does not name are left to the broker."""
    body = {
        "name": "orders",
        "deliveryMode": "prioritybased",
        "maxQueueSize": 10,
        "messageTtl": "00:00:01.5",
        "enableDeadLetterQueue": False,
        "overflowStrategy": "DropOldest",
        "maxRetryAttempts": 5,
    }
    answer = client.post("/api/queues", headers=ADMIN, json=body)
    options = QueueOptions(
        mode=3, max_size=10, ttl_ms=1500, dead_letters=False, overflow=0, max_attempts=5
    )

    assert (201, "orders", 10) == (
        answer.status_code,
        answer.json()["name"],
        answer.json()["maxQueueSize"],
    )
    assert [options] == queues.given


def test_the_same_queue_again_is_200(client: TestClient) -> None:
    """Whoever repeats a request for want of an answer is not told that it failed."""
    answers = [client.post("/api/queues", headers=ADMIN, json={"name": "a"}) for _ in range(2)]

    assert [201, 200] == [answer.status_code for answer in answers]


def test_another_queue_of_that_name_is_409(client: TestClient) -> None:
    """What is there stays as it was declared."""
    client.post("/api/queues", headers=ADMIN, json={"name": "a"})
    answer = client.post("/api/queues", headers=ADMIN, json={"name": "a", "maxQueueSize": 1})

    assert (409, {"error": "the queue exists with other options"}) == (
        answer.status_code,
        answer.json(),
    )


BAD_DECLARATIONS: list[tuple[object, str]] = [
    ({}, "name: must be the name of a queue"),
    ({"name": "a b"}, "name: a b is not 1 to 256 letters"),
    ({"name": 257 * "a"}, "name: "),
    ({"name": "a", "size": 1}, "size: unknown; known are deadLetterQueueName, "),
    ({"name": "a", "maxQueueSize": 0}, "maxQueueSize: 0 is not an integer from 1"),
    ({"name": "a", "deliveryMode": "Best"}, "deliveryMode: Best is not one of RoundRobin"),
    ({"name": "a", "messageTtl": "soon"}, "messageTtl: soon is not a time to live"),
    ({"name": "a", "durable": "maybe"}, "durable: maybe is not true or false"),
    ([], "the body is not a JSON object"),
]


@pytest.mark.parametrize(("body", "problem"), BAD_DECLARATIONS)
def test_a_bad_value_is_named(
    client: TestClient, queues: FakeQueues, body: object, problem: str
) -> None:
    """400, and nothing was declared."""
    answer = client.post("/api/queues", headers=ADMIN, json=body)

    assert 400 == answer.status_code
    assert answer.json()["error"].startswith(problem)
    assert [] == queues.given


def test_what_only_the_broker_can_judge_is_400_too(
    client: TestClient, queues: FakeQueues, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its word for the option is passed on."""

    async def refuse(name: str, options: QueueOptions) -> bool:
        raise OptionError("deadLetterQueueName", "is the queue itself")

    monkeypatch.setattr(queues, "create", refuse)
    answer = client.post("/api/queues", headers=ADMIN, json={"name": "a"})

    assert (400, "deadLetterQueueName: is the queue itself") == (
        answer.status_code,
        answer.json()["error"],
    )


def test_a_broker_that_cannot_is_503(client: TestClient, queues: FakeQueues) -> None:
    """In one line, why."""
    queues.refusal = UnavailableError("no space left on the log's disk")
    answer = client.post("/api/queues", headers=ADMIN, json={"name": "a"})

    assert (503, {"error": "no space left on the log's disk"}) == (
        answer.status_code,
        answer.json(),
    )


def test_changes_need_the_permission(client: TestClient, queues: FakeQueues) -> None:
    """A key that may publish and subscribe may look, and change nothing."""
    queues.rows = {"orders.a": facts("orders.a")}
    answers = [
        client.post("/api/queues", headers=ORDERS, json={"name": "orders.b"}),
        client.delete("/api/queues/orders.a", headers=ORDERS),
        client.post("/api/queues/orders.a/purge", headers=ORDERS),
    ]
    operations = ("create_queue", "delete_queue", "purge_queue")

    assert [(403, f"the key may not do this: {op}") for op in operations] == [
        (answer.status_code, answer.json()["error"]) for answer in answers
    ]
    assert ["orders.a"] == list(queues.rows)


CHANGES = [
    ("POST", "/api/queues"),
    ("DELETE", "/api/queues/a"),
    ("POST", "/api/queues/a/purge"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_need_a_key(
    client: TestClient, queues: FakeQueues, method: str, path: str
) -> None:
    """In the header, never in a cookie alone."""
    queues.rows = {"a": facts("a")}
    cookie = {"Cookie": f"key={ADMIN_KEY}"}

    assert 401 == client.request(method, path, headers=cookie, json={"name": "b"}).status_code
    assert ["a"] == list(queues.rows)


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())
