"""The HTTP API against its OpenAPI description: every response conforms to it."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi import checks

import braidmq
from braidmq.admin.http.app import endpoints_of
from braidmq.admin.http.openapi import describe
from tests.integration.http.served import Served, served
from tests.unit.admin.world import World

ENDLESS = "/api/events"
CHECKS = [
    schemathesis.checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.ignored_auth,
    checks.negative_data_rejection,
]
REFUSALS = {
    "after must be the `next` of a page with the same sort": "it is opaque",
    "deadLetterQueueName: is the queue itself": "no schema compares two values",
}
"""Refusals of requests that fit the description, and why it cannot express them.

Apart from these, a request may fail because something is missing (404) or conflicts (409).
"""
BOUNDED = settings(
    max_examples=15,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    with served() as broker:
        for number in range(3):
            broker.publish("orders", {"n": number})
        broker.ask("POST", "/api/queues", {"name": "mail", "maxQueueSize": 2})
        yield broker


def fitting_data_acceptance(
    ctx: schemathesis.CheckContext,
    response: schemathesis.Response,
    case: schemathesis.Case[Any],
) -> bool | None:
    """The broker accepts what fits the description, except for REFUSALS."""
    if 400 == response.status_code:
        given = case.body.values() if isinstance(case.body, dict) else []
        # To a JSON schema 1.0 is an integer; to the broker it is not.
        if response.json()["error"] in REFUSALS or float in map(type, given):
            return None
    accepted: bool | None = checks.positive_data_acceptance(ctx, response, case)
    return accepted


# The description needs no running broker, so there can be one test for each operation.
DESCRIBED = describe(
    endpoints_of(World(recovered=False).status, loopback=True), braidmq.__version__
)
schema = schemathesis.openapi.from_dict(DESCRIBED).exclude(path=ENDLESS)


def test_the_served_description_is_the_tested_one(broker: Served) -> None:
    """A running broker serves the description that the code generates."""
    answer = broker.ask("GET", "/api/openapi.json", key=None)

    assert (200, DESCRIBED) == (answer.status, answer.json())


@pytest.mark.slow
@schema.parametrize()
@BOUNDED
def test_every_response_conforms_to_the_description(
    case: schemathesis.Case[Any], broker: Served
) -> None:
    """Statuses, media types and bodies, for valid and for invalid requests."""
    headers = {"Authorization": "Bearer dev-key"}
    case.call_and_validate(
        base_url=broker.url, headers=headers, checks=[*CHECKS, fitting_data_acceptance]
    )
