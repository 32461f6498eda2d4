"""Queue management for a Vibe connection: queues made, deleted, described and listed.

Each request is answered with one reply, which the connection sends once the record that the
reply waits for is committed. What a declaration means is in `declarations`; publishing and
consuming are in `connection`.
"""

from typing import Final, final

from braidmq.broker.authorize import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    QUEUE_INFO,
    Principal,
    authorize,
)
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.queues import QUEUES_MAX, Queue
from braidmq.broker.policy import Policy
from braidmq.server.engine.connection import WaitingReply
from braidmq.server.strands.vibe.declarations import declared_policy, facts_of, names_payload
from braidmq.wire.vibe import frames, messages, session
from braidmq.wire.vibe.queue_options import OptionError, read_options, write_info

NOT_ALLOWED: Final = "not allowed"
"""The text of an Error for an operation that the principal has no permission for."""


class VibeOptions:
    """What the configuration of the strand says about every connection."""

    def __init__(self, *, max_message_bytes: int, auto_create: bool, version: str) -> None:
        self.max_message_bytes: int = max_message_bytes
        self.auto_create: bool = auto_create
        self.version: str = version


@final
class VibeReply(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for."""

    def __init__(self, after_id: int, data: bytes, request: session.Command) -> None:
        super().__init__(after_id, data)
        self.request_id: str = request.id
        self.queue: str = request.queue


@final
class QueueManagement:
    """The queues as one connection declares and lists them."""

    def __init__(self, broker: Broker, wire: session.Session, options: VibeOptions) -> None:
        self._broker: Broker = broker
        self._session: session.Session = wire
        self._options: VibeOptions = options
        self.code: str = ""  # why the last `auto_create` returned None: Vibe's code,
        self.reason: str = ""  # and the text

    def auto_create(self, name: str, now_us: int) -> Queue | None:
        """Declare a queue that a request names; None: `code` and `reason` say why not."""
        if not self._options.auto_create:
            self.code = session.QUEUE_NOT_FOUND
            self.reason = "no such queue"
            return None
        return self._declare(name, self._broker.queues.new_policy(name), now_us)

    def answer(
        self, request: session.Request, principal: Principal, last_id: int, now_us: int
    ) -> WaitingReply:
        """Execute a request and return its reply.

        The reply to DeleteQueue waits for *last_id*, the newest record of the connection, when
        there is no such queue: it may be one that the connection deleted just now.
        """
        kind = request.kind
        if kind == messages.LIST_QUEUES:
            return self._list(request, principal)
        if not authorize(principal, _PERMISSIONS[kind], request.queue):
            return self._error(request, session.AUTH_FAILED, NOT_ALLOWED)
        if kind == messages.CREATE_QUEUE:
            return self._create(request, now_us)
        if kind == messages.DELETE_QUEUE:
            return self._delete(request, last_id)
        assert kind == messages.QUEUE_INFO
        return self._info(request)

    def _declare(self, name: str, policy: Policy, now_us: int) -> Queue | None:
        broker = self._broker
        topic = broker.topics.get(name)
        self.code = session.SERVER_ERROR
        self.reason = broker.refusal
        if topic is None or len(broker.queues.by_name) >= QUEUES_MAX:
            self.reason = "too many queues"
        if self.reason or topic is None:
            return None
        return broker.queues.declare(topic, policy, now_us)

    def _create(self, request: session.Request, now_us: int) -> WaitingReply:
        try:
            policy = declared_policy(
                request.queue,
                read_options(request.headers, request.payload),
                self._broker.queues.new_policy(request.queue),
            )
        except OptionError as error:
            return self._error(request, session.INVALID_MESSAGE, str(error))
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None:
            queue = self._declare(request.queue, policy, now_us)
            if queue is None:
                return self._error(request, self.code, self.reason)
        elif (
            self._session.dialect == frames.DIALECT_1_0
            and queue.policy.values() != policy.values()
        ):
            text = "the queue exists with other options"
            return self._error(request, session.QUEUE_EXISTS, text)
        # Also a repeat waits for the record: it must not be told what is not durable yet.
        done = self._session.reply(request.kind, request.id, request.queue)
        return VibeReply(queue.id, done, request)

    def _delete(self, request: session.Request, last_id: int) -> WaitingReply:
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None and self._session.dialect == frames.DIALECT_1_0:
            return self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
        after_id = last_id if queue is None else self._broker.queues.delete(queue)
        done = self._session.reply(request.kind, request.id, request.queue)
        return WaitingReply(after_id, done)

    def _info(self, request: session.Request) -> WaitingReply:
        queue = self._broker.queues.by_name.get(request.queue)
        payload = b""
        if queue is not None:
            payload = write_info(facts_of(queue), self._session.dialect)
        elif self._session.dialect == frames.DIALECT_1_0:
            return self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
        data = self._session.reply(request.kind, request.id, request.queue, payload)
        return WaitingReply(0, data)

    def _list(self, request: session.Request, principal: Principal) -> WaitingReply:
        payload = names_payload(self._broker.queues.by_name, principal)
        if len(payload) > self._options.max_message_bytes - session.PUBLISH_SPARE_BYTES:
            return self._error(request, session.SERVER_ERROR, "the list is longer than a frame")
        return WaitingReply(0, self._session.reply(request.kind, request.id, payload=payload))

    def _error(self, request: session.Request, code: str, text: str) -> WaitingReply:
        return WaitingReply(0, self._session.error(request.id, code, text, request.queue))


_PERMISSIONS: Final = {
    messages.CREATE_QUEUE: CREATE_QUEUE,
    messages.DELETE_QUEUE: DELETE_QUEUE,
    messages.QUEUE_INFO: QUEUE_INFO,
}
