"""Consuming on a Vibe connection: subscriptions and acknowledgements."""

from typing import TYPE_CHECKING, final

from braidmq.broker import dead_letters
from braidmq.broker.authorize import SUBSCRIBE
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.queues import PREFETCH_DEFAULT
from braidmq.broker.settings import US_PER_MS
from braidmq.server.engine.connection import Output
from braidmq.server.strands.vibe.deliveries import Outstanding
from braidmq.server.strands.vibe.gate import Gate
from braidmq.server.strands.vibe.management import Management
from braidmq.wire.vibe import messages, session

if TYPE_CHECKING:
    from braidmq.server.strands.vibe.connection import VibeConnection


@final
class Consuming:
    """The subscriptions of one connection."""

    def __init__(
        self,
        connection: "VibeConnection",
        gate: Gate,
        management: Management,
        broker: Broker,
        outstanding: Outstanding,
    ) -> None:
        self.acknowledged: bool = False  # since the last barrier
        self._connection: VibeConnection = connection
        self._session: session.Session = connection.session
        self._output: Output = connection.output
        self._gate: Gate = gate
        self._management: Management = management
        self._broker: Broker = broker
        self._outstanding: Outstanding = outstanding

    def subscribe(self, request: session.Request, now_us: int) -> bool:
        """Make the peer a consumer; return False while the queue is not committed."""
        if not self._gate.is_allowed(SUBSCRIBE, request):
            return True
        queues = self._broker.queues
        queue = queues.by_name.get(request.queue)
        if queue is None:
            queue = self._management.auto_create(request, now_us)
            if queue is None:
                return True
        if queue.id > self._broker.committed_id:
            # Messages of the same commit must not be delivered before the SubscribeAck.
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
        queues.pump(queue, now_us)
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
        """Settle, reject or requeue a delivery; an Ack gets no reply."""
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
            queues.reject(entry, dead_letters.REJECTED, now_us)
        else:
            delay_us = int(request.headers.get("delayMs", "0")) * US_PER_MS
            queues.requeue(entry, delay_us, now_us)
