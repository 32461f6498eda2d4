"""A Blip connection as the server sees it: bytes in, commands out, in the only legal order.

The session itself answers what needs no broker (HELLO, refusals) with a :class:`Reply`, and
returns everything else as a command. It keeps no queue: the caller takes one command at a time,
so a command that must wait holds up everything after it.

The legal order is data: `NEXT_STATE` and `REFUSALS` below. docs/protocols/blip.md shows the
same table, and a test compares every pair of state and frame type.

    NEW ----HELLO---> GREETED ----AUTH---> AUTHENTICATED
"""

from typing import Final

from librt.strings import read_i64_be

from braidmq.wire.blip import frames, messages
from braidmq.wire.errors import MalformedPayloadError

NEW: Final = 0
GREETED: Final = 1
AUTHENTICATED: Final = 2

BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
FORBIDDEN: Final = 403
NOT_FOUND: Final = 404
UPGRADE_REQUIRED: Final = 426
SERVER_ERROR: Final = 500

_U64_SPAN: Final = 2**64  # librt reads signed integers; these fields are unsigned

AUTH_FAILURES_MAX: Final = 5
"""The fifth refused AUTH is answered, then the connection is closed."""

KNOWN_TOPICS_MAX: Final = 1024
"""Decoded topic names that each connection remembers, so that it decodes each only once."""

KNOWN_TOPIC_BYTES_MAX: Final = 256
"""Longer names are decoded every time, which bounds the memory of a connection."""

_BEFORE_AUTHENTICATION: Final = frozenset({frames.HELLO, frames.AUTH})

NEXT_STATE: Final[dict[tuple[int, int], int]] = {
    (NEW, frames.HELLO): GREETED,
    (GREETED, frames.AUTH): AUTHENTICATED,
}
"""(state, frame type) -> the state after that frame was accepted; others leave it unchanged."""

REFUSALS: Final[dict[tuple[int, int], tuple[int, str]]] = {
    (GREETED, frames.HELLO): (BAD_REQUEST, "HELLO already performed"),
    (AUTHENTICATED, frames.HELLO): (BAD_REQUEST, "HELLO already performed"),
    (NEW, frames.AUTH): (BAD_REQUEST, "HELLO not performed"),
    (AUTHENTICATED, frames.AUTH): (BAD_REQUEST, "already authenticated"),
} | {
    (state, kind): (UNAUTHORIZED, "unauthenticated")
    for state in (NEW, GREETED)
    for kind in range(frames.HELLO, frames.CREDIT + 1)
    if kind not in _BEFORE_AUTHENTICATION
}
"""(state, frame type) -> code and text of the NACK. A pair that is missing here is legal."""

_NAMES: Final[dict[int, str]] = {
    frames.HELLO: "HELLO",
    frames.AUTH: "AUTH",
    frames.PUBLISH: "PUBLISH",
    frames.SUBSCRIBE: "SUBSCRIBE",
    frames.ACK: "ACK",
    frames.POLL: "POLL",
    frames.STATS: "STATS",
    frames.UNSUBSCRIBE: "UNSUBSCRIBE",
    frames.CREDIT: "CREDIT",
}


class Command:
    """A peer's request; `kind` is the frame type, or 0 for a :class:`Reply`."""

    def __init__(self, kind: int, correlation_id: int) -> None:
        self.kind: int = kind
        self.correlation_id: int = correlation_id


class Reply(Command):
    """The session's own answer, to be sent in its turn: replies keep the order of requests."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0, 0)
        self.data: bytes = data


class Authenticate(Command):
    """A key to look up; answer with `authenticated` or `authentication_refused`."""

    def __init__(self, correlation_id: int, key: str) -> None:
        super().__init__(frames.AUTH, correlation_id)
        self.key: str = key


class Publish(Command):
    """A message; `body` is what the publisher sent after the qos byte, topic included."""

    def __init__(self) -> None:
        super().__init__(frames.PUBLISH, 0)
        self.qos: int = 0
        self.topic: str = ""
        self.body: bytes = b""


class Subscribe(Command):
    """A request for a new subscription."""

    def __init__(self, correlation_id: int, topic: str, qos: int) -> None:
        super().__init__(frames.SUBSCRIBE, correlation_id)
        self.topic: str = topic
        self.qos: int = qos


class OnSubscription(Command):
    """ACK, POLL, UNSUBSCRIBE or CREDIT of one subscription; `count` is CREDIT's."""

    def __init__(self) -> None:
        super().__init__(0, 0)
        self.subscription_id: int = 0
        self.count: int = 0


