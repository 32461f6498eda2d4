"""A Qumbed stream: executes the frames of its session.

Every stream that a peer opens is a connection of its own to the broker. What the streams of one
peer share is in `link`, what leaves a stream in `deliveries`.
"""

from typing import TYPE_CHECKING, Final, final

from braidmq.base import refusals
from braidmq.broker import admission
from braidmq.broker.authorize import LIST_QUEUES, PUBLISH, SUBSCRIBE, Principal, authorize
from braidmq.broker.schemas import SCHEMA_INVALID, SCHEMA_UNKNOWN, SEALED
from braidmq.broker.topics import Topic
from braidmq.server.engine.connection import (
    TOPICS_REMEMBERED_MAX,
    WAITING_REPLIES_MAX,
    Connection,
    Limits,
    WaitingReply,
)
from braidmq.server.engine.rates import rate_refusal
from braidmq.server.strands.qumbed.deliveries import (
    FRAME_PER_BODY,
    PublishReply,
    QumbedOutput,
    QumbedReply,
    dedup_id_of,
    message_of,
)
from braidmq.server.strands.qumbed.link import (
    UNFINISHED_BYTES_MAX,
    Link,
    QumbedOptions,
    StreamWire,
)
from braidmq.wire.qumbed import messages, session

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

NOT_ALLOWED: Final = "not allowed"

UNAUTHORIZED_CODE: Final = 1
"""The code of a connection that is closed because authentication failed; otherwise 0."""

CROWDED_CODE: Final = 2
"""The code of one that is closed because its principal holds too many; see `base.refusals`."""

DISCOVERY_LOOKED_AT_MAX: Final = 10_000
"""Topics that a Discovery checks for permission, at most."""


