"""A Vibe session on the server's side: the commands that it reads."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.vibe import frames, messages, session
from braidmq.wire.vibe.frames import DIALECT_1_0, DIALECT_1_1, DIALECT_UNKNOWN
from braidmq.wire.vibe.session import (
    CONNECTED,
    INVALID_MESSAGE,
    NEW,
    Command,
    Reply,
    Request,
    Session,
)
from tests.unit.wire.vibe.peer import (
    ACCEPTED,
    ADMINISTRATION,
    BOTH_DIALECTS,
    CONNECT_FIRST,
    GOLDEN_REQUESTS,
    ON_A_QUEUE,
    REQUESTS,
    frame,
    outcome,
    read,
    session_in,
)


@BOTH_DIALECTS
def test_every_type_before_connect(dialect: int) -> None:
    """Connect, Ping and Disconnect are accepted; all others are told to connect first."""
    expected: dict[int, object] = dict.fromkeys(range(256), CONNECT_FIRST)
    for kind in (messages.CONNECT, messages.PING, messages.DISCONNECT):
        expected[kind] = ACCEPTED

    assert expected == {
        kind: outcome(session_in(NEW), frame(dialect, kind, queue="q"), dialect)
        for kind in range(256)
    }


@BOTH_DIALECTS
def test_every_type_after_connect(dialect: int) -> None:
    """Requests are accepted; unknown and server-to-client types are refused by number."""
    expected: dict[int, object] = {
        kind: (INVALID_MESSAGE, f"unknown command type {kind}") for kind in range(256)
    }
    for kind in REQUESTS:
        expected[kind] = ACCEPTED
    peer = session_in(CONNECTED, dialect)

    assert expected == {
        kind: outcome(peer, frame(dialect, kind, queue="q"), dialect) for kind in range(256)
    }


@pytest.mark.parametrize("row", GOLDEN_REQUESTS, ids=lambda row: str(row["name"]))
@pytest.mark.parametrize("column", ["dialect_1_0", "dialect_1_0_short", "dialect_1_1"])
def test_golden_requests_are_read_with_all_fields(row: dict[str, Any], column: str) -> None:
    """Every golden frame of a client becomes a Request, twice in a row."""
    dialect = DIALECT_1_1 if column == "dialect_1_1" else DIALECT_1_0
    peer = session_in(CONNECTED, dialect)
    peer.receive_data(bytes.fromhex(row[column]) * 2)

    for _ in range(2):  # the second Publish takes the fast path: its queue is cached
        command = peer.next_command()
        assert isinstance(command, Request)
        assert (row["type"], row["id"]) == (command.kind, command.id)
        assert (row["queue"] or "") == command.queue
        assert (row["payload"] or "").encode() == command.payload
        assert row["headers"] == command.headers
    assert peer.next_command() is None


# What is wrong with a frame, its fields and the error text; the checks that apply to any
# command come first, in their order.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("empty id", {"kind": 20, "message_id": "", "queue": "a b"}, "empty id"),
    ("unknown before queue", {"kind": 77, "queue": "a b"}, "unknown command type 77"),
    ("queue before payload", {"kind": 20, "queue": "a b", "payload": b"x"}, "bad queue name"),
    ("257 characters", {"kind": 20, "queue": "x" * 257}, "bad queue name"),
    ("queue of a Ping", {"kind": 10, "queue": "a b"}, "bad queue name"),
    ("queue of an Ack", {"kind": 30, "queue": "a/b"}, "bad queue name"),
    ("not JSON", {"kind": 20, "queue": "q", "payload": b"{"}, "the payload is not JSON"),
    ("not UTF-8", {"kind": 20, "queue": "q", "payload": b'"\xff"'}, "the payload is not JSON"),
    ("options", {"kind": 40, "queue": "q", "payload": b"mode"}, "the payload is not JSON"),
    ("Ping", {"kind": 10, "payload": b"NaN"}, "the payload is not JSON"),
    ("empty key", {"kind": 20, "queue": "q", "headers": {"": "v"}}, "empty header key"),
    ("prefetch 0", {"kind": 22, "queue": "q", "headers": {"prefetch": "0"}}, "from 1 to 10000"),
    (
        "prefetch 10001",
        {"kind": 22, "queue": "q", "headers": {"prefetch": "10001"}},
        "from 1 to 10000",
    ),
    (
        "prefetch text",
        {"kind": 22, "queue": "q", "headers": {"prefetch": "x"}},
        "from 1 to 10000",
    ),
    (
        "prefetch empty",
        {"kind": 22, "queue": "q", "headers": {"prefetch": ""}},
        "from 1 to 10000",
    ),
    (
        "prefetch long",
        {"kind": 22, "queue": "q", "headers": {"prefetch": "9" * 5000}},
        "from 1 to 10000",
    ),
    (
        "prefetch sign",
        {"kind": 22, "queue": "q", "headers": {"prefetch": "+1"}},
        "from 1 to 10000",
    ),
    (
        "prefetch script",
        {"kind": 22, "queue": "q", "headers": {"prefetch": "٣"}},
        "from 1 to 10000",
    ),
    ("result", {"kind": 30, "headers": {"result": "maybe"}}, "neither reject nor requeue"),
    (
        "result case",
        {"kind": 30, "headers": {"result": "Reject"}},
        "neither reject nor requeue",
    ),
    ("result empty", {"kind": 30, "headers": {"result": ""}}, "neither reject nor requeue"),
    (
        "delay",
        {"kind": 30, "headers": {"result": "requeue", "delayMs": "-1"}},
        "from 0 to 86400000",
    ),
    (
        "delay text",
        {"kind": 30, "headers": {"result": "requeue", "delayMs": "1s"}},
        "from 0 to 86400000",
    ),
    (
        "long",
        {"kind": 30, "headers": {"result": "requeue", "delayMs": "86400001"}},
        "from 0 to 86400000",
    ),
    *[(f"{kind} alone", {"kind": kind}, "a queue name is required") for kind in ON_A_QUEUE],
    *[(f"{kind}", {"kind": kind, "payload": b"no"}, "not JSON") for kind in ADMINISTRATION],
]


@BOTH_DIALECTS
@pytest.mark.parametrize(
    ("fields", "text"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refusals_in_the_order_of_the_checks(
    fields: dict[str, Any], text: str, dialect: int
) -> None:
    """Each is INVALID_MESSAGE under the frame's id; the next frame is still read."""
    peer = session_in(CONNECTED, dialect)
    outcome(peer, frame(dialect, messages.QUEUE_INFO, queue="q"), dialect)  # q is cached now
    peer.receive_data(frame(dialect, **fields) + frame(dialect, messages.PING, "p1"))
    reply = peer.next_command()

    assert isinstance(reply, Reply)
    assert (session.REPLY, False) == (reply.kind, reply.closes)
    body = read(reply.data, dialect)
    assert INVALID_MESSAGE == body.error_code
    assert text in body.error_message
    assert (fields.get("message_id", "r1") or "err-1") == body.id
    assert fields.get("queue", "") == body.queue
    ping = peer.next_command()
    assert ping is not None
    assert (messages.PING, "p1") == (ping.kind, ping.id)


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": 22, "queue": "q", "headers": {"prefetch": "1"}},
        {"kind": 22, "queue": "q", "headers": {"prefetch": "10000"}},
        {"kind": 30, "headers": {"result": "reject"}},
        {"kind": 30, "headers": {"result": "reject", "delayMs": "ignored"}},
        {"kind": 30, "headers": {"result": "requeue"}},
        {"kind": 30, "headers": {"result": "requeue", "delayMs": "0"}},
        {"kind": 30, "headers": {"result": "requeue", "delayMs": "86400000"}},
        {"kind": 30, "queue": "очередь"},
        {"kind": 20, "queue": "x" * 256, "payload": b"null"},
        {
            "kind": 20,
            "queue": "q",
            "headers": {"prefetch": "x", "result": "x"},
        },  # headers of other commands
        {"kind": 40, "queue": "q", "payload": b'{"mode":99}'},  # checked with the options
        {"kind": 55},
    ],
)
def test_good_values_are_accepted(fields: dict[str, Any]) -> None:
    """Including the limits themselves."""
    assert ACCEPTED == outcome(session_in(CONNECTED), frame(DIALECT_1_1, **fields))


