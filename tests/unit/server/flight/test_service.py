"""The Flight service as any Flight client sees it."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl
import pytest

from braidmq import columnar
from braidmq.columnar.flight import requests
from braidmq.columnar.flight.failures import UnavailableError, decode_failure
from braidmq.columnar.flight.requests import REQUEST_BYTES_MAX, ReadRequest, encode
from braidmq.server.flight import calls as flight_calls
from braidmq.server.flight import service as flight_service
from braidmq.server.flight.places import Places
from tests.unit.columnar.endpoints import Served, served
from tests.unit.columnar.logs import message, write_log

TOPICS = ("a1", "a2", "ü")


def call(key: str = "all") -> fl.FlightCallOptions:
    return fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bodies = [message(TOPICS[n % 3], bytes(n)) for n in range(300)]
    return write_log(tmp_path_factory.mktemp("log"), bodies)


@pytest.fixture(scope="module")
def service(path: Path) -> Iterator[Served]:
    with served(path) as found:
        yield found


@pytest.fixture(scope="module")
def client(service: Served) -> Iterator[fl.FlightClient]:
    with fl.FlightClient(service.address) as found:
        yield found


def test_topics_are_flights(client: fl.FlightClient, path: Path) -> None:
    """Each with its messages and bytes, and a ticket that reads it."""
    flights = list(client.list_flights(options=call()))
    counts = columnar.topic_counts(path)

    assert [[topic.encode()] for topic in TOPICS] == [one.descriptor.path for one in flights]
    for topic, one in zip(TOPICS, flights, strict=True):
        rows = client.do_get(one.endpoints[0].ticket, call()).read_all()
        assert counts[topic] == (one.total_records, one.total_bytes)
        assert columnar.read(path, topics=[topic]) == rows
        assert one.schema == rows.schema
    last = encode(requests.TopicCountsRequest(start=299))
    assert [b"a2", "ü".encode()] == [
        one.descriptor.path[0] for one in client.list_flights(last, call())
    ]
    assert [b"a1", b"a2"] == [
        one.descriptor.path[0] for one in client.list_flights(options=call("some"))
    ]


def test_a_range_is_a_flight(client: fl.FlightClient, path: Path) -> None:
    """Its tickets, one after the other, yield the range."""
    wanted = ReadRequest(start=10, end=200, topics=["ü"], columns=["offset", "value"])
    info = client.get_flight_info(fl.FlightDescriptor.for_command(encode(wanted)), call())
    tables = [client.do_get(one.ticket, call()).read_all() for one in info.endpoints]
    expected = columnar.read(path, start=10, end=200, topics=["ü"], columns=["offset", "value"])

    assert expected == pa.concat_tables(tables)
    assert expected.num_rows == info.total_records
    assert expected.schema == info.schema
    by_qos = encode(ReadRequest(qos=1))
    info = client.get_flight_info(fl.FlightDescriptor.for_command(by_qos), call())
    assert -1 == info.total_records


def test_tickets_that_would_fill_the_memory_are_refused(
    client: fl.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part's ticket repeats the whole request."""
    monkeypatch.setattr(flight_service, "TICKETS_BYTES_MAX", 50)
    descriptor = fl.FlightDescriptor.for_command(encode(ReadRequest(topics=["a1"])))
    with pytest.raises(fl.FlightServerError, match="the tickets would not fit"):
        client.get_flight_info(descriptor, call())


def test_a_path_is_a_topic(client: fl.FlightClient) -> None:
    """Every path that `list_flights` returns can be looked up."""
    descriptor = fl.FlightDescriptor.for_path("ü")

    assert 100 == client.get_flight_info(descriptor, call()).total_records
    schema = client.get_schema(descriptor, call()).schema
    assert ["key", "value", "topic"] == schema.names[:3]


def test_the_actions_are_listed(client: fl.FlightClient) -> None:
    """Each with a description."""
    actions = client.list_actions(call())

    assert list(requests.ACTIONS) == [action.type for action in actions]
    assert all(action.description.endswith((".", ";")) for action in actions)


def act(client: fl.FlightClient, name: str, body: bytes) -> list[Any]:
    return [json.loads(r.body.to_pybytes()) for r in client.do_action((name, body), call())]


def test_an_action_needs_no_body_when_it_has_no_fields(client: fl.FlightClient) -> None:
    """The reply is plain JSON, which any client can read."""
    assert [{"earliest": 1, "latest": 301}] == act(client, "offsets", b"")


