"""Queues on a Vibe connection: subscriptions, acknowledgements, and queue management.

The functions below the class turn what a peer says about queues into the broker's terms, and
back. Publishing is the connection's own.
"""

from typing import TYPE_CHECKING, Final, final

import msgspec

from braidmq.base import refusals
from braidmq.broker import dead_letters
from braidmq.broker.authorize import (
    CREATE_QUEUE,
    DELETE_QUEUE,
    LIST_QUEUES,
    QUEUE_INFO,
    SUBSCRIBE,
    Principal,
    authorize,
    lacks_for_letters,
)
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.queue import Queue
from braidmq.broker.delivery.queues import NOT_BURIED
from braidmq.broker.policy import Policy
from braidmq.broker.settings import US_PER_MS
from braidmq.broker.topics import Topic
from braidmq.server.engine.connection import Output, WaitingReply
from braidmq.server.strands.vibe.deliveries import NOT_REJECTED, Outstanding, VibeReply
from braidmq.server.strands.vibe.gate import NOT_ALLOWED, Gate, VibeOptions
from braidmq.wire.vibe import frames, messages, session
from braidmq.wire.vibe.queue_options import (
    OptionError,
    QueueFacts,
    QueueOptions,
    read_options,
    write_info,
)

if TYPE_CHECKING:
    from braidmq.server.strands.vibe.connection import VibeConnection

PREFETCH_DEFAULT: Final = 100
"""Unacknowledged deliveries that a consumer may hold if it does not say how many."""


@final
class QueueCommands:
    """Executes the commands of one connection that concern queues, but for Publish."""

    def __init__(
        self,
        connection: "VibeConnection",
        gate: Gate,
        broker: Broker,
        options: VibeOptions,
        outstanding: Outstanding,
    ) -> None:
        self.acknowledged: bool = False  # since the last barrier
        self._connection: VibeConnection = connection
        self._session: session.Session = connection.session
        self._output: Output = connection.output
        self._gate: Gate = gate
        self._broker: Broker = broker
        self._options: VibeOptions = options
        self._outstanding: Outstanding = outstanding

    # Consuming.

    def subscribe(self, request: session.Request, now_us: int) -> bool:
        """Make the peer a consumer; return False while the queue is not committed."""
        if not self._gate.is_allowed(SUBSCRIBE, request):
            return True
        queues = self._broker.queues
        queue = queues.by_name.get(request.queue)
        if queue is None:
            queue = self.auto_create(request, now_us)
            if queue is None:
                return True
        if queue.id > self._broker.committed_id:
            # The SubscribeAck must not come before the queue is durable, and messages of the
            # same commit must not come before the SubscribeAck.
            self._output.wait_for_commit()
            return False
        connection = self._connection
        prefetch = int(request.headers.get("prefetch", str(PREFETCH_DEFAULT)))
        queues.join(connection, queue, 0 if connection.input_finished else prefetch)
        ack = self._session.reply(
            messages.SUBSCRIBE_ACK,
            request.id,
            request.queue,
            headers={"queueName": request.queue, "subscriptionId": request.id},
        )
        self._output.reply(ack)
        queues.pump(queue, now_us)  # only now, so that the backlog comes after the SubscribeAck
        return True

    def leave(self, name: str, now_us: int) -> None:
        """Stop consuming a queue; its deliveries go back and do not count as attempts."""
        queue = self._broker.queues.by_name.get(name)
        consumers = self._connection.queue_consumers
        consumer = consumers.pop(queue.id, None) if queue is not None else None
        if consumer is not None:
            self._output.collect()  # the peer may still acknowledge what it was handed before
            self._broker.queues.leave(consumer, now_us, counted=False)

    def confirm_unsubscribe(self, command: session.Command) -> None:
        """Answer an Unsubscribe."""
        queue = command.queue
        headers = {"queueName": queue}
        self._output.reply(
            self._session.reply(messages.UNSUBSCRIBE_ACK, command.id, queue, b"", headers)
        )

    def return_everything(self, now_us: int) -> None:
        """Stop consuming every queue; deliveries go back and do not count as attempts."""
        self._output.collect()
        connection = self._connection
        for consumer in list(connection.queue_consumers.values()):
            self._broker.queues.leave(consumer, now_us, counted=False)
        connection.queue_consumers = {}

    def acknowledge(self, request: session.Request, now_us: int) -> None:
        """Settle, reject or requeue a delivery.

        An Ack gets no reply, except that a rejection gets an Error if the log has no room for
        the dead letter: a Pong must not stand for something that a crash would undo. So does
        one of a principal that is gone.
        """
        principal = self._connection.principal
        assert principal is not None
        if principal.gone:  # what it held goes back, to others
            self._connection.error(request, session.AUTH_FAILED, NOT_ALLOWED)
            return
        message_id = request.headers.get("messageId") or request.id
        entry = self._outstanding.take(message_id, request.queue)
        if entry is None:
            self._broker.stats.unknown_acks += 1
            return
        self.acknowledged = True
        result = request.headers.get("result")
        queues = self._broker.queues
        if result is None:
            queues.acknowledge(entry, now_us)
        elif result == "reject":
            letter_id = queues.reject(entry, dead_letters.REJECTED, now_us)
            if letter_id == NOT_BURIED:
                why = NOT_REJECTED + (self._broker.refusal or "too many topics")
                self._connection.error(request, session.SERVER_ERROR, why)
            elif letter_id:
                # Nothing is sent for it, unless the log refuses the record.
                self._output.reply_after(VibeReply(letter_id, b"", request))
        else:
            delay_us = int(request.headers.get("delayMs", "0")) * US_PER_MS
            queues.requeue(entry, delay_us, now_us)

    # Managing.

    def topic_of_new(self, request: session.Request) -> Topic | None:
        """Return the topic of the queue that a Publish will create, or refuse the Publish."""
        if not self._options.auto_create:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return None
        principal = self._connection.principal
        assert principal is not None
        refusal = self._broker.queues.refusal(request.queue, principal)
        if refusal:
            self._connection.error(request, session.SERVER_ERROR, refusal)
            return None
        return self._broker.topics.find(request.queue)

    def auto_create(self, request: session.Request, now_us: int) -> Queue | None:
        """Create the queue that a request names, or refuse the request."""
        if not self._options.auto_create:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return None
        policy = self._broker.queues.new_policy(request.queue)
        return self._declare(request, policy, now_us)

    def _declare(self, request: session.Request, policy: Policy, now_us: int) -> Queue | None:
        broker = self._broker
        principal = self._connection.principal
        assert principal is not None
        refusal = broker.refusal or broker.queues.refusal(request.queue, principal)
        topic = None if refusal else broker.topics.find(request.queue)
        if topic is None:
            self._connection.error(request, session.SERVER_ERROR, refusal)
            return None
        owner = broker.topics.accounts.of(principal.name)
        return broker.queues.declare(topic, policy, now_us, owner)

    def create(self, request: session.Request, now_us: int) -> None:
        """Create a queue with the options of the request."""
        if not self._gate.is_allowed(CREATE_QUEUE, request):
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
        principal = self._connection.principal
        assert principal is not None
        letters = policy.dead_letter_name
        if letters and lacks_for_letters(principal, letters):
            self._connection.error(request, session.AUTH_FAILED, NOT_ALLOWED)
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
            # It may wait as well: another connection may have declared the queue just now.
            self._output.reply_after(VibeReply(queue.id, done, request))

    def delete(self, request: session.Request) -> None:
        """Delete a queue; the reply waits for the commit."""
        if not self._gate.is_allowed(DELETE_QUEUE, request):
            return
        queue = self._broker.queues.by_name.get(request.queue)
        if queue is None and self._session.dialect == frames.DIALECT_1_0:
            self._connection.error(request, session.QUEUE_NOT_FOUND, "no such queue")
            return
        connection = self._connection
        if queue is not None:
            connection.last_id = self._broker.queues.delete(queue)
        # If the log refuses the record, it is queued again, and this reply waits for longer.
        done = self._session.reply(request.kind, request.id, request.queue)
        self._output.reply_after(WaitingReply(connection.last_id, done))

    def describe(self, request: session.Request) -> None:
        """Send the policy of a queue and its counts."""
        if not self._gate.is_allowed(QUEUE_INFO, request):
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
        """Send the names of the queues that the peer may see."""
        principal = self._connection.principal
        assert principal is not None
        payload = names_payload(self._broker.queues.by_name, principal)
        if len(payload) > self._options.max_message_bytes - session.PUBLISH_SPARE_BYTES:
            text = refusals.by_setting(
                "the list is longer than a frame",
                "vibe.max_message_bytes",
                self._options.max_message_bytes,
            )
            self._connection.error(request, session.SERVER_ERROR, text)
            return
        self._output.reply(self._session.reply(request.kind, request.id, payload=payload))