@BOTH_DIALECTS
def test_another_version_is_refused_and_the_connection_stays_open(dialect: int) -> None:
    """The next frame is read as usual."""
    good = frame(dialect, messages.PING, "p1")
    at = 4 if dialect == DIALECT_1_0 else 5
    bad = good[:at] + b"\x02" + good[at + 1 :]
    peer = session_in(CONNECTED, dialect)

    assert (INVALID_MESSAGE, "unsupported version 2") == outcome(peer, bad, dialect)
    assert ACCEPTED == outcome(peer, good, dialect)


def test_ids_are_generated_if_none_can_be_read() -> None:
    """Each such refusal gets a new one."""
    peer = session_in(CONNECTED)
    peer.receive_data(frame(DIALECT_1_1, messages.PING, "") * 2 + bytes(4))
    ids = []
    while (command := peer.next_command()) is not None:
        assert isinstance(command, Reply)
        ids.append((read(command.data, DIALECT_1_1).id, command.closes))

    assert [("err-1", False), ("err-2", False), ("err-3", True)] == ids


def test_a_refusal_before_connect_names_its_request() -> None:
    """The Error carries its id and queue."""
    peer = session_in(NEW)
    peer.receive_data(frame(DIALECT_1_0, messages.PUBLISH, "m1", "orders", b"{}"))
    reply = peer.next_command()

    assert isinstance(reply, Reply)
    body = read(reply.data, DIALECT_1_0)
    assert ("m1", "orders") == (body.id, body.queue)


