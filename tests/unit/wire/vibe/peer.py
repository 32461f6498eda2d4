"""Helpers for tests of the Vibe session: a client's frames, and their outcomes."""

import pytest

from braidmq.wire.vibe import frames, messages
from braidmq.wire.vibe.frames import DIALECT_1_0, DIALECT_1_1
from braidmq.wire.vibe.messages import Body
from braidmq.wire.vibe.session import AUTH_FAILED, CONNECTED, Reply, Session
from tests.unit.wire.vectors import vectors

VECTORS = vectors("vibe")
BOTH_DIALECTS = pytest.mark.parametrize("dialect", [DIALECT_1_0, DIALECT_1_1])

ON_A_QUEUE = [
    messages.PUBLISH,
    messages.SUBSCRIBE,
    messages.UNSUBSCRIBE,
    messages.CREATE_QUEUE,
    messages.DELETE_QUEUE,
    messages.QUEUE_INFO,
]
ADMINISTRATION = list(range(messages.CREATE_USER, messages.GET_USER_PERMISSIONS + 1))
WITHOUT_A_QUEUE = [
    messages.CONNECT,
    messages.DISCONNECT,
    messages.PING,
    messages.ACK,
    messages.LIST_QUEUES,
    *ADMINISTRATION,
]
REQUESTS = [*ON_A_QUEUE, *WITHOUT_A_QUEUE]
GOLDEN_REQUESTS = [row for row in VECTORS["messages"] if row["type"] in REQUESTS]
ACCEPTED = "accepted"
CONNECT_FIRST = (AUTH_FAILED, "Connect first")


def frame(
    dialect: int,
    kind: int,
    message_id: str = "r1",
    queue: str = "",
    payload: bytes = b"",
    *,
    headers: dict[str, str] | None = None,
) -> bytes:
    """Return a frame as a client of this dialect sends it."""
    with_errors = dialect == DIALECT_1_0
    body = messages.write_body(
        kind, message_id, queue, payload, headers, with_errors=with_errors
    )
    return frames.encode(dialect, body)


def read(data: bytes, dialect: int) -> Body:
    """Read one whole frame that was sent to a client of this dialect."""
    decoder = frames.FrameDecoder(2 * frames.BODY_MAX)
    decoder.dialect = dialect
    decoder.receive_data(data)
    body = decoder.next_body()
    assert body is not None
    assert 0 == decoder.held_bytes
    return messages.read_body(body)


def session_in(
    state: int, dialect: int = DIALECT_1_1, body_max: int = frames.BODY_MAX
) -> Session:
    """Return a session that was brought to *state* by the usual frames."""
    peer = Session(body_max)
    if state == CONNECTED:
        peer.receive_data(frame(dialect, messages.CONNECT))
        peer.next_command()
        peer.connected("r1", {})
        assert dialect == peer.dialect
    assert state == peer.state
    return peer


def outcome(peer: Session, wire: bytes, dialect: int = DIALECT_1_1) -> object:
    """Return the outcome of a frame: an Error's code and text, or ACCEPTED."""
    peer.receive_data(wire)
    command = peer.next_command()
    assert command is not None
    if isinstance(command, Reply):
        body = read(command.data, dialect)
        assert messages.ERROR == body.type
        assert not command.closes
        return body.error_code, body.error_message
    return ACCEPTED
