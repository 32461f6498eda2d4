"""The HTTP API of a real broker, over real sockets."""

import http.client
import json
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from prometheus_client.parser import text_string_to_metric_families

import braidmq
from tests.integration.http.served import PATIENCE_S, Served, served

HOSTILE = [
    "<script>alert(1)</script>",
    "\u202egnihtemos",
    "a/messages",
    "..%2F..",
    "?from=1#x",
    "\x00\x01",
    10_240 * "\u00e9",
    65_535 * "x",
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Served]:
    with served() as broker:
        yield broker


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_any_topic_name_works(broker: Served, name: str) -> None:
    """A message can be published, listed, browsed and shown, whatever its topic's name."""
    offset = broker.publish(name, {"n": 1})
    path = f"/api/topics/{quote(name, safe='')}"
    page = broker.ask("GET", f"{path}/messages?order=desc&limit=1").json()
    listed = broker.ask("GET", f"/api/topics?search={quote(name[:100])}&limit=1000").json()

    assert [(offset, {"n": 1})] == [(m["offset"], m["payload"]) for m in page["messages"]]
    assert offset == broker.ask("GET", f"{path}/messages/{offset}").json()["offset"]
    assert name == broker.ask("GET", path).json()["name"]
    assert name in [topic["name"] for topic in listed["topics"]]


def test_a_topic_name_that_is_too_long_is_refused(broker: Served) -> None:
    """The limit is 65,535 bytes."""
    answer = broker.ask("POST", f"/api/topics/{65_536 * 'x'}/messages", {"payload": 1})

    assert (400, {"error": "a topic has at most 65535 bytes of UTF-8"}) == (
        answer.status,
        answer.json(),
    )


def test_a_large_message_round_trips(broker: Served) -> None:
    """A page of messages truncates it; requested by its offset, it is complete."""
    text = 3_000_000 * "x"
    offset = broker.publish("large", text)
    (cut,) = broker.ask("GET", "/api/topics/large/messages").json()["messages"]
    whole = broker.ask("GET", f"/api/topics/large/messages/{offset}").json()

    assert (True, 65_536, 3_000_000) == (cut["truncated"], len(cut["payload"]), cut["size"])
    assert (False, text) == (whole["truncated"], whole["payload"])


def test_the_event_stream_shows_a_publish(broker: Served) -> None:
    """It sends `history` at once, then `numbers`, which count the message."""
    connection = http.client.HTTPConnection(broker.host, broker.port, timeout=PATIENCE_S)
    headers = {"Authorization": "Bearer dev-key"}
    connection.request("GET", "/api/events", headers=headers)
    response = connection.getresponse()
    assert "text/event-stream; charset=utf-8" == response.headers["content-type"]
    assert b"event: history\n" == response.readline()
    assert isinstance(json.loads(response.readline()[6:]), list)
    response.readline()
    seen = 0.0
    while not seen:
        broker.publish("live", 1)
        assert b"event: numbers\n" == response.readline()
        seen = json.loads(response.readline()[6:])["in"]["http"]
        response.readline()
    connection.close()

    assert seen > 0


def test_prometheus_can_read_the_metrics(broker: Served) -> None:
    """Every documented family is there, and counts the publish."""
    broker.publish("counted", 1)
    text = broker.ask("GET", "/metrics", key=None).data.decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    by_strand = {
        sample.labels["strand"]: sample.value
        for sample in families["braidmq_strand_messages_published"].samples
    }

    assert by_strand["http"] > 0
    assert {"blip", "vibe", "qumbed", "http", "spark"} == by_strand.keys()
    assert "histogram" == families["braidmq_wal_fsync_duration_seconds"].type
    assert "histogram" == families["braidmq_wal_commit_records"].type
    assert {
        "braidmq_messages_delivered",
        "braidmq_messages_acknowledged",
        "braidmq_messages_nacked",
        "braidmq_messages_dropped",
        "braidmq_messages_redelivered",
        "braidmq_messages_dead_lettered",
        "braidmq_messages_inflight",
        "braidmq_messages_waiting",
        "braidmq_cursor_lag",
        "braidmq_connections",
        "braidmq_wal_size_bytes",
        "braidmq_recovery_seconds",
        "braidmq_event_loop_lag_seconds",
        "braidmq_memory_used_bytes",
        "braidmq_process_resident_memory_bytes",
    } <= families.keys()
    assert all(family.documentation for family in families.values())


def test_a_dead_letter_can_be_replayed_from_the_listing(broker: Served) -> None:
    """Rejected on Vibe, listed with its payload, replayed by its offset, delivered again."""

    async def reject() -> None:
        async with braidmq.connect(broker.broker.url("vibe")) as client:
            await client.publish("mail", b'{"to": "ada"}')
            async with client.subscribe("mail") as incoming:
                await (await anext(aiter(incoming))).nack(dead_letter=True)
                await client.publish("fence", b"{}")

    broker.run(reject())
    (letter,) = broker.ask("GET", "/api/dead-letters?queue=dlq.mail").json()["letters"]
    body = {"queue": "dlq.mail", "offset": letter["offset"]}
    answer = broker.ask("POST", "/api/dead-letters/replay", body)
    queue = broker.ask("GET", "/api/queues/mail").json()

    assert ({"to": "ada"}, "rejected") == (letter["payload"], letter["reason"])
    assert ({"queue": "dlq.mail", "replayed": 1}, 1) == (answer.json(), queue["messageCount"])


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /api/topics/%FF HTTP/1.1",
        b"GET http://evil.example.com/api/session HTTP/1.1",
        b"GET /api/topics/%zz HTTP/1.1",
        b"GET //api/session HTTP/1.1",
        b"BREW /api/session HTTP/1.1",
        b"GET /api/topics?limit=%00&limit=x HTTP/1.1",
        b"POST /api/topics/x/messages HTTP/1.1",
    ],
)
def test_odd_requests_get_a_4xx(broker: Served, request_line: bytes) -> None:
    """Whatever the request line holds, it is the client's error, not the server's."""
    with socket.create_connection((broker.host, broker.port), timeout=PATIENCE_S) as peer:
        peer.sendall(
            request_line
            + b"\r\nHost: localhost\r\nAuthorization: Bearer dev-key\r\n"
            + b"Content-Length: 0\r\nConnection: close\r\n\r\n"
        )
        status = peer.recv(65_536).split(b" ")[1]

    assert b"4" == status[:1], status