BROKEN_LAYOUT = bytes.fromhex("01 14 0002 6d31 ffff 00000000 0000")

LOST: list[tuple[str, bytes, str, str]] = [
    ("length 0", bytes(4), "length 0", "err-1"),
    ("oversize", bytes.fromhex("00100001"), "limit is 1048576", "err-1"),
    ("flags", bytes.fromhex("00000010 03"), "unknown flags", "err-1"),
    ("gzip", bytes.fromhex("00000002 01 1f8b"), "cut off", "err-1"),
    ("brotli", bytes.fromhex("00000001 02 ff"), "not brotli", "err-1"),
    ("layout", frames.encode(DIALECT_1_1, BROKEN_LAYOUT), "ends in its queue", "m1"),
    ("no id", frames.encode(DIALECT_1_1, b"\x01"), "shortest has 12", "err-1"),
    (
        "not UTF-8",
        frame(DIALECT_1_1, messages.PUBLISH, "m1", "q", headers={"k": "?"}).replace(
            b"?", b"\xff"
        ),
        "not UTF-8",
        "m1",
    ),
    (
        "an id that is not UTF-8",
        frame(DIALECT_1_1, messages.PUBLISH, "?", "q").replace(b"?", b"\xff"),
        "not UTF-8",
        "err-1",
    ),
    (
        "a bomb",
        frames.encode(
            DIALECT_1_1,
            messages.write_body(
                messages.PUBLISH, "m1", "q", bytes(2 * frames.BODY_MAX), with_errors=False
            ),
            frames.BROTLI,
        ),
        "limit is 1048576",
        "err-1",
    ),
]


@pytest.mark.parametrize(
    ("wire", "text", "request_id"), [row[1:] for row in LOST], ids=[row[0] for row in LOST]
)
@pytest.mark.parametrize("known", [False, True])
def test_lost_framing_is_answered_and_ends_the_session(
    wire: bytes, text: str, request_id: str, known: bool
) -> None:
    """Earlier commands are returned, then one Error that closes, then nothing more."""
    peer = session_in(CONNECTED)
    if known:
        outcome(peer, frame(DIALECT_1_1, messages.PUBLISH, "m0", "q"))
    peer.receive_data(frame(DIALECT_1_1, messages.PING, "p1") + wire)
    ping = peer.next_command()
    assert ping is not None
    assert "p1" == ping.id
    reply = peer.next_command()

    assert isinstance(reply, Reply)
    assert reply.closes
    body = read(reply.data, DIALECT_1_1)
    assert (messages.ERROR, INVALID_MESSAGE) == (body.type, body.error_code)
    assert text in body.error_message
    assert request_id == body.id
    held = peer.held_bytes
    peer.receive_data(frame(DIALECT_1_1, messages.PING))
    assert peer.next_command() is None
    assert held == peer.held_bytes