@final
class QumbedConnection(Connection):
    """One stream of a Qumbed connection."""

    def __init__(
        self,
        engine: "Engine",
        wire: StreamWire,
        limits: Limits,
        options: QumbedOptions,
        link: Link,
    ) -> None:
        output = QumbedOutput(engine, wire, limits, options)
        super().__init__(engine, wire, limits, output)
        self._stream: StreamWire = wire
        self._options: QumbedOptions = options
        self._link: Link = link
        self._sending: QumbedOutput = output
        self._is_done: bool = False  # ignore what the peer sends from now on
        self._session = session.Session()
        self._held: session.Command | None = None
        self._paid: bool = False  # the command at hand has its token
        self._sealed: int = -1  # the current payload: 1 if sealed, -1 if not judged yet
        self._unfinished_bytes: int = 0
        self.room_bytes = options.window_bytes // FRAME_PER_BODY
        owner = None if options.asks_for_key else link.principal
        if owner is not None and self._stream.greeted(owner.name):
            self._note_authenticated(owner)

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self.principal is not None

    # The transport calls these.

    def finish_input(self) -> None:
        """Answer everything, then close; the stream's subscriptions end at once."""
        self._end_subscriptions(self._engine.now_us())
        super().finish_input()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own signature
        """Note whether there is room in the connection's output and the stream's window."""
        self.writable = writable
        self.room_bytes = 0  # until it is measured below: nothing new is handed out before that
        self._sending.collected_bytes = 0
        if writable and not self.closed:
            self.note_received()
            self.wake()  # earlier deliveries first
            self._sending.measure_room()
            self._engine.end_turn()

    def note_received(self) -> None:
        """Bring the followers' `unreceived` up to date."""
        self._sending.note_received()

    def lost(self) -> None:
        """End what the peer had: its stream is lost."""
        self._held = None
        self._forget_unfinished()
        super().lost()
        self._link.left(self)

    def permissions_changed(self) -> None:
        """Forget the topics that were allowed; end a stream that may no longer follow one."""
        self.known_topics.clear()
        assert self.principal is not None
        for name in self.following:
            if not authorize(self.principal, SUBSCRIBE, name):
                self._sending.reply(messages.error(session.UNAUTHORIZED, NOT_ALLOWED))
                self._end()
                self.output.flush()
                self._after_run()
                return

    def revoke(self) -> None:
        """Close the peer's connection: its principal is gone."""
        if self.closed:
            return
        self._sending.reply(messages.error(session.UNAUTHORIZED, "authentication failed"))
        self._end()
        self.output.flush()
        self.closed = True
        self._stream.drain_connection(UNAUTHORIZED_CODE, session.UNAUTHORIZED)

    # The turn.

    def _take_in(self, data: bytes) -> None:
        self._session.receive_data(data)

    def _is_blocked(self) -> bool:
        return self._held is not None

    def _held_bytes(self) -> int:
        held = self._held
        if not isinstance(held, messages.Publish):
            return self._session.held_bytes
        return self._session.held_bytes + len(held.payload)

    def _handle(self, now_us: int) -> None:
        while self.writable and not self._is_done:
            command = self._held
            if command is None:
                command = self._session.next_command()
                if command is None:
                    break
                self._paid = False
                self._sealed = -1
            else:
                self._held = None
            if not self._execute(command, now_us):
                self._held = command
                break

    def _after_run(self) -> None:
        link = self._link
        self.vouched_for = link.payer  # an earlier stream's, until this one has shown a key
        held = self._session.held_bytes
        link.unfinished_bytes += held - self._unfinished_bytes
        self._unfinished_bytes = held
        if link.unfinished_bytes > UNFINISHED_BYTES_MAX and held and not self._is_done:
            self._wait_or_end()
        super()._after_run()

    def _wait_or_end(self) -> None:
        """Stop reading from a peer with too many unfinished frames on all its streams."""
        if self._held is not None:
            # Not the peer's fault: the bytes are those of commands that wait for the broker.
            self.intake.stop()  # until the held command can go on
            return
        text = refusals.by_bound(
            "too much of this connection's frames is unfinished", UNFINISHED_BYTES_MAX, "bytes"
        )
        self._sending.reply(messages.error(session.SERVER_ERROR, text))
        self._end()
        self._forget_unfinished()
        self.output.flush()

    def _forget_unfinished(self) -> None:
        self._session = session.Session()
        self._link.unfinished_bytes -= self._unfinished_bytes
        self._unfinished_bytes = 0

    def _execute(self, command: session.Command, now_us: int) -> bool:
        """Handle a command; return whether it could be done now."""
        if len(self._replies) >= WAITING_REPLIES_MAX:
            return False
        if isinstance(command, session.Reply):
            self._sending.reply(command.data)
            if command.closes:
                self._end()
            return True
        if self.principal is None and not self._authenticate(command):
            return True
        tokens = self._link.tokens
        if (
            tokens is not None
            and not self._paid
            and not isinstance(command, messages.Unsubscribe)
        ):
            self._paid = tokens.take(now_us)
            if not self._paid:
                self._error(command, session.RATE_LIMIT, rate_refusal(tokens.rate))
                return True
        if isinstance(command, messages.Publish):
            return self._publish(command, now_us)
        if self._replies:
            return False  # its effects would show before the replies that wait
        if isinstance(command, messages.Subscribe):
            self._subscribe(command, now_us)
        elif isinstance(command, messages.Unsubscribe):
            self._unsubscribe(command)
        else:
            self._discover(command)
            # The answer is far longer than the request: see whether the peer reads it.
            self.output.flush()
        return True

    # Authentication.

    def _authenticate(self, command: messages.Frame) -> bool:
        """Authenticate the peer, or answer and close the connection."""
        principal = self._link.principal
        if self._options.asks_for_key:
            principal = self._engine.find_principal(command.key) if command.key else None
        if principal is not None and self._stream.greeted(principal.name):
            self._note_authenticated(principal)
            return True
        if principal is None:
            self._engine.authentication_failures["qumbed"] += 1
            code, reason = UNAUTHORIZED_CODE, session.UNAUTHORIZED
            self._error(command, reason, "authentication failed")
        else:
            code, reason = CROWDED_CODE, session.SERVER_ERROR
            self._error(command, reason, refusals.TOO_MANY_CONNECTIONS)
        self._end()
        self.output.flush()
        self.closed = True
        self._stream.drain_connection(code, reason)
        return False

    def _note_authenticated(self, principal: Principal) -> None:
        self.principal = self._link.payer = principal
        self._link.is_authenticated = True

    # Publishing.

    def _publish(self, publish: messages.Publish, now_us: int) -> bool:
        topic = self.known_topics.get(publish.topic)
        if topic is None:
            topic = self._learn_topic(publish)
            if topic is None:
                return True
        # Once per Publish, however often it is tried: validating a payload is expensive.
        if self._sealed < 0 and not self._judge(publish):
            return True
        assert self.principal is not None
        dedup_id = dedup_id_of(publish, self.principal.name, self._link.token)
        message = message_of(
            publish,
            topic,
            self._options,
            now_us,
            sealed=self._sealed == 1,
            dedup_id=dedup_id,
        )
        if self.subscribed_id > self._broker.committed_id and not admission.needs_record(
            message
        ):
            return False  # it would overtake the Subscribe before it, and be missed
        verdict = self._admission.judge(message, dedup_id, now_us)
        if verdict == admission.WAIT:
            assert topic.queue is not None
            self._park(topic.queue)
            return False
        if verdict == admission.STARVED:
            self._starve()
            return False
        if verdict == admission.DUPLICATE:
            self._repeated(publish, self._admission.known_id)
        elif verdict == admission.FULL:
            self._error(publish, session.SERVER_ERROR, admission.QUEUE_FULL)
        elif verdict == admission.REFUSED:
            self._error(publish, session.SERVER_ERROR, self._admission.reason)
        else:
            stored = self._broker.accept(verdict, message, dedup_id, now_us)
            if stored.id:
                self.last_id = stored.id
            self._sending.reply_after(PublishReply(stored, publish.id))
        return True

    def _learn_topic(self, publish: messages.Publish) -> Topic | None:
        assert self.principal is not None
        if not authorize(self.principal, PUBLISH, publish.topic):
            self._error(publish, session.UNAUTHORIZED, NOT_ALLOWED)
            return None
        topics = self._broker.topics
        topic = topics.open(publish.topic, self.principal)
        if topic is None:
            self._error(publish, session.SERVER_ERROR, topics.refusal)
            return None
        if len(self.known_topics) >= TOPICS_REMEMBERED_MAX:
            self.known_topics.clear()
        self.known_topics[topic.name] = topic  # keyed by the topic's own string, not by a copy
        return topic

    def _judge(self, publish: messages.Publish) -> bool:
        """Find out whether the payload is sealed; refuse one that violates its schema."""
        schemas = self._options.schemas
        schema_id = publish.schema_id
        kind = schemas.judge(publish.payload, schema_id, publish.sender_public_key)
        if kind == SCHEMA_UNKNOWN:
            self._unknown_schema(publish, schema_id)
            return False
        if kind == SCHEMA_INVALID:
            problem = schemas.problem(schema_id, publish.payload)
            self._error(publish, session.SCHEMA_INVALID, f"{schema_id}: {problem}")
            return False
        self._sealed = 1 if kind == SEALED else 0
        return True

    def _repeated(self, publish: messages.Publish, known_id: int) -> None:
        """Acknowledge a duplicate."""
        self.last_id = max(self.last_id, known_id)
        self._sending.reply_after(
            QumbedReply(known_id, messages.ack(publish.id, 0), publish.id)
        )

    # Subscriptions.

    def _subscribe(self, subscribe: messages.Subscribe, now_us: int) -> None:
        """Have a topic's messages pushed to the stream, or refuse the frame."""
        assert self.principal is not None
        schema_id = subscribe.schema_id
        if schema_id and not self._options.schemas.is_known(schema_id):
            self._unknown_schema(subscribe, schema_id)
            return
        if not authorize(self.principal, SUBSCRIBE, subscribe.topic):
            self._error(subscribe, session.UNAUTHORIZED, NOT_ALLOWED)
            return
        broker = self._broker
        refusal = ""
        if subscribe.topic not in self.following:  # else it replaces or repeats one
            refusal = broker.subscriptions.refusal(self.principal, broker.subscription_count())
        if broker.settings.offline_us and broker.refusal:  # only then does it need a record
            refusal = broker.refusal
        topic = None if refusal else broker.topics.open(subscribe.topic, self.principal)
        if topic is None:
            self._error(subscribe, session.SERVER_ERROR, refusal or broker.topics.refusal)
            return
        self._sending.collect()  # deliveries of the subscription that this one replaces
        record_id = broker.followers.follow(self, topic, subscribe.public_key, now_us)
        self.subscribed_id = record_id
        self.last_id = max(self.last_id, record_id)
        self._sending.reply_after(
            QumbedReply(record_id, messages.ack(subscribe.id), subscribe.id)
        )

    def _unsubscribe(self, unsubscribe: messages.Unsubscribe) -> None:
        """Stop pushing a topic's messages; the Ack waits for the commit."""
        self._sending.collect()
        topic = self._broker.topics.find(unsubscribe.topic)
        if topic is not None:
            record_id = self._broker.followers.unfollow(self, topic)
            self.last_id = max(self.last_id, record_id)
            self._sending.delivering.forget(unsubscribe.topic)
        self._sending.reply_after(WaitingReply(self.last_id, messages.ack(unsubscribe.id)))

    def _end_subscriptions(self, now_us: int) -> None:
        """End every subscription of the stream, after their deliveries are collected."""
        self._sending.collect()
        self._broker.detach(self, now_us)

    # Discovery.

    def _discover(self, request: messages.Discovery) -> None:
        principal = self.principal
        assert principal is not None
        if request.asks_times:
            self._sending.tells_times = True
        seen: list[str] = []
        for topic in self._broker.topics.first(DISCOVERY_LOOKED_AT_MAX):
            if authorize(principal, LIST_QUEUES, topic.name):
                seen.append(topic.name)
                if len(seen) == messages.DISCOVERY_TOPICS_MAX:
                    break
        options = self._options
        key = options.gateway.public_key
        self._sending.reply(
            messages.discovery(options.node_id, seen, key, options.address, frame_id=request.id)
        )

    # Errors, and the end.

    def _error(self, frame: messages.Frame, code: str, text: str) -> None:
        """Answer a frame with an Error."""
        self._sending.reply(messages.error(code, text, frame.id))

    def _unknown_schema(self, frame: messages.Frame, schema_id: str) -> None:
        """Refuse a frame that names an unknown schema."""
        self._error(frame, session.SCHEMA_UNKNOWN, f"unknown schema: {schema_id}")

    def _end(self) -> None:
        self._is_done = True
        self._ending = True
        self._end_subscriptions(self._engine.now_us())
