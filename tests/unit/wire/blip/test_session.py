"""A Blip session on the server's side."""

from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.wire.blip import frames, messages, session
from braidmq.wire.blip.session import (
    AUTHENTICATED,
    GREETED,
    NEW,
    Authenticate,
    Command,
    OnSubscription,
    Publish,
    Reply,
    Session,
    Subscribe,
)
from braidmq.wire.errors import FrameTooLargeError, MalformedFrameError, WireError

ALL_TYPES = range(frames.HELLO, frames.CREDIT + 1)
GOOD_PAYLOADS = {
    frames.HELLO: bytes.fromhex("0001"),
    frames.AUTH: bytes.fromhex("0001 6b"),
    frames.PUBLISH: bytes.fromhex("01 0001 74 6869"),
    frames.SUBSCRIBE: bytes.fromhex("0001 74 01"),
    frames.ACK: (42).to_bytes(8, "big"),
    frames.NACK: bytes.fromhex("0190 0000"),
    frames.PING: b"",
    frames.PONG: b"",
    frames.POLL: (42).to_bytes(8, "big"),
    frames.STATS: b"",
    frames.UNSUBSCRIBE: (42).to_bytes(8, "big"),
    frames.CREDIT: (42).to_bytes(8, "big") + (7).to_bytes(4, "big"),
}
ACCEPTED = "accepted"
IGNORED = "ignored"
UNAUTHENTICATED = (401, "unauthenticated")
NON_ZERO = (400, "subscription_id must be non-zero")

# The state table of docs/protocols/blip.md, written out a second time: the outcome for a
# well-formed frame of each type in each state.
EXPECTED: dict[tuple[int, int], object] = {
    **{(NEW, kind): UNAUTHENTICATED for kind in ALL_TYPES},
    **{(GREETED, kind): UNAUTHENTICATED for kind in ALL_TYPES},
    **{(AUTHENTICATED, kind): ACCEPTED for kind in ALL_TYPES},
    (NEW, frames.HELLO): "ACK 0",
    (NEW, frames.AUTH): (400, "HELLO not performed"),
    (GREETED, frames.HELLO): (400, "HELLO already performed"),
    (GREETED, frames.AUTH): ACCEPTED,
    (AUTHENTICATED, frames.HELLO): (400, "HELLO already performed"),
    (AUTHENTICATED, frames.AUTH): (400, "already authenticated"),
    (AUTHENTICATED, frames.PONG): IGNORED,
    (AUTHENTICATED, frames.NACK): IGNORED,
}


def session_in(state: int) -> Session:
    """Return a session that was brought to *state* by the usual frames."""
    peer = Session()
    if state >= GREETED:
        peer.receive_data(messages.encode_hello(1))
        peer.next_command()
    if state >= AUTHENTICATED:
        peer.receive_data(messages.encode_auth(2, "k"))
        peer.next_command()
        peer.authenticated(2)
    assert state == peer.state
    return peer


def outcome(peer: Session, kind: int, payload: bytes, correlation_id: int = 9) -> object:
    """Return the outcome of a frame: a NACK's code and text, `ACK 0`, ACCEPTED or IGNORED."""
    peer.receive_data(frames.encode(kind, correlation_id, payload))
    command = peer.next_command()
    if command is None:
        return IGNORED
    if not isinstance(command, Reply):
        assert (kind, correlation_id) == (command.kind, command.correlation_id)
        return ACCEPTED
    if command.data == messages.encode_ack(correlation_id, 0):
        return "ACK 0"
    code, text = messages.read_nack(command.data[frames.HEADER_BYTES :])
    assert command.data == messages.encode_nack(correlation_id, code, text)
    return code, text


@pytest.mark.parametrize(("state", "kind"), EXPECTED)
def test_every_frame_in_every_state(state: int, kind: int) -> None:
    """The table holds each pair of state and frame type."""
    assert EXPECTED[state, kind] == outcome(session_in(state), kind, GOOD_PAYLOADS[kind])


def table_row(kind: int) -> str:
    """Return a frame type's cells of the documented table, from the session's own tables."""
    cells: list[str] = []
    for state in (NEW, GREETED, AUTHENTICATED):
        refusal = session.REFUSALS.get((state, kind))
        accepted = "ignored" if kind in {frames.PONG, frames.NACK} else "ok"
        cells.append(accepted if refusal is None else f"`{refusal[1]}`")
    return " | ".join(cells)


@pytest.mark.parametrize("kind", ALL_TYPES)
def test_the_documented_table_matches_the_session(kind: int) -> None:
    """docs/protocols/blip.md has the row that follows from the session's own tables."""
    rows = {frames.HELLO: "HELLO", frames.AUTH: "AUTH"}
    rows |= {frames.PONG: "PONG, NACK", frames.NACK: "PONG, NACK"}
    page = (Path(__file__).parents[4] / "docs/protocols/blip.md").read_text("utf-8")

    assert f"| {rows.get(kind, 'any other')} | {table_row(kind)} |" in page.splitlines()