class Session:
    """One connection's protocol state; `publish` and `on_subscription` are reused."""

    def __init__(self) -> None:
        self.state: int = NEW
        self._decoder = frames.FrameDecoder(frames.LENGTH_MAX_UNAUTHENTICATED)
        self._auth_failures: int = 0
        self._known_topics: dict[bytes, str] = {}
        self.publish: Publish = Publish()
        self.on_subscription: OnSubscription = OnSubscription()

    @property
    def held_bytes(self) -> int:
        """Bytes received that were not yet returned as a command."""
        return self._decoder.held_bytes

    def receive_data(self, data: bytes) -> None:
        """Hold *data* until :meth:`next_command` asks for it."""
        self._decoder.receive_data(data)

    def next_command(self) -> Command | None:
        """Return the next command, or None when more bytes are needed.

        A command is valid until the next call, which may reuse the object: on the hot path, a
        new object for each frame is a fifth of the work.

        Raises:
            WireError: The framing is lost; answer what came before, then close.
        """
        while True:
            kind = self._decoder.advance()
            if kind == 0:
                self.publish.body = b""  # an idle peer keeps no message in memory
                return None
            # The three frames of the hot path first, without a look at the table: it has no
            # refusal for them in this state.
            if self.state == AUTHENTICATED:
                if kind == frames.PUBLISH:
                    return self._publish()
                if kind == frames.ACK or kind == frames.POLL:  # noqa: PLR1714 - a set is slower compiled
                    return self._on_subscription(kind)
                if kind == frames.PONG or kind == frames.NACK:  # noqa: PLR1714 - as above
                    continue
            return self._rare(kind)

    def authenticated(self, correlation_id: int) -> bytes:
        """Accept the key; return the reply to its AUTH."""
        self.state = NEXT_STATE[GREETED, frames.AUTH]
        # Only now: until then a peer could make us hold 16 MiB without a key.
        self._decoder.length_max = frames.LENGTH_MAX
        return messages.encode_ack(correlation_id, 0)

    def authentication_refused(self, correlation_id: int) -> tuple[bytes, bool]:
        """Return the reply to a refused AUTH, and whether to close the connection after it."""
        self._auth_failures += 1
        reply = messages.encode_nack(correlation_id, UNAUTHORIZED, "invalid API key")
        return reply, self._auth_failures >= AUTH_FAILURES_MAX

    def _publish(self) -> Command:
        decoder = self._decoder
        data = decoder.data
        start = decoder.start
        end = decoder.end
        topic_at = start + 3
        if end < topic_at:
            return self._malformed(frames.PUBLISH)
        topic_end = topic_at + (data[start + 1] << 8 | data[start + 2])
        if end < topic_end:
            return self._malformed(frames.PUBLISH)
        # A publisher repeats its topics: a lookup by bytes spares decoding and checking them.
        raw = data[topic_at:topic_end]
        topic = self._known_topics.get(raw)
        if topic is None:
            topic = self._learn_topic(raw)
            if topic is None:
                return self._malformed(frames.PUBLISH)
            if topic == "":
                return self._refuse(BAD_REQUEST, "empty topic")
        qos = data[start]
        if qos > messages.QOS_AT_LEAST_ONCE:
            return self._refuse(BAD_REQUEST, "invalid QoS value")
        # Slices of bytes are copies: the command does not keep the read buffer alive.
        command = self.publish
        command.correlation_id = decoder.correlation_id
        command.qos = qos
        command.topic = topic
        command.body = data[start + 1 : end]
        return command

    def _on_subscription(self, kind: int) -> Command:
        decoder = self._decoder
        start = decoder.start
        if decoder.end - start != 8:  # noqa: PLR2004 - a u64, as the module docstring of messages draws
            return self._malformed(kind)
        subscription_id: int = read_i64_be(decoder.data, start)
        if subscription_id < 0:
            subscription_id += _U64_SPAN
        if subscription_id == 0:
            return self._refuse(BAD_REQUEST, "subscription_id must be non-zero")
        command = self.on_subscription
        command.kind = kind
        command.correlation_id = decoder.correlation_id
        command.subscription_id = subscription_id
        return command

    def _rare(self, kind: int) -> Command:
        refusal = REFUSALS.get((self.state, kind))
        if refusal is not None:
            return self._refuse(refusal[0], refusal[1])
        try:
            return self._read(kind, self._decoder.payload())
        except MalformedPayloadError:
            return self._malformed(kind)

    def _read(self, kind: int, payload: bytes) -> Command:
        correlation_id = self._decoder.correlation_id
        if kind == frames.HELLO:
            if messages.read_hello(payload) != messages.PROTOCOL_VERSION:
                return self._refuse(UPGRADE_REQUIRED, "unsupported protocol version")
            self.state = NEXT_STATE[NEW, frames.HELLO]
            return Reply(messages.encode_ack(correlation_id, 0))
        if kind == frames.AUTH:
            return Authenticate(correlation_id, messages.read_auth(payload))
        if kind == frames.SUBSCRIBE:
            return self._subscribe(*messages.read_subscribe(payload))
        if kind == frames.UNSUBSCRIBE:
            return self._on_subscription(kind)
        if kind == frames.CREDIT:
            subscription_id, count = messages.read_credit(payload)
            if subscription_id == 0:
                return self._refuse(BAD_REQUEST, "subscription_id must be non-zero")
            command = self.on_subscription
            command.kind = kind
            command.correlation_id = correlation_id
            command.subscription_id = subscription_id
            command.count = count
            return command
        if kind == frames.STATS and payload:
            return self._malformed(kind)
        assert kind == frames.STATS or kind == frames.PING  # noqa: PLR1714 - a set is slower compiled
        return Command(kind, correlation_id)

    def _subscribe(self, topic: str, qos: int) -> Command:
        if topic == "":
            return self._refuse(BAD_REQUEST, "empty topic")
        if qos > messages.QOS_AT_LEAST_ONCE:
            return self._refuse(BAD_REQUEST, "invalid QoS value")
        return Subscribe(self._decoder.correlation_id, topic, qos)

    def _learn_topic(self, raw: bytes) -> str | None:
        try:
            topic = raw.decode()
        except UnicodeDecodeError:
            return None
        if 0 < len(raw) <= KNOWN_TOPIC_BYTES_MAX:
            # Start over rather than track use: a connection with so many topics is rare, and
            # forgetting a name only costs decoding it again.
            if len(self._known_topics) >= KNOWN_TOPICS_MAX:
                self._known_topics.clear()
            self._known_topics[raw] = topic
        return topic

    def _malformed(self, kind: int) -> Reply:
        return self._refuse(BAD_REQUEST, f"invalid {_NAMES[kind]} payload")

    def _refuse(self, code: int, text: str) -> Reply:
        return Reply(messages.encode_nack(self._decoder.correlation_id, code, text))