@pytest.mark.parametrize(
    ("wire", "dialect"),
    [
        (bytes(4), DIALECT_UNKNOWN),
        (bytes.fromhex("00001001"), DIALECT_UNKNOWN),  # before Connect the limit is 4096
        (bytes.fromhex("00001001 01 00"), DIALECT_UNKNOWN),
        (bytes.fromhex("00000010 03"), DIALECT_UNKNOWN),
        (b"GET / HTTP/1.1\r\n\r\n", DIALECT_UNKNOWN),
        (frames.encode(DIALECT_1_0, BROKEN_LAYOUT), DIALECT_1_0),
        (frames.encode(DIALECT_1_1, BROKEN_LAYOUT), DIALECT_1_1),
    ],
)
def test_a_malformed_first_frame_is_answered(wire: bytes, dialect: int) -> None:
    """In its dialect, or in 1.1 if that is unknown."""
    peer = session_in(NEW)
    peer.receive_data(wire)
    reply = peer.next_command()

    assert isinstance(reply, Reply)
    assert reply.closes
    assert dialect == peer.dialect
    spoken = dialect or DIALECT_1_1
    assert INVALID_MESSAGE == read(reply.data, spoken).error_code


def test_a_publish_leaves_space_for_the_headers_of_its_delivery() -> None:
    """256 bytes; one more byte is refused, and the connection stays open."""
    empty = len(messages.write_body(messages.PUBLISH, "r1", "q", with_errors=False))
    space = frames.BODY_MAX - 256 - empty
    peer = session_in(CONNECTED)

    for _ in range(2):  # the queue is unknown at first, then cached
        fits = frame(DIALECT_1_1, messages.PUBLISH, "r1", "q", b"1" * space)
        assert ACCEPTED == outcome(peer, fits)
        text = (
            "a Publish of 1048321 bytes, limit is 1048320, of vibe.max_message_bytes; "
            "whoever runs the broker may raise it"
        )
        assert (INVALID_MESSAGE, text) == outcome(
            peer, frame(DIALECT_1_1, messages.PUBLISH, "r1", "q", b"1" * (space + 1))
        )


def test_the_configured_limit_applies() -> None:
    """From Connect on; before that, a lower one."""
    assert ACCEPTED == outcome(
        session_in(CONNECTED, body_max=10_000),
        frame(DIALECT_1_1, messages.CREATE_QUEUE, "r", "q", b"1" * 9_900),
    )
    for peer, size in ((session_in(CONNECTED, body_max=10_000), 10_001), (Session(), 4097)):
        peer.receive_data(size.to_bytes(4, "big"))
        reply = peer.next_command()
        assert isinstance(reply, Reply)
        assert reply.closes


def test_the_limit_follows_the_state_after_all_earlier_frames() -> None:
    """Connect and a large Publish may arrive in one segment."""
    peer = Session()
    large = frame(DIALECT_1_1, messages.PUBLISH, "m1", "q", b"1" * 5000)
    peer.receive_data(frame(DIALECT_1_1, messages.CONNECT) + large)
    peer.next_command()
    peer.connected("r1", {})
    command = peer.next_command()

    assert isinstance(command, Request)
    assert b"1" * 5000 == command.payload


def test_a_large_frame_after_a_refused_connect_closes_the_connection() -> None:
    """In the same segment with wrong credentials."""
    peer = Session()
    large = frame(DIALECT_1_1, messages.PUBLISH, "m1", "q", b"1" * 5000)
    peer.receive_data(frame(DIALECT_1_1, messages.CONNECT) + large)
    peer.next_command()
    peer.refused("r1")
    reply = peer.next_command()

    assert isinstance(reply, Reply)
    assert reply.closes


def queues_of(peer: Session, names: list[str]) -> list[str]:
    """Publish to each of *names* and return the queues that the session read."""
    seen: list[str] = []
    for name in names:
        peer.receive_data(frame(DIALECT_1_1, messages.PUBLISH, queue=name))
        command = peer.next_command()
        assert isinstance(command, Request)
        seen.append(command.queue)
    return seen


