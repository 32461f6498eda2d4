"""Consuming on a Blip connection: SUBSCRIBE, POLL, CREDIT, ACK and UNSUBSCRIBE.

A command names its subscription by id. The first command of a connection on a subscription
makes the connection a consumer of it; later ones find that consumer again.
"""

from typing import final

from braidmq.broker import broker as verbs
from braidmq.broker.authorize import SUBSCRIBE, authorize
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX, Consumer
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.output import Output, WaitingReply
from braidmq.server.strands.blip.output import SUBSCRIBE_FAILED, SubscribeReply, refusal
from braidmq.wire.blip import messages, session


@final
class Consuming:
    """What one connection consumes; each method is a verb of the protocol."""

    def __init__(self, connection: Connection, broker: Broker) -> None:
        self.acknowledged: bool = False  # since the last barrier
        self._connection: Connection = connection
        self._output: Output = connection.output
        self._broker: Broker = broker

    def acknowledge(self, command: session.OnSubscription, now_us: int) -> bool:
        """Settle a delivery; return False while the log has to be asked about it."""
        # As `_consumer`, without the call: ACK and POLL come once per message.
        consumer = self._connection.consumers.get(command.subscription_id)
        if consumer is None or consumer.subscription.ended:
            consumer = self._consumer(command)
            if consumer is None:
                return True
        outcome = self._broker.acknowledge(consumer, command.correlation_id, now_us)
        if outcome == verbs.UNKNOWN:
            self._not_found(command)
        elif outcome == verbs.WAIT:
            return False
        else:
            self.acknowledged = True
        return True

    def poll(self, command: session.OnSubscription, now_us: int) -> bool:
        """Hand out one message, if there is one; return False while it is read back."""
        consumer = self._connection.consumers.get(command.subscription_id)
        if consumer is None or consumer.subscription.ended:
            consumer = self._consumer(command)
            if consumer is None:
                return True
        outcome = self._broker.poll(consumer, command.correlation_id, now_us)
        if outcome == verbs.WAIT:
            return False
        if self._connection.room_bytes <= 0:
            self._output.flush()  # and see whether the peer takes it
        return True

    def credit(self, command: session.OnSubscription, now_us: int) -> None:
        """Let messages be pushed; credit of a peer that sends no more is void."""
        consumer = self._consumer(command)
        if consumer is not None and not self._connection.input_finished:
            self._broker.credit(consumer, command.count, command.correlation_id, now_us)

    def subscribe(self, command: session.Subscribe, now_us: int) -> None:
        """Make a subscription, or refuse it."""
        connection = self._connection
        broker = self._broker
        assert connection.principal is not None
        if not authorize(connection.principal, SUBSCRIBE, command.topic):
            nack = messages.encode_nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            self._output.reply(nack)
            return
        topic = broker.topics.get(command.topic)
        reason = "too many topics" if topic is None else broker.refusal
        if broker.subscription_count() >= SUBSCRIPTIONS_MAX:
            reason = "too many subscriptions"
        if topic is None or reason:
            self._output.reply(refusal(command.correlation_id, SUBSCRIBE_FAILED, reason))
            return
        given = broker.subscribe(connection, topic, command.qos, now_us)
        connection.subscribed_id = given
        ack = messages.encode_ack(command.correlation_id, given)
        self._output.reply_after(SubscribeReply(given, ack, command.correlation_id))

    def unsubscribe(self, command: session.OnSubscription) -> None:
        """End a subscription; the ACK waits for the commit of that."""
        consumer = self._consumer(command)
        if consumer is None:
            return
        connection = self._connection
        connection.last_id = self._broker.unsubscribe(consumer)
        del connection.consumers[command.subscription_id]
        ack = messages.encode_ack(command.correlation_id, command.subscription_id)
        self._output.reply_after(WaitingReply(connection.last_id, ack))

    def _consumer(self, command: session.OnSubscription) -> Consumer | None:
        """Return the hold on the subscription; refuse the command when there is none."""
        connection = self._connection
        consumer = connection.consumers.get(command.subscription_id)
        if consumer is not None:
            if not consumer.subscription.ended:
                return consumer
            del connection.consumers[command.subscription_id]
        consumer = self._broker.subscriptions.attach(connection, command.subscription_id)
        if consumer is None:
            self._not_found(command)
        return consumer

    def _not_found(self, command: session.Command) -> None:
        nack = messages.encode_nack(
            command.correlation_id, session.NOT_FOUND, "unknown subscription or delivery tag"
        )
        self._output.reply(nack)