def declared_policy(name: str, options: QueueOptions, policy: Policy) -> Policy:
    """Return the policy of a declaration; *policy* holds the defaults, and is changed.

    Raises:
        OptionError: The queue would be its own dead letter queue.
    """
    if dead_letters.is_dead_letter_topic(name):
        return policy  # a dead letter queue has no bounds, whatever the options say
    if options.mode is not None:
        policy.mode = options.mode
    if options.max_size is not None:
        policy.max_size = options.max_size
    if options.overflow is not None:
        policy.overflow = options.overflow
    if options.ttl_ms is not None:
        policy.ttl_us = options.ttl_ms * US_PER_MS
    if options.dead_letters is not None:
        policy.dead_letters = options.dead_letters
    if options.dead_letter_name:
        if options.dead_letter_name == name:
            raise OptionError("deadLetterQueueName", "is the queue itself")
        if options.dead_letter_name != dead_letters.queue_for(name):  # the default
            policy.dead_letter_name = options.dead_letter_name
    if options.max_attempts is not None:
        policy.max_attempts = options.max_attempts
    if options.durable is not None:
        policy.durable = options.durable
    return policy


def facts_of(queue: Queue) -> QueueFacts:
    """Return the facts of a QueueInfo reply."""
    policy = queue.policy
    return QueueFacts(
        name=queue.topic.name,
        waiting=queue.waiting(),
        in_flight=queue.in_flight_count(),
        subscribers=len(queue.consumers),
        mode=policy.mode,
        max_size=policy.max_size,
        created_us=queue.created_us,
        ttl_ms=policy.ttl_us // US_PER_MS,
        dead_letters=policy.dead_letters,
        dead_letter_name=policy.dead_letter_name or dead_letters.queue_for(queue.topic.name),
        overflow=policy.overflow,
        max_attempts=policy.max_attempts,
        durable=policy.durable,
    )


def names_payload(queues: dict[str, Queue], principal: Principal) -> bytes:
    """Return the names that *principal* may see, as a JSON array sorted by code point."""
    names = [name for name in queues if authorize(principal, LIST_QUEUES, name)]
    return msgspec.json.encode(sorted(names))
