"""A Vibe connection: joins its session to the broker's queues.

While a Publish waits for room in its queue, the commands behind it that change nothing for
publishers go on (Ack, Ping, Unsubscribe), and their replies keep their place behind it.
"""

from collections import deque
from typing import Final, final

from braidmq.broker import admission, dead_letters
from braidmq.broker import authorize as permissions
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.queues import PREFETCH_DEFAULT
from braidmq.broker.settings import US_PER_MS
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.connection import WAITING_REPLIES_MAX, WaitingReply
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.server.strands.vibe.deliveries import Delivering, give_up, message_of
from braidmq.server.strands.vibe.gate import VibeOptions
from braidmq.server.strands.vibe.given import Given
from braidmq.server.strands.vibe.management import VibeManagement, VibeReply
from braidmq.wire.errors import WireError
from braidmq.wire.vibe import messages, session

BLOCKED_MAX: Final = 1024
"""Commands whose replies wait behind a Publish that has no room in its queue."""

BLOCKED_BYTES_MAX: Final = 1024 * 1024
"""Payload bytes of those commands."""

_FREE: Final = frozenset({messages.ACK, messages.PING, messages.DISCONNECT, messages.CONNECT})
_ADMINISTRATION: Final = frozenset(
    range(messages.CREATE_USER, messages.GET_USER_PERMISSIONS + 1)
)


