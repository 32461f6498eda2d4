"""Following on a Qumbed stream: the topics whose messages are pushed to it."""

from typing import TYPE_CHECKING, Final, final

from braidmq.broker.authorize import SUBSCRIBE, authorize
from braidmq.broker.broker import Broker
from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX
from braidmq.server.engine.output import WaitingReply
from braidmq.server.strands.qumbed.link import QumbedOptions
from braidmq.server.strands.qumbed.output import Answer, QumbedOutput
from braidmq.wire.qumbed import messages, session

if TYPE_CHECKING:
    from braidmq.server.strands.qumbed.stream import QumbedConnection

NOT_ALLOWED: Final = "not allowed"


@final
class Following:
    """What one stream subscribes to."""

    def __init__(
        self,
        stream: "QumbedConnection",
        output: QumbedOutput,
        broker: Broker,
        options: QumbedOptions,
    ) -> None:
        self._stream: QumbedConnection = stream
        self._output: QumbedOutput = output
        self._broker: Broker = broker
        self._options: QumbedOptions = options

    def subscribe(self, subscribe: messages.Subscribe, now_us: int) -> None:
        """Have a topic's messages pushed to the stream, or refuse the frame."""
        stream = self._stream
        assert stream.principal is not None
        schema_id = subscribe.schema_id
        if schema_id and not self._options.schemas.is_known(schema_id):
            stream.unknown_schema(subscribe, schema_id)
            return
        if not authorize(stream.principal, SUBSCRIBE, subscribe.topic):
            stream.error(subscribe, session.UNAUTHORIZED, NOT_ALLOWED)
            return
        broker = self._broker
        topic = broker.topics.get(subscribe.topic)
        refusal = "too many topics" if topic is None else ""
        if broker.subscription_count() >= SUBSCRIPTIONS_MAX:
            refusal = "too many subscriptions"
        if broker.settings.offline_us and broker.refusal:
            refusal = broker.refusal
        if topic is None or refusal:
            stream.error(subscribe, session.SERVER_ERROR, refusal)
            return
        self._output.collect()  # what was given to the subscription that this one replaces
        given = broker.followers.follow(stream, topic, subscribe.public_key, now_us)
        stream.subscribed_id = given
        stream.last_id = max(stream.last_id, given)
        self._output.reply_after(Answer(given, messages.ack(subscribe.id), subscribe.id))

    def unsubscribe(self, unsubscribe: messages.Unsubscribe) -> None:
        """Stop pushing a topic's messages; the Ack waits for the commit of that."""
        stream = self._stream
        self._output.collect()
        topic = self._broker.topics.find(unsubscribe.topic)
        if topic is not None:
            given = self._broker.followers.unfollow(stream, topic)
            stream.last_id = max(stream.last_id, given)
            self._output.delivering.forget(unsubscribe.topic)
        self._output.reply_after(WaitingReply(stream.last_id, messages.ack(unsubscribe.id)))

    def end_all(self, now_us: int) -> None:
        """End every subscription of the stream, after what was given to them is collected."""
        self._output.collect()
        self._broker.detach(self._stream, now_us)