COMMAND = fl.FlightDescriptor.for_command
BadRequest = Callable[[fl.FlightClient], object]
BAD_REQUESTS: dict[str, tuple[BadRequest, str]] = {
    "a ticket that is not JSON": (
        lambda client: client.do_get(fl.Ticket(b"\x00"), call()).read_all(),
        "bad_request",
    ),
    "a ticket that is too long": (
        lambda client: client.do_get(
            fl.Ticket(b" " * (REQUEST_BYTES_MAX + 1)), call()
        ).read_all(),
        "bad_request",
    ),
    "an unknown column": (
        lambda client: client.do_get(fl.Ticket(b'{"columns":["x"]}'), call()).read_all(),
        "config",
    ),
    "an unknown action": (lambda client: act(client, "x" * 9999, b""), "bad_request"),
    "an action without its fields": (lambda client: act(client, "advance", b""), "bad_request"),
    "a wrong type": (lambda client: act(client, "cut", b'{"start":true}'), "bad_request"),
    "criteria that are not JSON": (
        lambda client: list(client.list_flights(b"[", call())),
        "bad_request",
    ),
    "a command that is not a read": (
        lambda client: client.get_flight_info(COMMAND(b"[]"), call()),
        "bad_request",
    ),
    "a path of two parts": (
        lambda client: client.get_flight_info(fl.FlightDescriptor.for_path("a", "b"), call()),
        "bad_request",
    ),
    "an exchange": (
        lambda client: client.do_exchange(COMMAND(b""), call())[1].read_all(),
        "bad_request",
    ),
    "no key": (
        lambda client: client.do_get(fl.Ticket(b"{}")).read_all(),
        "unauthenticated",
    ),
    "a key without permission": (
        lambda client: client.do_get(
            fl.Ticket('{"topics":["ü"]}'.encode()), call("some")
        ).read_all(),
        "not_allowed",
    ),
    "a long topic that is not allowed": (
        lambda client: client.do_get(
            fl.Ticket(encode(ReadRequest(topics=["ü" * 30_000]))), call("some")
        ).read_all(),
        "not_allowed",
    ),
    "ids that are not in the log": (
        lambda client: client.do_get(fl.Ticket(b'{"end":999}'), call()).read_all(),
        "data_loss",
    ),
}


@pytest.mark.parametrize(("ask", "kind"), BAD_REQUESTS.values(), ids=BAD_REQUESTS)
def test_a_bad_request_is_answered_with_a_typed_error(
    client: fl.FlightClient, service: Served, ask: BadRequest, kind: str
) -> None:
    """The peer learns what is wrong but sees no traceback, and the slots are free again."""
    with pytest.raises(fl.FlightError) as caught:
        ask(client)

    assert kind == json.loads(caught.value.extra_info)["error"]
    assert decode_failure(caught.value.extra_info, "x") is not None
    assert "Traceback" not in str(caught.value)
    assert [{"earliest": 1, "latest": 301}] == act(client, "offsets", b"")
    assert 0 == service.calls.streams.taken + service.calls.scans.taken


def test_a_stream_ends_with_a_mark(client: fl.FlightClient) -> None:
    """An empty batch that says how many rows came before it."""
    reader = client.do_get(fl.Ticket(b'{"batch_rows":50}'), call())
    chunks = list(reader)

    assert 300 == sum(len(chunk.data) for chunk in chunks)
    assert 0 == len(chunks[-1].data)
    mark = json.loads(chunks[-1].app_metadata.to_pybytes())
    assert {"rows": 300, "losses": []} == mark
    assert {None} == {chunk.app_metadata for chunk in chunks[:-1]}


def test_an_abandoned_read_frees_its_place(
    client: fl.FlightClient,
) -> None:
    """After more of them than there are places, there is still a free one."""
    for _ in range(2 * flight_calls.STREAMS_MAX):
        reader = client.do_get(fl.Ticket(b'{"batch_rows":1}'), call())
        reader.read_chunk()
        reader.cancel()
    assert 300 == client.do_get(fl.Ticket(b"{}"), call()).read_all().num_rows


def test_a_read_that_finds_no_place_is_told_to_try_again(path: Path) -> None:
    """The limit holds for the whole service, whichever clients hold the places."""
    with served(path) as found:
        found.calls.streams = Places("reads", 0, wait_s=0)
        with pytest.raises(UnavailableError, match="places for reads are taken; try again"):
            list(found.endpoint().batches())


def test_closing_the_service_ends_a_running_stream(tmp_path: Path) -> None:
    """With an error that says why, never as if the stream were complete."""
    write_log(tmp_path, [message("t", bytes(2**20)) for _ in range(60)], segment_bytes=2**26)
    with served(tmp_path) as found:
        batches = found.endpoint().batches()
        next(batches)
        found.calls.close()
        with pytest.raises(UnavailableError, match="the broker is shutting down"):
            list(batches)