@final
class VibeConnection(VibeManagement):
    """One Vibe connection."""

    def __init__(
        self, host: Host, wire: Wire, limits: Limits, options: VibeOptions, number: int
    ) -> None:
        super().__init__(host, wire, limits, options, number)
        self._delivering = Delivering(self._session, options.max_message_bytes)
        self._held: session.Command | None = None
        self._blocked: deque[session.Command] = deque()
        self._blocked_bytes: int = 0
        self._given = Given(self)
        self._acknowledged: bool = False  # since the last barrier
        self._paid: bool = False  # the command at hand has its token

    # What the base asks for.

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:  # noqa: ARG002 - every Publish has a reply that waits
        """Turn the answers to what the log refused, from *from_id* on, into Errors.

        A repeat of a message waits for the same id as the first, and is refused with it.
        """
        kept: deque[WaitingReply] = deque()
        for reply in self._replies:
            if reply.after_id < from_id:
                kept.append(reply)
            elif isinstance(reply, VibeReply):
                error = self._session.error(
                    reply.request_id, session.SERVER_ERROR, reason, reply.queue
                )
                kept.append(WaitingReply(0, error))
            else:
                kept.append(WaitingReply(again_id, reply.data))
        self._replies = kept
        if self._last_id >= from_id:
            self._last_id = again_id
        self._note_waiting()

    def lost(self) -> None:
        """Give back what the peer was holding: it is gone."""
        self._held = None
        self._blocked.clear()
        self._given = Given(self)
        super().lost()

    def say_goodbye(self) -> None:
        """Tell the peer that the broker ends; what it holds goes back, and is no attempt."""
        if self._closed or self._ending:
            return
        self._collect()
        if self.is_authenticated:
            self._out.append(
                self._session.reply(
                    messages.DISCONNECT, "shutdown", headers={"reason": "server_shutdown"}
                )
            )
        self._return_everything(self._host.now_us())
        self._flush()

    def _take_in(self, data: bytes) -> None:
        self._session.receive_data(data)

    def _is_blocked(self) -> bool:
        if self._ending and self._blocked:
            return True
        return self._held is not None or self._asking

    def _held_bytes(self) -> int:
        return self._session.held_bytes

    def _lost_framing(self, error: WireError) -> None:
        raise AssertionError(error)  # the session answers lost framing by itself

    def _handle(self, now_us: int) -> None:
        if self._blocked:
            self._go_on_publishing(now_us)
        while self._writable and not self._asking and not self._is_done:
            command = self._held
            if command is None:
                command = self._session.next_command()
                if command is None:
                    break
                self._paid = False
            else:
                self._held = None
            if not self._execute(command, now_us):
                self._held = command
                break

    def _collect(self) -> None:
        deliveries = self.deliveries
        if not deliveries:
            return
        self.deliveries = []
        now_us = self._host.now_us()
        for delivery in deliveries:
            frame = self._delivering.frame(delivery, now_us)
            entry = delivery.entry
            if frame is None:
                give_up(self._broker, entry, now_us)
                if self._writable:
                    self._measure_room()  # its bytes are not sent
                continue
            self._out.append(frame)
            if entry is not None:
                self._given.note(self._delivering.message_id, entry)

    # One command.

    def _execute(self, command: session.Command, now_us: int) -> bool:
        if len(self._replies) >= WAITING_REPLIES_MAX:
            return False
        kind = command.kind
        if kind == messages.ACK:
            assert isinstance(command, session.Request)
            self._acknowledge(command, now_us)
            return True
        if self._rate and not self._paid and kind not in _FREE and kind != session.REPLY:
            self._paid = self._earn_token(now_us)
            if not self._paid:
                error = self._session.error(
                    command.id, session.RATE_LIMITED, "too many messages", command.queue
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
            self._reply(command.data)
            if command.closes:
                self._end()
            return True
        if self._replies:
            return False  # its effects would be seen before the answers that wait
        assert isinstance(command, session.Request)
        return self._execute_in_turn(command, now_us)

    def _execute_behind(self, command: session.Command, now_us: int) -> bool:
        """Handle a command behind a Publish that waits for room; say whether it could be."""
        if len(self._blocked) >= BLOCKED_MAX or self._blocked_bytes >= BLOCKED_BYTES_MAX:
            return False
        kind = command.kind
        if kind == messages.UNSUBSCRIBE:
            self._leave(command.queue, now_us)
        elif kind == messages.PUBLISH:
            assert isinstance(command, session.Request)
            self._blocked_bytes += len(command.payload)
        elif kind == messages.DISCONNECT:
            self._blocked.clear()  # never accepted: a peer that closes does not wait
            self._return_everything(now_us)
            self._end()
            return True
        elif kind not in {messages.PING, session.REPLY}:
            return False
        self._blocked.append(command)
        return True

    def _go_on_publishing(self, now_us: int) -> None:
        blocked = self._blocked
        while blocked and self._writable:
            command = blocked.popleft()
            if command.kind == messages.PUBLISH:
                assert isinstance(command, session.Request)
                self._blocked_bytes -= len(command.payload)
                if not self._publish(command, now_us):
                    blocked.appendleft(command)
                    self._blocked_bytes += len(command.payload)
                    return
                if blocked and blocked[-1] is command:
                    # It waits again, and was put at the end: back to its place.
                    blocked.pop()
                    blocked.appendleft(command)
                    return
            elif command.kind == messages.PING:
                self._ping(command)
            elif command.kind == messages.UNSUBSCRIBE:
                self._reply(self._unsubscribed(command))
            else:
                assert isinstance(command, session.Reply)
                self._reply(command.data)
                if command.closes:
                    self._end()

    def _execute_in_turn(self, request: session.Request, now_us: int) -> bool:
        kind = request.kind
        if kind == messages.SUBSCRIBE:
            return self._subscribe(request, now_us)
        if kind == messages.UNSUBSCRIBE:
            self._leave(request.queue, now_us)
            self._reply(self._unsubscribed(request))
        elif kind == messages.CREATE_QUEUE:
            self._create_queue(request, now_us)
        elif kind == messages.DELETE_QUEUE:
            self._delete_queue(request)
        elif kind == messages.QUEUE_INFO:
            self._queue_info(request)
        elif kind == messages.LIST_QUEUES:
            self._list_queues(request)
        elif kind == messages.CONNECT:
            self._connect(request)
        elif kind == messages.DISCONNECT:
            self._return_everything(now_us)
            self._end()
        else:
            assert kind in _ADMINISTRATION
            self._administer(request)
        return True

    # Publishing.

    def _publish(self, request: session.Request, now_us: int) -> bool:
        principal = self.principal
        assert principal is not None
        if self._may_publish.get(request.queue) != principal.version:
            if not self._is_allowed(permissions.PUBLISH, request):
                return True
            if len(self._may_publish) >= session.KNOWN_QUEUES_MAX:
                self._may_publish.clear()
            self._may_publish[request.queue] = principal.version
        queue = self._broker.queues.by_name.get(request.queue)
        topic = self._topic_without_queue(request) if queue is None else queue.topic
        if topic is None:
            return True
        dedup_id = request.headers.get(DEDUP_HEADER, "") if request.headers else ""
        message = message_of(request, topic)
        verdict = self._admission.judge(message, dedup_id, now_us)
        if verdict == admission.STARVED:
            self._starve()
            return False
        if verdict == admission.WAIT:
            assert queue is not None
            self._park(queue)
            self._blocked.append(request)
            self._blocked_bytes += len(request.payload)
        elif verdict == admission.DUPLICATE:
            self._published(request, self._admission.known_id)
        elif verdict == admission.FULL:
            self._error(request, session.SERVER_ERROR, admission.QUEUE_FULL)
        elif verdict == admission.REFUSED:
            self._error(request, session.SERVER_ERROR, self._admission.reason)
        elif queue is not None or self._auto_create(request, now_us) is not None:
            stored = self._broker.accept(verdict, message, dedup_id, now_us)
            self._published(request, stored.id)
        return True

    def _topic_without_queue(self, request: session.Request) -> Topic | None:
        """Return the topic that a Publish will make a queue of, or refuse the Publish."""
        if not self._options.auto_create:
            self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return None
        topic = self._broker.topics.get(request.queue)
        if topic is None:
            self._error(request, session.SERVER_ERROR, "too many queues")
        return topic

    def _published(self, request: session.Request, given: int) -> None:
        self._last_id = max(self._last_id, given)
        ack = self._session.reply(
            messages.PUBLISH_ACK,
            request.id,
            request.queue,
            headers={"messageId": request.id, "queueName": request.queue},
        )
        self._reply_after(VibeReply(given, ack, request))

    # Consuming.

    def _subscribe(self, request: session.Request, now_us: int) -> bool:
        """Make the peer a consumer; say whether that could be done yet."""
        if not self._is_allowed(permissions.SUBSCRIBE, request):
            return True
        queues = self._broker.queues
        queue = queues.by_name.get(request.queue)
        if queue is None:
            queue = self._auto_create(request, now_us)
            if queue is None:
                return True
        if queue.id > self._broker.committed_id:
            # What comes in the same commit must not be delivered before the SubscribeAck.
            if not self._is_waiting:
                self._is_waiting = True
                self._host.waiting.append(self)
            return False
        prefetch = int(request.headers.get("prefetch", str(PREFETCH_DEFAULT)))
        queues.join(self, queue, 0 if self._input_finished else prefetch)
        ack = self._session.reply(
            messages.SUBSCRIBE_ACK,
            request.id,
            request.queue,
            headers={"queueName": request.queue, "subscriptionId": request.id},
        )
        self._reply(ack)
        queues.pump(queue, now_us)
        return True

    def _leave(self, name: str, now_us: int) -> None:
        queue = self._broker.queues.by_name.get(name)
        consumer = self.queue_consumers.pop(queue.id, None) if queue is not None else None
        if consumer is not None:
            self._collect()  # what it was given before this is its own to acknowledge
            self._broker.queues.leave(consumer, now_us, counted=False)

    def _unsubscribed(self, command: session.Command) -> bytes:
        queue = command.queue
        headers = {"queueName": queue}
        return self._session.reply(messages.UNSUBSCRIBE_ACK, command.id, queue, b"", headers)

    def _return_everything(self, now_us: int) -> None:
        self._collect()
        for consumer in list(self.queue_consumers.values()):
            self._broker.queues.leave(consumer, now_us, counted=False)
        self.queue_consumers = {}

    def _acknowledge(self, request: session.Request, now_us: int) -> None:
        message_id = request.headers.get("messageId") or request.id
        entry = self._given.take(message_id, request.queue)
        if entry is None:
            self._broker.stats.unknown_acks += 1
            return
        self._acknowledged = True
        result = request.headers.get("result")
        queues = self._broker.queues
        if result is None:
            queues.acknowledge(entry, now_us)
        elif result == "reject":
            queues.reject(entry, dead_letters.REJECTED, now_us)
        else:
            delay_us = int(request.headers.get("delayMs", "0")) * US_PER_MS
            queues.requeue(entry, delay_us, now_us)

    def _ping(self, command: session.Command) -> None:
        if self._acknowledged:
            self._acknowledged = False
            self._last_id = self._broker.barrier()
        pong = self._session.reply(messages.PONG, command.id, command.queue)
        self._reply_after(WaitingReply(self._last_id, pong))
