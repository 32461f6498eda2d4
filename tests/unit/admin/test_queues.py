"""Queues over HTTP: what is shown, what may be declared, and how requests are refused."""

import pytest
from starlette.testclient import TestClient

from braidmq.admin.queues import DECLARING
from tests.unit.admin.world import ADMIN, ADMIN_KEY, ORDERS, World, names_by_page


def queues(world: World) -> list[str]:
    return list(world.engine.broker.queues.by_name)


def test_a_queue_is_shown_with_the_options_that_declare_it(
    client: TestClient, world: World
) -> None:
    """The names of the fields are the API; null means no limit."""
    world.declare("orders", max_attempts=3)
    world.publish("orders", *5 * [b"x"])
    shown = client.get("/api/queues/orders", headers=ADMIN).json()

    assert {
        "name": "orders",
        "messageCount": 5,
        "inFlight": 0,
        "subscriberCount": 0,
        "deliveryMode": "RoundRobin",
        "maxQueueSize": None,
        "overflowStrategy": "RedirectToDlq",
        "messageTtl": None,
        "maxRetryAttempts": 3,
        "enableDeadLetterQueue": True,
        "deadLetterQueueName": "dlq.orders",
        "durable": True,
        "createdAt": "2027-01-15T08:00:00Z",
    } == shown
    assert shown.keys() >= DECLARING


def test_limits_are_shown_as_numbers(client: TestClient, world: World) -> None:
    """A time to live in ms, a size in messages; without a limit on attempts it is null."""
    world.declare("q", ttl_ms=1500, max_size=9, max_attempts=0)
    shown = client.get("/api/queues/q", headers=ADMIN).json()

    assert (1500, 9, None) == (
        shown["messageTtl"],
        shown["maxQueueSize"],
        shown["maxRetryAttempts"],
    )


def test_queues_come_in_pages(client: TestClient, world: World) -> None:
    """`next` is the `after` of the next page, and null at the end."""
    world.declare("c", "a", "b/?&", "d")
    pages = names_by_page(client, "/api/queues", "queues", 3)
    total = client.get("/api/queues", headers=ADMIN, params={"limit": 1}).json()["total"]

    assert ([["a", "b/?&", "c"], ["d"]], 4) == (pages, total)


def test_queues_are_sorted_as_requested(client: TestClient, world: World) -> None:
    """By name by default; an unknown sort is refused, and so is another sort's `next`."""
    world.declare("a", "b")
    world.publish("b", b"x")
    sorts = ("", "?sort=waiting", "?sort=size", "?sort=waiting&after=b")
    by_name, by_backlog, *refused = (
        client.get(f"/api/queues{sort}", headers=ADMIN) for sort in sorts
    )

    assert ["a", "b"] == [queue["name"] for queue in by_name.json()["queues"]]
    assert ["b", "a"] == [queue["name"] for queue in by_backlog.json()["queues"]]
    assert [400, 400] == [answer.status_code for answer in refused]


def test_a_search_matches_any_part_of_a_name_in_any_case(
    client: TestClient, world: World
) -> None:
    """The total counts what matches."""
    world.declare("Alpha", "beta", "x")
    page = client.get("/api/queues?search=A", headers=ADMIN).json()

    assert (["Alpha", "beta"], 2) == ([q["name"] for q in page["queues"]], page["total"])


def test_a_key_sees_the_queues_that_it_may_use(client: TestClient, world: World) -> None:
    """Others are hidden, in the list and one by one."""
    world.declare("in.a", "orders.b", "secret.c")
    page = client.get("/api/queues", headers=ORDERS).json()
    paths = ("/api/queues/orders.b", "/api/queues/secret.c", "/api/queues/secret.none")

    assert ["in.a", "orders.b"] == [queue["name"] for queue in page["queues"]]
    assert 2 == page["total"]
    assert [200, 403, 403] == [client.get(p, headers=ORDERS).status_code for p in paths]


@pytest.mark.parametrize("name", ["orders", "a/b", "a/purge", "\u00fc ?#"])
def test_a_queue_is_found_by_any_name(client: TestClient, world: World, name: str) -> None:
    """Dead-letter queues of Blip topics may have any characters in their names."""
    world.declare(name)
    world.publish(name, b"1", b"2", b"3")
    path = f"/api/queues/{quoted(name)}"

    assert name == client.get(path, headers=ADMIN).json()["name"]
    assert {"name": name, "purged": 3} == client.post(f"{path}/purge", headers=ADMIN).json()
    assert {"name": name} == client.delete(path, headers=ADMIN).json()
    assert [] == queues(world)


def test_an_unknown_queue_is_404(client: TestClient) -> None:
    """Whatever the request."""
    answers = [
        client.get("/api/queues/x", headers=ADMIN),
        client.delete("/api/queues/x", headers=ADMIN),
        client.post("/api/queues/x/purge", headers=ADMIN),
    ]

    assert [(404, {"error": "no such queue"})] * 3 == [
        (a.status_code, a.json()) for a in answers
    ]


