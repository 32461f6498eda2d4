"""The Blip strand: executes the commands of a Blip session.

    BlipOutput       deliveries as PUBLISH frames, refusals as NACKs
    BlipConnection   a method for each command

Turns and waiting are the same for every strand (`engine.connection`); the session knows the
bytes and their order.
"""

from typing import TYPE_CHECKING, Final, final

from librt.strings import BytesWriter

from braidmq.base import refusals
from braidmq.broker import admission
from braidmq.broker.authorize import PUBLISH, SUBSCRIBE, authorize
from braidmq.broker.broker import UNKNOWN, WAIT
from braidmq.broker.delivery.subscriptions import Consumer
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.connection import (
    TOPICS_REMEMBERED_MAX,
    WAITING_REPLIES_MAX,
    Connection,
    Limits,
    Output,
    WaitingReply,
    Wire,
)
from braidmq.server.engine.rates import TokenBucket
from braidmq.wire.blip import frames, messages, session
from braidmq.wire.errors import WireError

if TYPE_CHECKING:
    from braidmq.server.engine.engine import Engine

UNFINISHED_FRAME: Final = "frame refused"
REFUSAL_TEXT_MAX: Final = 200
"""Characters of the text in a NACK, which is one short line."""

DURABLE_PUBLISH_FAILED: Final = "durable publish failed"
PUBLISH_FAILED: Final = "publish failed"
SUBSCRIBE_FAILED: Final = "subscribe failed"
"""What a NACK 500 says before its reason."""

UNKNOWN_SUBSCRIPTION: Final = "unknown subscription or delivery tag"
"""What a NACK 404 says."""


@final
class SubscribeReply(WaitingReply):
    """The ACK of a SUBSCRIBE, which the log may still refuse."""

    def __init__(self, after_id: int, data: bytes, correlation_id: int) -> None:
        super().__init__(after_id, data)
        self.correlation_id: int = correlation_id


@final
class BlipOutput(Output):
    """What leaves one Blip connection."""

    def frame_refusal(self, text: str) -> bytes:
        """Return the NACK of an unfinished frame, without a correlation id."""
        return _refusal(0, UNFINISHED_FRAME, text)

    def collect(self) -> None:
        """Turn the deliveries into bytes and append them to the output."""
        deliveries = self.connection.deliveries
        if deliveries:
            out = BytesWriter()
            for delivery in deliveries:
                messages.write_delivery(
                    out, delivery.correlation_id, delivery.qos, delivery.message.body
                )
            self.pieces.append(out.getvalue())
            self.connection.deliveries = []

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into NACKs.

        A publish has no reply of its own. Its NACK goes where a reply would have been: before
        the first reply that waits for its id or a later one.
        """
        kept: list[WaitingReply] = []
        at = 0
        for reply in self.replies:
            while at < len(refused) and refused[at].id <= reply.after_id:
                kept.append(_late_refusal(refused[at], reason))
                at += 1
            if reply.after_id < from_id:
                kept.append(reply)
            else:
                kept.append(self.refused_reply(reply, again_id, reason))
        kept.extend(_late_refusal(message, reason) for message in refused[at:])
        self.replace_replies(kept)

    def refusal_of(self, reply: WaitingReply, reason: str) -> bytes:
        """Return the NACK in place of a SUBSCRIBE's ACK; other replies wait for longer."""
        if isinstance(reply, SubscribeReply):
            return _refusal(reply.correlation_id, SUBSCRIBE_FAILED, reason)
        return b""


