"""A Vibe connection: executes the commands of a Vibe session.

    Gate            authentication, permissions, and the administration of users
    QueueCommands   subscriptions, acknowledgements, and queue management
    VibeOutput      what leaves the connection

While a Publish waits for room in its queue, the commands after it wait in a bounded buffer, but
what can make room is executed: an Ack always, an Unsubscribe or a Disconnect unless it would
overtake another request. Their replies still come after that of the Publish. Otherwise a client
that publishes and consumes on one connection could block itself: its queue gets room when it
acknowledges.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, final

from braidmq.broker import admission
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.server.engine.connection import (
    WAITING_REPLIES_MAX,
    Connection,
    Limits,
    WaitingReply,
    Wire,
)
from braidmq.server.engine.rates import rate_refusal
from braidmq.server.strands.vibe.deliveries import (
    Outstanding,
    VibeOutput,
    VibeReply,
    iso,
    message_of,
)
from braidmq.server.strands.vibe.gate import Gate, VibeOptions
from braidmq.server.strands.vibe.queues import QueueCommands
from braidmq.wire.vibe import messages, session

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

BLOCKED_MAX: Final = 1024
"""Commands that may wait behind a Publish that has no room in its queue."""

BLOCKED_BYTES_MAX: Final = 1024 * 1024
"""Characters and bytes of those commands: ids, payloads and headers."""

UNPACKED_PER_TURN_BYTES: Final = 512 * 1024
"""What compressed commands may unpack to before other connections have a turn: one read can
hold a thousand times as much, and unpacking and checking it takes milliseconds each."""

_FREE: Final = frozenset({messages.ACK, messages.PING, messages.DISCONNECT, messages.CONNECT})
_OVERTAKEN: Final = frozenset(
    {messages.PUBLISH, messages.PING, messages.UNSUBSCRIBE, session.REPLY}
)
"""Waiting commands that a later Unsubscribe or Disconnect need not wait for."""

_ADMINISTRATION: Final = frozenset(
    range(messages.CREATE_USER, messages.GET_USER_PERMISSIONS + 1)
)


@final
class VibeConnection(Connection):
    """One Vibe connection."""

    def __init__(
        self, engine: "Engine", wire: Wire, limits: Limits, options: VibeOptions, number: int
    ) -> None:
        # Session and output first: the other parts take them from the connection.
        body_max = options.max_message_bytes
        its_session = session.Session(body_max)
        output = VibeOutput(engine, wire, limits, its_session, body_max)
        super().__init__(engine, wire, limits, output)
        self.session: session.Session = its_session
        self._held: session.Command | None = None
        self._blocked: deque[session.Command] = deque()
        self._blocked_bytes: int = 0
        self._is_done: bool = False  # ignore what the peer sends from now on
        self._paid: bool = False  # the command at hand has its token
        self._outstanding: Outstanding = Outstanding(self)
        output.outstanding = self._outstanding
        self._gate: Gate = Gate(self, engine, wire, version=options.version, number=number)
        its_session.judge_by(self._gate.permits)
        self._queues: QueueCommands = QueueCommands(
            self, self._gate, engine.broker, options, self._outstanding
        )

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self.session.state == session.CONNECTED

    def lost(self) -> None:
        """Give back what the peer held: its connection is lost."""
        self._held = None
        self._blocked.clear()
        self._blocked_bytes = 0
        self._outstanding.clear()
        super().lost()

    def say_goodbye(self) -> None:
        """Tell the peer that the broker shuts down, and put back what it holds.

        That does not count as a delivery attempt.
        """
        if self.closed or self._ending:
            return
        output = self.output
        output.collect()
        if self.is_authenticated:
            output.pieces.append(
                self.session.reply(
                    messages.DISCONNECT, "shutdown", headers={"reason": "server_shutdown"}
                )
            )
        self._queues.return_everything(self._engine.now_us())
        output.flush()

    def _take_in(self, data: bytes) -> None:
        self.session.receive_data(data)

    def _is_blocked(self) -> bool:
        # A Publish that waits keeps a connection open whose peer has finished sending, but does
        # not stop the commands after it.
        if self._ending and self._blocked:
            return True
        return self._held is not None or self._gate.asking or self._will_wake

    def _held_bytes(self) -> int:
        held = self.session.held_bytes + self._blocked_bytes
        return held if self._held is None else held + _size_of(self._held)

    def _after_run(self) -> None:
        self._waits = len(self._blocked) > 0
        super()._after_run()

    def _handle(self, now_us: int) -> None:
        if self._blocked:
            self._go_on_publishing(now_us)
        gate = self._gate
        unpacked_max = self.session.unpacked_bytes + UNPACKED_PER_TURN_BYTES
        while self.writable and not gate.asking and not self._is_done and not self._will_wake:
            command = self._held
            if command is None:
                command = self.session.next_command()
                if command is None:
                    break
                self._paid = False
            else:
                self._held = None
            if not self._execute(command, now_us):
                self._held = command
                break
            if self.session.unpacked_bytes > unpacked_max:
                self._will_wake = True  # what is left waits until others had a turn
                self._engine.wake_later(self, 0)

    # One command.

    def _execute(self, command: session.Command, now_us: int) -> bool:
        if len(self._replies) >= WAITING_REPLIES_MAX:
            return False
        kind = command.kind
        if kind == messages.ACK:
            assert isinstance(command, session.Request)
            self._queues.acknowledge(command, now_us)
            return True
        tokens = self._tokens
        if (
            tokens is not None
            and not self._paid
            and kind not in _FREE
            and kind != session.REPLY
        ):
            # Blip makes a publisher wait instead; here every command has a reply to say it.
            self._paid = tokens.take(now_us)
            if not self._paid:
                error = self.session.error(
                    command.id, session.RATE_LIMITED, rate_refusal(tokens.rate), command.queue
                )
                command = session.Reply(error, closes=False)
                kind = session.REPLY
        if self._blocked:
            return self._execute_behind(command, now_us)
        if kind == messages.PUBLISH:
            assert isinstance(command, session.Request)
            return self._publish(command, now_us)
        if kind == messages.PING:
            self._ping(command)
            return True
        if kind == session.REPLY:
            assert isinstance(command, session.Reply)
            self.output.reply(command.data)
            if command.closes:
                self.end()
            return True
        if self._replies:
            return False  # its effects would show before the replies that wait
        assert isinstance(command, session.Request)
        return self._execute_in_turn(command, now_us)

    def _execute_behind(self, command: session.Command, now_us: int) -> bool:
        """Handle a command after a Publish that waits for room; return False to hold it."""
        if len(self._blocked) >= BLOCKED_MAX or self._blocked_bytes >= BLOCKED_BYTES_MAX:
            return False
        kind = command.kind
        if kind == messages.UNSUBSCRIBE and self._may_overtake():
            self._queues.leave(command.queue, now_us)
        elif kind == messages.DISCONNECT and self._may_overtake():
            self._blocked.clear()  # none is accepted yet, and a Disconnect does not wait
            self._blocked_bytes = 0
            self._queues.return_everything(now_us)
            self.end()
            return True
        self._blocked_bytes += _size_of(command)
        self._blocked.append(command)
        return True

    def _may_overtake(self) -> bool:
        return all(waiting.kind in _OVERTAKEN for waiting in self._blocked)

    def _go_on_publishing(self, now_us: int) -> None:
        blocked = self._blocked
        while blocked and self.writable and not self._gate.asking:
            command = blocked.popleft()
            self._blocked_bytes -= _size_of(command)
            is_done = True
            if command.kind == messages.PUBLISH:
                assert isinstance(command, session.Request)
                is_done = self._publish(command, now_us)
                if blocked and blocked[-1] is command:
                    # It waits again and was appended: move it back to the front.
                    blocked.pop()
                    blocked.appendleft(command)
                    return
            elif command.kind == messages.PING:
                self._ping(command)
            elif command.kind == session.REPLY:
                assert isinstance(command, session.Reply)
                self.output.reply(command.data)
                if command.closes:
                    self.end()
            else:
                assert isinstance(command, session.Request)
                is_done = not self._replies and self._execute_in_turn(command, now_us)
            if not is_done:
                blocked.appendleft(command)
                self._blocked_bytes += _size_of(command)
                return
            if self._is_done:
                blocked.clear()  # what the peer sent after a Disconnect is ignored
                self._blocked_bytes = 0

    def _execute_in_turn(self, request: session.Request, now_us: int) -> bool:
        kind = request.kind
        if kind == messages.SUBSCRIBE:
            return self._queues.subscribe(request, now_us)
        if kind == messages.UNSUBSCRIBE:
            self._queues.leave(request.queue, now_us)
            self._queues.confirm_unsubscribe(request)
        elif kind == messages.CREATE_QUEUE:
            self._queues.create(request, now_us)
        elif kind == messages.DELETE_QUEUE:
            self._queues.delete(request)
        elif kind == messages.QUEUE_INFO:
            self._queues.describe(request)
        elif kind == messages.LIST_QUEUES:
            self._queues.list_names(request)
        elif kind == messages.CONNECT:
            self._gate.connect(request)
        elif kind == messages.DISCONNECT:
            self._queues.return_everything(now_us)
            self.end()
        else:
            assert kind in _ADMINISTRATION
            self._gate.administer(request)
        return True

    # Publishing.

    def _publish(self, request: session.Request, now_us: int) -> bool:
        principal = self.principal
        assert principal is not None
        gate = self._gate
        if gate.publishable.get(request.queue) != principal.version and not gate.may_publish(
            request
        ):
            return True
        queue = self._broker.queues.by_name.get(request.queue)
        topic = self._queues.topic_of_new(request) if queue is None else queue.topic
        if topic is None:
            return True
        dedup_id = request.headers.get(DEDUP_HEADER, "") if request.headers else ""
        message = message_of(request, topic)
        verdict = self._admission.judge(message, dedup_id, now_us)
        if verdict == admission.STARVED:
            # Held, unlike WAIT below: the next commit ends this, whatever the peer does.
            self._starve()
            return False
        if verdict == admission.WAIT:
            assert queue is not None
            self._park(queue)
            self._blocked.append(request)
            self._blocked_bytes += _size_of(request)
        elif verdict == admission.DUPLICATE:
            self._published(request, self._admission.known_id)
        elif verdict == admission.FULL:
            self.error(request, session.SERVER_ERROR, admission.QUEUE_FULL)
        elif verdict == admission.REFUSED:
            self.error(request, session.SERVER_ERROR, self._admission.reason)
        # The queue is created only for a publish that is stored, and before it is: a queue
        # keeps the messages whose ids are above its own.
        elif queue is not None or self._queues.auto_create(request, now_us) is not None:
            stored = self._broker.accept(verdict, message, dedup_id, now_us)
            self._published(request, stored.id, stored.timestamp_us)
        return True

    def _published(
        self, request: session.Request, record_id: int, timestamp_us: int = 0
    ) -> None:
        self.last_id = max(self.last_id, record_id)
        headers = {"messageId": request.id, "queueName": request.queue}
        if timestamp_us and self.session.tells_times:
            headers["timestamp"] = iso(timestamp_us)
        ack = self.session.reply(
            messages.PUBLISH_ACK, request.id, request.queue, headers=headers
        )
        self.output.reply_after(VibeReply(record_id, ack, request))

    # The fence.

    def _ping(self, command: session.Command) -> None:
        if self._queues.acknowledged:
            self._queues.acknowledged = False
            self.last_id = self._broker.barrier()
        pong = self.session.reply(messages.PONG, command.id, command.queue)
        self.output.reply_after(WaitingReply(self.last_id, pong))

    # Errors, and the end.

    def end(self) -> None:
        """Close when everything is answered; what the peer sends from now on is ignored."""
        self._is_done = True
        self._ending = True

    def error(self, command: session.Command, code: str, text: str) -> None:
        """Answer a command with an Error."""
        self.output.reply(self.session.error(command.id, code, text, command.queue))


def _size_of(command: session.Command) -> int:
    """Return how much memory a command takes that a peer can make large."""
    if isinstance(command, session.Reply):
        return len(command.data)  # it repeats the id of what it refuses
    assert isinstance(command, session.Request)
    size = len(command.id) + len(command.payload)
    for name, value in command.headers.items():
        size += len(name) + len(value)
    return size