def test_a_new_queue_is_201_and_shown(client: TestClient, world: World) -> None:
    """With the options of the body; options that it leaves out get their defaults."""
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
    facts = world.status.queues.facts("orders")

    assert (201, "orders", 10) == (
        answer.status_code,
        answer.json()["name"],
        answer.json()["maxQueueSize"],
    )
    assert (3, 10, 1500, False, 0, 5, True) == (
        facts.mode,
        facts.max_size,
        facts.ttl_ms,
        facts.dead_letters,
        facts.overflow,
        facts.max_attempts,
        facts.durable,
    )


def test_the_same_queue_again_is_200(client: TestClient) -> None:
    """A client that repeats a request because it got no answer is not refused."""
    answers = [client.post("/api/queues", headers=ADMIN, json={"name": "a"}) for _ in range(2)]
    usual = {"name": "a", "deadLetterQueueName": "dlq.a"}  # the default, spelled out
    again = client.post("/api/queues", headers=ADMIN, json=usual)

    assert [201, 200, 200] == [answer.status_code for answer in (*answers, again)]


def test_other_options_are_a_conflict(client: TestClient, world: World) -> None:
    """409, and the queue stays as it was declared."""
    client.post("/api/queues", headers=ADMIN, json={"name": "a"})
    answer = client.post("/api/queues", headers=ADMIN, json={"name": "a", "maxQueueSize": 1})

    assert (409, {"error": "the queue exists with other options"}) == (
        answer.status_code,
        answer.json(),
    )
    assert 0 == world.status.queues.facts("a").max_size


BAD_DECLARATIONS: list[tuple[object, str]] = [
    ({}, "name: must be the name of a queue"),
    ({"name": "a b"}, "name: a b is not 1 to 256 letters"),
    ({"name": 257 * "a"}, "name: "),
    ({"name": "a", "size": 1}, "size: unknown field; known fields are deadLetterQueueName, "),
    ({"name": "a", "maxQueueSize": 0}, "maxQueueSize: 0 is not an integer from 1"),
    ({"name": "a", "deliveryMode": "Best"}, "deliveryMode: Best is not one of RoundRobin"),
    ({"name": "a", "messageTtl": "soon"}, "messageTtl: soon is not a time to live"),
    ({"name": "a", "durable": "maybe"}, "durable: maybe is not true or false"),
    ([], "the body is not a JSON object"),
]


@pytest.mark.parametrize(("body", "problem"), BAD_DECLARATIONS)
def test_the_error_names_a_bad_value(
    client: TestClient, world: World, body: object, problem: str
) -> None:
    """400, and nothing is declared."""
    answer = client.post("/api/queues", headers=ADMIN, json=body)

    assert 400 == answer.status_code
    assert answer.json()["error"].startswith(problem)
    assert [] == queues(world)


def test_an_option_that_only_the_broker_can_check_is_400_too(client: TestClient) -> None:
    """With the broker's own text."""
    body = {"name": "a", "deadLetterQueueName": "a"}
    answer = client.post("/api/queues", headers=ADMIN, json=body)

    assert (400, "deadLetterQueueName: is the queue itself") == (
        answer.status_code,
        answer.json()["error"],
    )


def test_a_broker_that_cannot_commit_is_503(client: TestClient, world: World) -> None:
    """With the reason in one line."""
    world.engine.broker.admission.log_refuses("no space left on the log's disk")
    answer = client.post("/api/queues", headers=ADMIN, json={"name": "a"})

    assert (503, {"error": "no space left on the log's disk"}) == (
        answer.status_code,
        answer.json(),
    )


def test_before_recovery_there_are_no_queues() -> None:
    """503, while the log is read."""
    answer = World(recovered=False).client().get("/api/queues", headers=ADMIN)

    assert (503, {"error": "recovering the log"}) == (answer.status_code, answer.json())


def test_changes_need_the_permission(client: TestClient, world: World) -> None:
    """A key that may publish and subscribe may read, but change nothing."""
    world.declare("orders.a")
    answers = [
        client.post("/api/queues", headers=ORDERS, json={"name": "orders.b"}),
        client.delete("/api/queues/orders.a", headers=ORDERS),
        client.post("/api/queues/orders.a/purge", headers=ORDERS),
    ]
    operations = ("create_queue", "delete_queue", "purge_queue")

    assert [(403, f"this API key lacks the permission {op}") for op in operations] == [
        (answer.status_code, answer.json()["error"]) for answer in answers
    ]
    assert ["orders.a"] == queues(world)


CHANGES = [
    ("POST", "/api/queues"),
    ("DELETE", "/api/queues/a"),
    ("POST", "/api/queues/a/purge"),
]


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_need_a_key(client: TestClient, world: World, method: str, path: str) -> None:
    """In the header; a cookie does not count."""
    world.declare("a")
    cookie = {"Cookie": f"key={ADMIN_KEY}"}

    assert 401 == client.request(method, path, headers=cookie, json={"name": "b"}).status_code
    assert ["a"] == queues(world)


def quoted(name: str) -> str:
    return "".join(f"%{byte:02X}" for byte in name.encode())