@final
class BlipConnection(Connection):
    """One Blip connection."""

    def __init__(self, engine: "Engine", wire: Wire, limits: Limits) -> None:
        super().__init__(engine, wire, limits, BlipOutput(engine, wire, limits))
        self._session = session.Session()
        self._held: session.Command | None = None
        self._topic_name: str = ""  # the very string by which a PUBLISH named `known_topic`
        self._paid: bool = False  # the held PUBLISH has its token
        self._acknowledged: bool = False  # since the last barrier

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self._session.state == session.AUTHENTICATED

    def lost(self) -> None:
        """Give back what the peer held: its connection is lost."""
        self._held = None
        super().lost()

    def permissions_changed(self) -> None:
        """Forget the topics that were allowed, and leave subscriptions that no longer are.

        A consumer with credit waits for nothing else, so it is told, as if by its CREDIT.
        """
        self.known_topics.clear()
        self.known_topic = None
        self._topic_name = ""
        assert self.principal is not None
        for subscription_id, consumer in list(self.consumers.items()):
            subscription = consumer.subscription
            if authorize(self.principal, SUBSCRIBE, subscription.topic.name):
                continue
            del self.consumers[subscription_id]
            if consumer.credit > 0:
                nack = messages.encode_nack(
                    consumer.correlation_id, session.NOT_FOUND, UNKNOWN_SUBSCRIPTION
                )
                self.output.reply(nack)
            if not subscription.ended:
                self._broker.subscriptions.leave(consumer, self._engine.now_us())
        self.output.flush()

    # The turn.

    def _take_in(self, data: bytes) -> None:
        self._session.receive_data(data)

    def _handle(self, now_us: int) -> None:
        while self.writable:
            command = self._held
            if command is None:
                command = self._session.next_command()
                if command is None:
                    break
            else:
                self._held = None
            if not self._execute(command, now_us):
                self._held = command
                break

    def _lost_framing(self, error: WireError) -> None:
        # Blip has no frame to say so. What came before is answered; the rest cannot be read.
        del error
        self._ending = True

    def _is_blocked(self) -> bool:
        return self._held is not None

    def _held_bytes(self) -> int:
        held = self._held
        if held is None or held.kind != frames.PUBLISH:
            return self._session.held_bytes
        return self._session.held_bytes + len(self._session.publish.body)

    def _execute(self, command: session.Command, now_us: int) -> bool:
        kind = command.kind
        replies = self._replies
        if replies and len(replies) >= WAITING_REPLIES_MAX:
            return False
        # The session reuses one object for each of the frequent commands. It is still filled
        # when a held command is executed again: the session reads on only after that.
        if kind == frames.PUBLISH:
            tokens = self._tokens
            if tokens is not None:
                return self._publish_at_rate(self._session.publish, tokens, now_us)
            return self._publish(self._session.publish, now_us)
        if kind == frames.ACK:
            return self._acknowledge(self._session.on_subscription, now_us)
        if kind == frames.POLL and not replies:
            return self._poll(self._session.on_subscription, now_us)
        if kind == 0:
            assert isinstance(command, session.Reply)
            self.output.reply(command.data)
            return True
        if kind == frames.PING:
            self._ping(command.correlation_id)
            return True
        if replies:
            return False  # while a reply waits, only PUBLISH, ACK and PING go on
        self._execute_in_turn(command, now_us)
        return True

    def _execute_in_turn(self, command: session.Command, now_us: int) -> None:
        kind = command.kind
        if kind == frames.CREDIT:
            self._credit(self._session.on_subscription, now_us)
        elif kind == frames.SUBSCRIBE:
            assert isinstance(command, session.Subscribe)
            self._subscribe(command, now_us)
        elif kind == frames.UNSUBSCRIBE:
            self._unsubscribe(self._session.on_subscription)
        elif kind == frames.STATS:
            self._stats(command.correlation_id)
        else:
            assert isinstance(command, session.Authenticate)
            self._authenticate(command)

    # The commands.

    def _authenticate(self, command: session.Authenticate) -> None:
        principal = self._engine.find_principal(command.key)
        if principal is None:
            self._engine.authentication_failures["blip"] += 1
            reply, is_last = self._session.authentication_refused(command.correlation_id)
            self.output.reply(reply)
            if is_last:
                self._session = session.Session()  # drops what has arrived after this AUTH
                self._ending = True
            return
        if not self._wire.greeted(principal.name):
            self.output.reply(
                messages.encode_nack(
                    command.correlation_id,
                    session.SERVER_ERROR,
                    refusals.TOO_MANY_CONNECTIONS,
                )
            )
            self._session = session.Session()
            self._ending = True
            return
        self.principal = principal
        self.output.reply(self._session.authenticated(command.correlation_id))

    # Blip's PUBLISH has no reply of its own, so a publisher above its rate waits.
    def _publish_at_rate(
        self, command: session.Publish, tokens: TokenBucket, now_us: int
    ) -> bool:
        if not self._paid and not tokens.take(now_us):
            if not self._will_wake:
                self._will_wake = True
                self._engine.wake_later(self, tokens.missing_us())
            return False
        self._paid = not self._publish(command, now_us)
        return not self._paid

    def _publish(self, command: session.Publish, now_us: int) -> bool:
        topic = self.known_topic
        # The session gives a topic the same string each time: most publishers need no lookup.
        if topic is None or command.topic is not self._topic_name:
            topic = self.known_topics.get(command.topic)
            if topic is None:
                topic = self._learn_topic(command)
                if topic is None:
                    return True
            self.known_topic = topic
            self._topic_name = command.topic
        broker = self._broker
        qos = command.qos
        message = Message(topic, qos, command.body)
        if self.subscribed_id > broker.committed_id and not admission.needs_record(message):
            return False  # it would overtake the SUBSCRIBE before it, and be missed
        if qos == 0 and topic.queue is None:
            broker.publish(message, now_us)  # `judge` lets all of these go; spare the call
            return True
        if qos != 0:
            # For the NACK, if the log refuses the record later: see `BlipOutput.refuse`.
            message.publisher = self
            message.correlation_id = command.correlation_id
        verdict = self._admission.judge(message, "", now_us)
        if verdict != admission.GO:
            return self._publish_otherwise(verdict, message, command.correlation_id, now_us)
        record_id = broker.publish(message, now_us)
        if record_id:
            self.last_id = record_id
        return True

    def _publish_otherwise(
        self, verdict: int, message: Message, correlation_id: int, now_us: int
    ) -> bool:
        """Act on any verdict but GO; return whether the command is done."""
        if verdict == admission.WAIT:
            assert message.topic.queue is not None
            self._park(message.topic.queue)
            return False
        if verdict == admission.STARVED:
            self._starve()
            return False
        if verdict == admission.REDIRECT:
            letter = self._broker.accept(verdict, message, "", now_us)
            if letter.id:
                letter.publisher = self
                letter.correlation_id = correlation_id
                self.last_id = letter.id
        elif verdict == admission.FULL:
            self.output.reply(
                messages.encode_nack(correlation_id, session.SERVER_ERROR, admission.QUEUE_FULL)
            )
        else:
            assert verdict == admission.REFUSED
            reason = self._admission.reason
            self.output.reply(_refusal(correlation_id, DURABLE_PUBLISH_FAILED, reason))
        return True

    def _learn_topic(self, command: session.Publish) -> Topic | None:
        assert self.principal is not None
        if not authorize(self.principal, PUBLISH, command.topic):
            self.output.reply(
                messages.encode_nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            )
            return None
        topics = self._broker.topics
        topic = topics.open(command.topic, self.principal)
        if topic is None:
            why = topics.refusal
            self.output.reply(_refusal(command.correlation_id, PUBLISH_FAILED, why))
            return None
        if len(self.known_topics) >= TOPICS_REMEMBERED_MAX:
            self.known_topics.clear()
        self.known_topics[topic.name] = topic  # keyed by the topic's own string, not by a copy
        return topic

    # Consuming. A command names its subscription by id; the first one makes the connection a
    # consumer of it, later ones find that consumer again.

    def _acknowledge(self, command: session.OnSubscription, now_us: int) -> bool:
        """Settle a delivery; return False while the log has to be asked about it."""
        # As `_consumer`, without the call: ACK and POLL come once per message.
        consumer = self.consumers.get(command.subscription_id)
        if consumer is None or consumer.subscription.ended:
            consumer = self._consumer(command)
            if consumer is None:
                return True
        outcome = self._broker.acknowledge(consumer, command.correlation_id, now_us)
        if outcome == UNKNOWN:
            self._not_found(command)
        elif outcome == WAIT:
            return False
        else:
            self._acknowledged = True
        return True

    def _poll(self, command: session.OnSubscription, now_us: int) -> bool:
        """Hand out one message, if there is one; return False while it is read back."""
        consumer = self.consumers.get(command.subscription_id)
        if consumer is None or consumer.subscription.ended:
            consumer = self._consumer(command)
            if consumer is None:
                return True
        outcome = self._broker.poll(consumer, command.correlation_id, now_us)
        if outcome == WAIT:
            return False
        # A POLL is answered even without room, as the peer has asked for it. Then flush, to
        # learn whether the peer is reading before more commands are executed.
        if self.room_bytes <= 0:
            self.output.flush()
        return True

    def _credit(self, command: session.OnSubscription, now_us: int) -> None:
        """Grant credit for pushed messages; a peer that has finished sending gets none."""
        consumer = self._consumer(command)
        if consumer is not None and not self.input_finished:
            self._broker.credit(consumer, command.count, command.correlation_id, now_us)

    def _subscribe(self, command: session.Subscribe, now_us: int) -> None:
        """Make a subscription, or refuse it."""
        broker = self._broker
        assert self.principal is not None
        if not authorize(self.principal, SUBSCRIBE, command.topic):
            nack = messages.encode_nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            self.output.reply(nack)
            return
        reason = (
            broker.subscriptions.refusal(self.principal, broker.subscription_count())
            or broker.refusal
        )
        topic = None if reason else broker.topics.open(command.topic, self.principal)
        if topic is None:
            reason = reason or broker.topics.refusal
            self.output.reply(_refusal(command.correlation_id, SUBSCRIBE_FAILED, reason))
            return
        record_id = broker.subscribe(self, topic, command.qos, now_us)
        self.subscribed_id = record_id  # see `_publish`: QoS 0 must not overtake this
        ack = messages.encode_ack(command.correlation_id, record_id)
        self.output.reply_after(SubscribeReply(record_id, ack, command.correlation_id))

    def _unsubscribe(self, command: session.OnSubscription) -> None:
        """End a subscription; the ACK waits for the commit."""
        consumer = self._consumer(command)
        if consumer is None:
            return
        self.last_id = self._broker.unsubscribe(consumer)
        del self.consumers[command.subscription_id]
        ack = messages.encode_ack(command.correlation_id, command.subscription_id)
        self.output.reply_after(WaitingReply(self.last_id, ack))

    def _consumer(self, command: session.OnSubscription) -> Consumer | None:
        """Return the connection's consumer, made on first use; refuse an unknown id."""
        consumer = self.consumers.get(command.subscription_id)
        if consumer is not None:
            if not consumer.subscription.ended:
                return consumer
            del self.consumers[command.subscription_id]  # ended meanwhile: its lease was over
        consumer = self._broker.subscriptions.attach(self, command.subscription_id)
        if consumer is None:
            self._not_found(command)
        return consumer

    def _not_found(self, command: session.Command) -> None:
        nack = messages.encode_nack(
            command.correlation_id, session.NOT_FOUND, UNKNOWN_SUBSCRIPTION
        )
        self.output.reply(nack)

    # The fence, and numbers.

    def _ping(self, correlation_id: int) -> None:
        # Acknowledgements become records in batches; the fence is what asks for one now.
        if self._acknowledged:
            self._acknowledged = False
            self.last_id = self._broker.barrier()
        pong = frames.encode(frames.PONG, correlation_id)
        self.output.reply_after(WaitingReply(self.last_id, pong))

    def _stats(self, correlation_id: int) -> None:
        broker = self._broker
        stats = messages.Stats(
            len(broker.topics),
            broker.subscription_count(),
            broker.stats.published,
            broker.stats.delivered,
            broker.in_flight_count(),
        )
        self.output.reply(messages.encode_stats(correlation_id, stats))


def _refusal(correlation_id: int, what: str, reason: str) -> bytes:
    """Return a NACK 500 that says what failed, and why."""
    text = f"{what}: {reason}"[:REFUSAL_TEXT_MAX]
    return messages.encode_nack(correlation_id, session.SERVER_ERROR, text)


def _late_refusal(message: Message, reason: str) -> WaitingReply:
    return WaitingReply(0, _refusal(message.correlation_id, DURABLE_PUBLISH_FAILED, reason))
