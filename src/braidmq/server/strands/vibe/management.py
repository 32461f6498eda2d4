"""Queue management on a Vibe connection: queues made, deleted, described and listed.

What is published to them and consumed from them is `vibe`'s; what a declaration means is
`vibe_queues`'.
"""

from typing import final

from braidmq.broker import authorize as permissions
from braidmq.broker.delivery.queues import QUEUES_MAX, Queue
from braidmq.broker.policy import Policy
from braidmq.server.engine.connection import WaitingReply
from braidmq.server.strands.vibe.declarations import declared_policy, facts_of, names_payload
from braidmq.server.strands.vibe.gate import VibeGate
from braidmq.wire.vibe import frames, session
from braidmq.wire.vibe.queue_options import OptionError, read_options, write_info


@final
class VibeReply(WaitingReply):
    """A reply that becomes an Error when the log refuses the record it waits for."""

    def __init__(self, after_id: int, data: bytes, request: session.Command) -> None:
        super().__init__(after_id, data)
        self.request_id: str = request.id
        self.queue: str = request.queue


class VibeManagement(VibeGate):
    """A Vibe connection as far as it is about which queues there are."""

    def _auto_create(self, request: session.Request, now_us: int) -> Queue | None:
        """Return a new queue for what a request names, or refuse the request."""
        if not self._options.auto_create:
            self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return None
        policy = self._broker.queues.new_policy(request.queue)
        return self._declare(request, policy, now_us)

    def _declare(self, request: session.Request, policy: Policy, now_us: int) -> Queue | None:
        broker = self._broker
        topic = broker.topics.get(request.queue)
        refusal = broker.refusal
        if topic is None or len(broker.queues.by_name) >= QUEUES_MAX:
            refusal = "too many queues"
        if refusal or topic is None:
            self._error(request, session.SERVER_ERROR, refusal)
            return None
        return broker.queues.declare(topic, policy, now_us)

    def _create_queue(self, request: session.Request, now_us: int) -> None:
        if not self._is_allowed(permissions.CREATE_QUEUE, request):
            return
        try:
            policy = declared_policy(
                request.queue,
                read_options(request.headers, request.payload),
                self._broker.queues.new_policy(request.queue),
            )
        except OptionError as error:
            self._error(request, session.INVALID_MESSAGE, str(error))
            return
        done = self._session.reply(request.kind, request.id, request.queue)
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None:
            queue = self._declare(request, policy, now_us)
            if queue is not None:
                self._reply_after(VibeReply(queue.id, done, request))
        elif (
            self._session.dialect == frames.DIALECT_1_0
            and queue.policy.values() != policy.values()
        ):
            self._error(request, session.QUEUE_EXISTS, "the queue exists with other options")
        else:
            self._reply_after(VibeReply(queue.id, done, request))

    def _delete_queue(self, request: session.Request) -> None:
        if not self._is_allowed(permissions.DELETE_QUEUE, request):
            return
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None and self._session.dialect == frames.DIALECT_1_0:
            self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return
        if queue is not None:
            self._last_id = self._broker.queues.delete(queue)
        done = self._session.reply(request.kind, request.id, request.queue)
        self._reply_after(WaitingReply(self._last_id, done))

    def _queue_info(self, request: session.Request) -> None:
        if not self._is_allowed(permissions.QUEUE_INFO, request):
            return
        queue = self._broker.queues.by_name.get(request.queue)
        payload = b""
        if queue is not None:
            payload = write_info(facts_of(queue), self._session.dialect)
        elif self._session.dialect == frames.DIALECT_1_0:
            self._error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return
        self._reply(self._session.reply(request.kind, request.id, request.queue, payload))

    def _list_queues(self, request: session.Request) -> None:
        assert self.principal is not None
        payload = names_payload(self._broker.queues.by_name, self.principal)
        if len(payload) > self._options.max_message_bytes - session.PUBLISH_SPARE_BYTES:
            self._error(request, session.SERVER_ERROR, "the list is longer than a frame")
            return
        self._reply(self._session.reply(request.kind, request.id, payload=payload))