def test_more_queues_than_fit_into_the_cache_are_read() -> None:
    """Evicting a name from the cache changes nothing."""
    names = [f"q{n}" for n in range(session.KNOWN_QUEUES_MAX + 2)] + ["q0", "q1"]
    peer = session_in(CONNECTED)

    assert names == queues_of(peer, names)
    assert len(peer._known_queues) <= session.KNOWN_QUEUES_MAX  # noqa: SLF001 - the bound is not visible elsewhere


def test_long_names_are_not_cached_and_still_read() -> None:
    """A name of many bytes is checked each time."""
    names = ["é" * 256, "x" * 256, "é" * 256]
    peer = session_in(CONNECTED)

    assert names == queues_of(peer, names)
    assert [b"x" * 256] == list(peer._known_queues)  # noqa: SLF001 - as above


def test_held_bytes_are_those_of_incomplete_frames() -> None:
    """A partial frame is held and counted."""
    peer = session_in(CONNECTED)
    peer.receive_data(frame(DIALECT_1_1, messages.PING)[:6])

    assert peer.next_command() is None
    assert 6 == peer.held_bytes


def commands_of(chunks: Iterable[bytes]) -> list[tuple[object, ...]]:
    """Drive a session that accepts any credentials; describe each command."""
    peer = Session()
    seen: list[tuple[object, ...]] = []
    for chunk in chunks:
        peer.receive_data(chunk)
        while (command := peer.next_command()) is not None:
            seen.append(described(command))
            if command.kind == messages.CONNECT:
                peer.connected(command.id, {})
    return seen


def described(command: Command) -> tuple[object, ...]:
    """Return all attributes of a command."""
    attributes = ("kind", "id", "queue", "payload", "headers", "data", "closes")
    return type(command), *(getattr(command, name, None) for name in attributes)


kinds = st.sampled_from([*REQUESTS, messages.PUBLISH, messages.DELIVER, 77])
queues = st.sampled_from(["", "q", "очередь", "a b"])
payloads = st.sampled_from([b"", b"{}", b"[1]", b"no", b'"\xff"'])
headers_of_any_kind = st.dictionaries(
    st.sampled_from(["", "k", "prefetch", "result"]), st.sampled_from(["", "7", "requeue"])
)


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    """Generate good and bad frames of one dialect, maybe after a Connect or before noise."""
    dialect = draw(st.sampled_from([DIALECT_1_0, DIALECT_1_1]))
    wire = frame(dialect, messages.CONNECT) if draw(st.booleans()) else b""
    for _ in range(draw(st.integers(0, 6))):
        body = messages.write_body(
            draw(kinds),
            draw(st.sampled_from(["", "m1", "é"])),
            draw(queues),
            draw(payloads),
            draw(headers_of_any_kind),
            with_errors=draw(st.booleans()),
        )
        wire += frames.encode(dialect, body)
    return wire + draw(st.sampled_from([b"", draw(st.binary(max_size=30))]))


@given(streams(), st.data())
def test_the_stream_may_be_split_anywhere(stream: bytes, data: st.DataObject) -> None:
    """However TCP splits the stream, the same commands come out."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]

    assert commands_of([stream]) == commands_of(chunks)


@given(streams(), st.integers(0, 400), st.binary(min_size=1, max_size=4))
def test_damage_never_raises(stream: bytes, at: int, damage: bytes) -> None:
    """For any bytes the session returns commands, and none after one that closes."""
    damaged = stream[:at] + damage + stream[at + len(damage) :]
    seen = commands_of([damaged])

    assert True not in [command[-1] for command in seen[:-1]]


@given(st.binary(max_size=120), st.booleans())
def test_noise_never_raises(noise: bytes, connected: bool) -> None:
    """As above, with noise only, or with noise in valid framing."""
    start = frame(DIALECT_1_1, messages.CONNECT) if connected else b""
    for wire in (noise, frames.encode(DIALECT_1_1, b"\x01\x14" + noise)):
        assert len(commands_of([start + wire])) <= 1 + len(start + wire) // 5
