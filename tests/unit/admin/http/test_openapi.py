"""The OpenAPI description: every endpoint, and nothing else."""

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from braidmq.admin.http.app import endpoints_of
from braidmq.admin.http.endpoints import Endpoint
from braidmq.admin.http.openapi import VERSION, describe, operation_id, statuses_of
from tests.unit.admin.world import ADMIN, ORDERS, World

ENDPOINTS = endpoints_of(World(recovered=False).status, loopback=True)


def operations() -> dict[tuple[str, str], dict[str, object]]:
    paths = describe(ENDPOINTS, "1")["paths"]
    assert isinstance(paths, dict)
    return {
        (method.upper(), path): operation
        for path, methods in paths.items()
        for method, operation in methods.items()
    }


def test_every_endpoint_is_described() -> None:
    """Including that of the description itself."""
    assert {(e.method, e.path) for e in ENDPOINTS} == operations().keys()
    assert VERSION == describe(ENDPOINTS, "1")["openapi"]


def test_every_operation_has_a_unique_name() -> None:
    """Generated clients use it."""
    names = [operation_id(endpoint) for endpoint in ENDPOINTS]

    assert len(names) == len(set(names))
    assert "get_topics_topic_messages_offset" in names


def test_the_names_in_a_path_are_described() -> None:
    """All of them in order, and no others."""
    for (_, path), operation in operations().items():
        parameters = operation.get("parameters", [])
        assert isinstance(parameters, list)
        named = [p["name"] for p in parameters if p["in"] == "path"]

        assert [part[1:-1] for part in path.split("/") if part.startswith("{")] == named


def test_every_change_needs_a_key() -> None:
    """Only what monitors and the dashboard need before they have a key is open."""
    open_paths = {
        path for (_, path), operation in operations().items() if "security" not in operation
    }

    assert {
        "/",
        "/static/{file}",
        "/healthz",
        "/livez",
        "/readyz",
        "/metrics",
        "/api/openapi.json",
    } == open_paths
    assert {endpoint.method for endpoint in ENDPOINTS if endpoint.path in open_paths} == {"GET"}


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda e: f"{e.method} {e.path}")
def test_refusals_follow_from_what_an_endpoint_takes(endpoint: Endpoint) -> None:
    """A body may be too long or too slow, a key wrong, a parameter invalid."""
    statuses = statuses_of(endpoint)

    assert (endpoint.body is not None) == (413 in statuses)
    assert (endpoint.key != "none") == (401 in statuses)
    if endpoint.query or endpoint.body is not None:
        assert 400 in statuses


ACCEPTED: dict[str, list[object]] = {
    "/api/queues": [
        {"name": "a"},
        {"name": "a", "deliveryMode": "RoundRobin", "overflowStrategy": 3, "messageTtl": 0},
        {"name": "a", "messageTtl": "1.00:00:00", "deadLetterQueueName": "", "durable": None},
    ],
    "/api/dead-letters/replay": [
        {"queue": "a"},
        {"queue": "a", "count": 1, "offset": None},
        {"queue": "a", "offset": 7},
    ],
    "/api/topics/{topic}/messages": [
        {"payload": None},
        {"payload_base64": "AA==", "headers": {"k": "v"}, "truncated": False},
    ],
}
REFUSED: dict[str, list[object]] = {
    "/api/queues": [
        {},
        {"name": ""},
        {"name": "a b"},
        {"name": "a", "priority": 1},
        {"name": "a", "deliveryMode": "Random"},
        {"name": "a", "deliveryMode": 4},
        {"name": "a", "overflowStrategy": -1},
        {"name": "a", "messageTtl": "1"},
        {"name": "a", "messageTtl": -1},
        {"name": "a", "maxQueueSize": 0},
        {"name": "a", "maxRetryAttempts": 2**31},
        {"name": "a", "deadLetterQueueName": "a/b"},
    ],
    "/api/dead-letters/replay": [
        {"queue": ""},
        {"queue": "a", "all": True},
        {"queue": "a", "count": 0},
        {"queue": "a", "count": 1, "offset": 1},
    ],
    "/api/topics/{topic}/messages": [
        {},
        {"payload": 1, "payload_base64": ""},
        {"payload_base64": "A"},
        {"payload": 1, "headers": {"": "v"}},
        {"payload": 1, "truncated": True},
    ],
}


@pytest.mark.parametrize("path", ACCEPTED)
def test_bodies_are_described_as_strictly_as_they_are_read(
    client: TestClient, path: str
) -> None:
    """A generated client rejects what the broker would refuse, before it sends anything."""
    described = describe(ENDPOINTS, "1")
    body = operations()["POST", path]["requestBody"]
    assert isinstance(body, dict)
    schema = {
        "components": described["components"],
        **body["content"]["application/json"]["schema"],
    }
    validator = jsonschema_rs.validator_for(schema, offline=True)
    address, key = path.replace("{topic}", "in.a"), ORDERS if "{topic}" in path else ADMIN
    answers = [client.post(address, json=one, headers=key) for one in REFUSED[path]]

    assert [] == [one for one in ACCEPTED[path] if not validator.is_valid(one)]
    assert [] == [one for one in REFUSED[path] if validator.is_valid(one)]
    assert {400} == {answer.status_code for answer in answers}


def test_every_schema_is_valid() -> None:
    """They are JSON Schema, and refer only to each other."""
    components = describe(ENDPOINTS, "1")["components"]
    assert isinstance(components, dict)
    for name in components["schemas"]:
        schema = {"components": components, "$ref": f"#/components/schemas/{name}"}
        jsonschema_rs.validator_for(schema, offline=True)
