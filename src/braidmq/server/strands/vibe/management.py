"""Queue management on a Vibe connection: queues made, deleted, described and listed.

Publishing is the connection's, consuming is in `consuming`; what a declaration means is in
`declarations`.
"""

from typing import TYPE_CHECKING, final

from braidmq.broker import authorize as permissions
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.queues import QUEUES_MAX
from braidmq.broker.policy import Policy
from braidmq.broker.topics import Topic
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.server.strands.vibe.declarations import declared_policy, facts_of, names_payload
from braidmq.server.strands.vibe.gate import Gate, VibeOptions
from braidmq.server.strands.vibe.output import VibeReply
from braidmq.wire.vibe import frames, session
from braidmq.wire.vibe.queue_options import OptionError, read_options, write_info

if TYPE_CHECKING:
    from braidmq.server.strands.vibe.connection import VibeConnection


@final
class Management:
    """What one connection does with queues as a whole."""

    def __init__(
        self, connection: "VibeConnection", gate: Gate, broker: Broker, options: VibeOptions
    ) -> None:
        self._connection: VibeConnection = connection
        self._session: session.Session = connection.session
        self._output: Output = connection.output
        self._gate: Gate = gate
        self._broker: Broker = broker
        self._options: VibeOptions = options

    def topic_of_new(self, request: session.Request) -> Topic | None:
        """Return the topic that a Publish will make a queue of, or refuse the Publish."""
        if not self._options.auto_create:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return None
        topic = self._broker.topics.get(request.queue)
        if topic is None:
            self._connection.error(request, session.SERVER_ERROR, "too many queues")
        return topic

    def auto_create(self, request: session.Request, now_us: int) -> Queue | None:
        """Return a new queue for what a request names, or refuse the request."""
        if not self._options.auto_create:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
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
            self._connection.error(request, session.SERVER_ERROR, refusal)
            return None
        return broker.queues.declare(topic, policy, now_us)

    def create(self, request: session.Request, now_us: int) -> None:
        """Make a queue with the options that the request gives."""
        if not self._gate.is_allowed(permissions.CREATE_QUEUE, request):
            return
        try:
            policy = declared_policy(
                request.queue,
                read_options(request.headers, request.payload),
                self._broker.queues.new_policy(request.queue),
            )
        except OptionError as error:
            self._connection.error(request, session.INVALID_MESSAGE, str(error))
            return
        done = self._session.reply(request.kind, request.id, request.queue)
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None:
            queue = self._declare(request, policy, now_us)
            if queue is not None:
                self._output.reply_after(VibeReply(queue.id, done, request))
        elif (
            self._session.dialect == frames.DIALECT_1_0
            and queue.policy.values() != policy.values()
        ):
            self._connection.error(
                request, session.QUEUE_EXISTS, "the queue exists with other options"
            )
        else:
            self._output.reply_after(VibeReply(queue.id, done, request))

    def delete(self, request: session.Request) -> None:
        """Delete a queue; the reply waits for the commit of that."""
        if not self._gate.is_allowed(permissions.DELETE_QUEUE, request):
            return
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None and self._session.dialect == frames.DIALECT_1_0:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return
        connection = self._connection
        if queue is not None:
            connection.last_id = self._broker.queues.delete(queue)
        done = self._session.reply(request.kind, request.id, request.queue)
        self._output.reply_after(WaitingReply(connection.last_id, done))

    def describe(self, request: session.Request) -> None:
        """Tell what a queue is like, and how much is in it."""
        if not self._gate.is_allowed(permissions.QUEUE_INFO, request):
            return
        queue = self._broker.queues.by_name.get(request.queue)
        payload = b""
        if queue is not None:
            payload = write_info(facts_of(queue), self._session.dialect)
        elif self._session.dialect == frames.DIALECT_1_0:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return
        self._output.reply(
            self._session.reply(request.kind, request.id, request.queue, payload)
        )

    def list_names(self, request: session.Request) -> None:
        """Tell the names of the queues that the peer may see."""
        principal = self._connection.principal
        assert principal is not None
        payload = names_payload(self._broker.queues.by_name, principal)
        if len(payload) > self._options.max_message_bytes - session.PUBLISH_SPARE_BYTES:
            self._connection.error(
                request, session.SERVER_ERROR, "the list is longer than a frame"
            )
            return
        self._output.reply(self._session.reply(request.kind, request.id, payload=payload))