def test_states_change_as_the_table_says() -> None:
    """HELLO, then AUTH; no other frame changes the state."""
    assert {(NEW, frames.HELLO): GREETED, (GREETED, frames.AUTH): AUTHENTICATED} == (
        session.NEXT_STATE
    )
    assert session.NEXT_STATE.keys().isdisjoint(session.REFUSALS)


@pytest.mark.parametrize(
    ("state", "kind", "payload", "refusal"),
    [
        # HELLO: order before layout, layout before version
        (GREETED, frames.HELLO, "", (400, "HELLO already performed")),
        (NEW, frames.HELLO, "", (400, "invalid HELLO payload")),
        (NEW, frames.HELLO, "00", (400, "invalid HELLO payload")),
        (NEW, frames.HELLO, "000200", (400, "invalid HELLO payload")),
        (NEW, frames.HELLO, "0002", (426, "unsupported protocol version")),
        (NEW, frames.HELLO, "0000", (426, "unsupported protocol version")),
        # AUTH: order before layout
        (NEW, frames.AUTH, "", (400, "HELLO not performed")),
        (AUTHENTICATED, frames.AUTH, "", (400, "already authenticated")),
        (GREETED, frames.AUTH, "", (400, "invalid AUTH payload")),
        (GREETED, frames.AUTH, "0002 6b", (400, "invalid AUTH payload")),
        (GREETED, frames.AUTH, "0001 6b6b", (400, "invalid AUTH payload")),
        (GREETED, frames.AUTH, "0001 ff", (400, "invalid AUTH payload")),
        # Everything else: before authentication the layout is not even checked
        (NEW, frames.PUBLISH, "", UNAUTHENTICATED),
        (GREETED, frames.CREDIT, "", UNAUTHENTICATED),
        # PUBLISH: layout, then topic, then qos
        (AUTHENTICATED, frames.PUBLISH, "", (400, "invalid PUBLISH payload")),
        (AUTHENTICATED, frames.PUBLISH, "02 00", (400, "invalid PUBLISH payload")),
        (AUTHENTICATED, frames.PUBLISH, "02 0002 74", (400, "invalid PUBLISH payload")),
        (AUTHENTICATED, frames.PUBLISH, "02 0001 ff", (400, "invalid PUBLISH payload")),
        (AUTHENTICATED, frames.PUBLISH, "02 0000", (400, "empty topic")),
        (AUTHENTICATED, frames.PUBLISH, "02 0001 74", (400, "invalid QoS value")),
        (AUTHENTICATED, frames.PUBLISH, "ff 0001 74", (400, "invalid QoS value")),
        # SUBSCRIBE: layout, then topic, then qos
        (AUTHENTICATED, frames.SUBSCRIBE, "", (400, "invalid SUBSCRIBE payload")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0000", (400, "invalid SUBSCRIBE payload")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0001 74", (400, "invalid SUBSCRIBE payload")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0001 74 01 00", (400, "invalid SUBSCRIBE payload")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0001 ff 01", (400, "invalid SUBSCRIBE payload")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0000 02", (400, "empty topic")),
        (AUTHENTICATED, frames.SUBSCRIBE, "0001 74 02", (400, "invalid QoS value")),
        # ACK, POLL, UNSUBSCRIBE, CREDIT: layout, then id
        (AUTHENTICATED, frames.ACK, "00" * 7, (400, "invalid ACK payload")),
        (AUTHENTICATED, frames.ACK, "00" * 9, (400, "invalid ACK payload")),
        (AUTHENTICATED, frames.ACK, "00" * 8, NON_ZERO),
        (AUTHENTICATED, frames.POLL, "00" * 7, (400, "invalid POLL payload")),
        (AUTHENTICATED, frames.POLL, "00" * 9, (400, "invalid POLL payload")),
        (AUTHENTICATED, frames.POLL, "00" * 8, NON_ZERO),
        (AUTHENTICATED, frames.UNSUBSCRIBE, "00" * 7, (400, "invalid UNSUBSCRIBE payload")),
        (AUTHENTICATED, frames.UNSUBSCRIBE, "00" * 8, NON_ZERO),
        (AUTHENTICATED, frames.CREDIT, "00" * 8, (400, "invalid CREDIT payload")),
        (AUTHENTICATED, frames.CREDIT, "00" * 13, (400, "invalid CREDIT payload")),
        (AUTHENTICATED, frames.CREDIT, "00" * 12, NON_ZERO),
        # STATS takes nothing
        (AUTHENTICATED, frames.STATS, "00", (400, "invalid STATS payload")),
    ],
)
def test_refusals_in_the_order_of_the_checks(
    state: int, kind: int, payload: str, refusal: tuple[int, str]
) -> None:
    """The first failing check decides; the NACK has the frame's own id."""
    peer = session_in(state)

    assert refusal == outcome(peer, kind, bytes.fromhex(payload))
    assert state == peer.state


def test_a_refusal_leaves_the_connection_usable() -> None:
    """A NACK does not close it: the right version may follow a wrong one."""
    peer = session_in(NEW)

    assert (426, "unsupported protocol version") == outcome(peer, frames.HELLO, b"\x00\x02")
    assert "ACK 0" == outcome(peer, frames.HELLO, b"\x00\x01")


def test_the_fifth_failed_authentication_ends_the_connection() -> None:
    """It is still answered."""
    peer = session_in(GREETED)
    refusal = messages.encode_nack(2, 401, "invalid API key")

    answers = [peer.authentication_refused(2) for _ in range(5)]

    assert [(refusal, False)] * 4 + [(refusal, True)] == answers
    assert GREETED == peer.state


def test_a_malformed_auth_does_not_count_as_failed() -> None:
    """Only wrong keys are counted."""
    peer = session_in(GREETED)
    for _ in range(10):
        outcome(peer, frames.AUTH, b"")

    assert not peer.authentication_refused(2)[1]


def test_authentication_passes_the_key_on_and_waits_for_the_decision() -> None:
    """The session does not know the keys; its driver decides."""
    peer = session_in(GREETED)
    peer.receive_data(messages.encode_auth(2, "dev-key"))
    command = peer.next_command()

    assert isinstance(command, Authenticate)
    assert (2, "dev-key") == (command.correlation_id, command.key)
    assert messages.encode_ack(2, 0) == peer.authenticated(2)
    assert AUTHENTICATED == peer.state


def test_a_publish_carries_a_slice_of_the_received_bytes() -> None:
    """Everything after the QoS byte is passed on unchanged."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(messages.encode_publish(4, 1, "demo", b"hi"))
    command = peer.next_command()

    assert isinstance(command, Publish)
    assert (frames.PUBLISH, 4, 1, "demo") == (
        command.kind,
        command.correlation_id,
        command.qos,
        command.topic,
    )
    assert messages.topic_and_message("demo", b"hi") == command.body


def test_a_subscribe_carries_topic_and_qos() -> None:
    """Both as the client sent them."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(messages.encode_subscribe(3, "demo", 0))
    command = peer.next_command()

    assert isinstance(command, Subscribe)
    assert (3, "demo", 0) == (command.correlation_id, command.topic, command.qos)


@pytest.mark.parametrize(
    ("wire", "kind", "count"),
    [
        (messages.encode_ack(7, 42), frames.ACK, 0),
        (messages.encode_poll(7, 42), frames.POLL, 0),
        (messages.encode_unsubscribe(7, 42), frames.UNSUBSCRIBE, 0),
        (messages.encode_credit(7, 42, 1000), frames.CREDIT, 1000),
        (messages.encode_credit(7, 42, 0), frames.CREDIT, 0),
    ],
)
def test_commands_on_a_subscription(wire: bytes, kind: int, count: int) -> None:
    """Four frame types name a subscription; CREDIT also carries a count."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(wire)
    command = peer.next_command()

    assert isinstance(command, OnSubscription)
    assert (kind, 7, 42, count) == (
        command.kind,
        command.correlation_id,
        command.subscription_id,
        command.count,
    )


def test_a_ping_may_carry_anything() -> None:
    """Its payload is ignored."""
    assert ACCEPTED == outcome(session_in(AUTHENTICATED), frames.PING, b"whatever")


def test_the_length_limit_follows_the_state_after_all_earlier_frames() -> None:
    """HELLO, AUTH and a large PUBLISH may arrive in one segment."""
    peer = Session()
    large = messages.encode_publish(3, 1, "demo", bytes(5000))
    peer.receive_data(messages.encode_hello(1) + messages.encode_auth(2, "k") + large)

    assert isinstance(peer.next_command(), Reply)
    assert isinstance(peer.next_command(), Authenticate)
    peer.authenticated(2)
    command = peer.next_command()

    assert isinstance(command, Publish)
    assert messages.topic_and_message("demo", bytes(5000)) == command.body


def test_a_large_frame_after_a_refused_key_closes_the_connection() -> None:
    """In the same segment with a wrong key: the AUTH is answered first."""
    peer = Session()
    large = messages.encode_publish(3, 1, "demo", bytes(5000))
    peer.receive_data(messages.encode_hello(1) + messages.encode_auth(2, "k") + large)
    peer.next_command()
    peer.next_command()
    peer.authentication_refused(2)

    with pytest.raises(FrameTooLargeError):
        peer.next_command()


def test_commands_before_a_bad_frame_are_returned() -> None:
    """A PING is answered although an unknown type follows it."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(frames.encode(frames.PING, 5) + bytes.fromhex("000000097f"))
    command = peer.next_command()

    assert command is not None
    assert (frames.PING, 5) == (command.kind, command.correlation_id)
    with pytest.raises(MalformedFrameError):
        peer.next_command()


def test_ignored_frames_do_not_hide_what_follows() -> None:
    """PONG and NACK from a client are skipped, not taken for the end of the data."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(
        frames.encode(frames.PONG, 1)
        + messages.encode_nack(2, 400, "?")
        + frames.encode(frames.PING, 3)
    )
    command = peer.next_command()

    assert command is not None
    assert 3 == command.correlation_id
    assert peer.next_command() is None


def test_held_bytes_are_those_of_incomplete_frames() -> None:
    """A partial frame is held and counted."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(frames.encode(frames.PING, 3)[:6])

    assert peer.next_command() is None
    assert 6 == peer.held_bytes


def test_an_idle_session_keeps_no_message() -> None:
    """The command object is reused; its content is released when there is nothing to do."""
    peer = session_in(AUTHENTICATED)
    peer.receive_data(messages.encode_publish(1, 1, "t", b"large"))

    assert peer.next_command() is peer.publish
    assert peer.publish.body.endswith(b"large")
    assert peer.next_command() is None
    assert b"" == peer.publish.body


def topics_of(peer: Session, topics: list[str]) -> list[str]:
    """Publish to each of *topics* and return the topics that the session read."""
    seen: list[str] = []
    for topic in topics:
        peer.receive_data(messages.encode_publish(1, 0, topic, b""))
        command = peer.next_command()
        assert isinstance(command, Publish)
        seen.append(command.topic)
    return seen


def test_more_topics_than_fit_into_the_cache_are_read() -> None:
    """Evicting a topic from the cache changes nothing."""
    topics = [f"t{n}" for n in range(session.KNOWN_TOPICS_MAX + 2)] + ["t0", "t1"]
    peer = session_in(AUTHENTICATED)

    assert topics == topics_of(peer, topics)
    assert len(peer._known_topics) <= session.KNOWN_TOPICS_MAX  # noqa: SLF001 - the bound is not visible elsewhere


def test_long_topics_are_not_cached_and_still_read() -> None:
    """A topic above the size limit is decoded each time."""
    long_name = "x" * (session.KNOWN_TOPIC_BYTES_MAX + 1)
    topics = [long_name, "x" * session.KNOWN_TOPIC_BYTES_MAX, long_name, "x" * 65_535]

    assert topics == topics_of(session_in(AUTHENTICATED), topics)


def commands_of(chunks: list[bytes]) -> list[tuple[object, ...]]:
    """Drive a session that accepts any key; describe each command."""
    peer = Session()
    seen: list[tuple[object, ...]] = []
    for chunk in chunks:
        peer.receive_data(chunk)
        while (command := peer.next_command()) is not None:
            if isinstance(command, Authenticate):
                peer.authenticated(command.correlation_id)
            seen.append(described(command))
    return seen


def described(command: Command) -> tuple[object, ...]:
    """Return all attributes of a command."""
    common = ("kind", "correlation_id", "data", "key", "qos", "topic", "body")
    on_subscription = ("subscription_id", "count")
    return (
        type(command),
        *(getattr(command, name, None) for name in (*common, *on_subscription)),
    )


any_frame = st.one_of(
    st.builds(
        messages.encode_publish, st.just(1), st.integers(0, 3), st.just("t"), st.binary()
    ),
    st.builds(
        frames.encode, st.sampled_from(list(ALL_TYPES)), st.just(2), st.binary(max_size=12)
    ),
    st.sampled_from([frames.encode(kind, 3, GOOD_PAYLOADS[kind]) for kind in ALL_TYPES]),
)


@given(st.lists(any_frame, max_size=8), st.booleans(), st.data())
def test_the_stream_may_be_split_anywhere(
    sent: list[bytes], greeted: bool, data: st.DataObject
) -> None:
    """However TCP splits the stream, the same commands come out."""
    greeting = [messages.encode_hello(1), messages.encode_auth(2, "k")] if greeted else []
    stream = b"".join([*greeting, *sent])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    chunks = [stream[a:b] for a, b in pairwise([0, *cuts, len(stream)])]

    assert commands_of([stream]) == commands_of(chunks)


@given(st.binary(max_size=80), st.booleans())
def test_noise_raises_documented_errors_only(noise: bytes, greeted: bool) -> None:
    """For any bytes the session returns commands or raises WireError."""
    greeting = messages.encode_hello(1) + messages.encode_auth(2, "k") if greeted else b""
    with suppress(WireError):
        commands_of([greeting + noise])
