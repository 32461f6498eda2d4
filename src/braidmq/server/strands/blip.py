"""A Blip connection: joins a Blip session to the broker, one verb each.

Turns, waiting replies and output are any strand's and in connection.py; bytes and their order
are the session's.
"""

from collections import deque
from typing import Final, final

from librt.strings import BytesWriter

from braidmq.broker import admission
from braidmq.broker import broker as verbs
from braidmq.broker.authorize import PUBLISH, SUBSCRIBE, authorize
from braidmq.broker.delivery.subscriptions import SUBSCRIPTIONS_MAX, Consumer
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.connection import WAITING_REPLIES_MAX, Connection, WaitingReply
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.wire.blip import frames, messages, session
from braidmq.wire.errors import WireError

TOPICS_REMEMBERED_MAX: Final = 1024
"""Topics whose permission was looked up, per connection."""

REFUSAL_TEXT_MAX: Final = 200
"""A reason in a NACK is one short line."""

DURABLE_PUBLISH_FAILED: Final = "durable publish failed"
PUBLISH_FAILED: Final = "publish failed"
SUBSCRIBE_FAILED: Final = "subscribe failed"
"""What a NACK 500 says before its reason."""


@final
class BlipConnection(Connection):
    """One Blip connection."""

    def __init__(self, host: Host, wire: Wire, limits: Limits) -> None:
        super().__init__(host, wire, limits)
        self._session = session.Session()
        self._held: session.Command | None = None
        self._topics: dict[str, Topic] = {}
        self._subscribe_id: int = 0  # its newest subscription
        self._acknowledged: bool = False  # since the last barrier
        self._paid: bool = False  # the held PUBLISH has its token

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self._session.state == session.AUTHENTICATED

    # What the transport and the host say.

    def lost(self) -> None:
        """Give back what the peer was holding: it is gone."""
        self._held = None
        super().lost()

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into NACKs.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        kept: deque[WaitingReply] = deque()
        at = 0
        for reply in self._replies:
            while at < len(refused) and refused[at].id <= reply.after_id:
                kept.append(self._late_refusal(refused[at], reason))
                at += 1
            if reply.after_id < from_id:
                kept.append(reply)
            elif reply.subscribe_correlation_id >= 0:
                nack = self._refusal(reply.subscribe_correlation_id, SUBSCRIBE_FAILED, reason)
                kept.append(WaitingReply(0, nack))
            else:
                kept.append(WaitingReply(again_id, reply.data))
        for message in refused[at:]:
            kept.append(self._late_refusal(message, reason))
        self._replies = kept
        if self._last_id >= from_id:
            self._last_id = again_id
        if self._subscribe_id >= from_id:
            self._subscribe_id = 0
        self._note_waiting()

    # The turn.

    def _take_in(self, data: bytes) -> None:
        self._session.receive_data(data)

    def _handle(self, now_us: int) -> None:
        while self._writable:
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
        # Blip has no words for it: nothing behind it can be read, all before it is answered.
        del error
        self._ending = True

    def _is_blocked(self) -> bool:
        return self._held is not None

    def _held_bytes(self) -> int:
        return self._session.held_bytes

    def _execute(self, command: session.Command, now_us: int) -> bool:
        kind = command.kind
        replies = self._replies
        if replies and len(replies) >= WAITING_REPLIES_MAX:
            return False
        if kind == frames.PUBLISH:
            if self._rate:
                return self._publish_at_rate(self._session.publish, now_us)
            return self._publish(self._session.publish, now_us)
        if kind == frames.ACK:
            return self._acknowledge(self._session.on_subscription, now_us)
        if kind == frames.POLL and not replies:
            return self._poll(self._session.on_subscription, now_us)
        if kind == 0:
            assert isinstance(command, session.Reply)
            self._reply(command.data)
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
            stats = self._host.connection_stats()
            self._reply(messages.encode_stats(command.correlation_id, stats))
        else:
            assert isinstance(command, session.Authenticate)
            self._authenticate(command)

    # One verb each.

    def _authenticate(self, command: session.Authenticate) -> None:
        principal = self._host.find_principal(command.key)
        if principal is None:
            self._host.authentication_failures["blip"] += 1
            reply, is_last = self._session.authentication_refused(command.correlation_id)
            self._reply(reply)
            if is_last:
                self._end_now()
            return
        self.principal = principal
        self._wire.greeted()
        self._reply(self._session.authenticated(command.correlation_id))

    def _end_now(self) -> None:
        # What follows in the buffer is not looked at any more.
        self._session = session.Session()
        self._ending = True

    def _publish_at_rate(self, command: session.Publish, now_us: int) -> bool:
        if not self._paid and not self._take_token(now_us):
            return False
        self._paid = not self._publish(command, now_us)
        return not self._paid

    def _publish(self, command: session.Publish, now_us: int) -> bool:
        topic = self._topics.get(command.topic)
        if topic is None:
            topic = self._learn_topic(command)
            if topic is None:
                return True
        broker = self._broker
        qos = command.qos
        message = Message(topic, qos, command.body)
        if self._subscribe_id > broker.committed_id and not admission.needs_record(message):
            return False  # it would miss the subscription before it
        if qos != 0:
            message.publisher = self
            message.correlation_id = command.correlation_id
        verdict = self._admission.judge(message, "", now_us)
        if verdict != admission.GO:
            return self._publish_otherwise(verdict, message, command.correlation_id, now_us)
        given = broker.publish(message, now_us)
        if given:
            self._last_id = given
        return True

    def _publish_otherwise(
        self, verdict: int, message: Message, correlation_id: int, now_us: int
    ) -> bool:
        """Do as the admission says; say whether the command is done with."""
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
                self._last_id = letter.id
        elif verdict == admission.FULL:
            self._nack(correlation_id, session.SERVER_ERROR, admission.QUEUE_FULL)
        else:
            assert verdict == admission.REFUSED
            reason = self._admission.reason
            self._reply(self._refusal(correlation_id, DURABLE_PUBLISH_FAILED, reason))
        return True

    def _learn_topic(self, command: session.Publish) -> Topic | None:
        assert self.principal is not None
        if not authorize(self.principal, PUBLISH, command.topic):
            self._nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            return None
        topic = self._broker.topics.get(command.topic)
        if topic is None:
            refusal = self._refusal(command.correlation_id, PUBLISH_FAILED, "too many topics")
            self._reply(refusal)
            return None
        if len(self._topics) >= TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[topic.name] = topic  # not the peer's own copy of the name
        return topic

    def _acknowledge(self, command: session.OnSubscription, now_us: int) -> bool:
        consumer = self._consumer(command)
        if consumer is None:
            return True
        outcome = self._broker.acknowledge(consumer, command.correlation_id, now_us)
        if outcome == verbs.UNKNOWN:
            self._not_found(command)
        elif outcome == verbs.WAIT:
            return False
        else:
            self._acknowledged = True
        return True

    def _poll(self, command: session.OnSubscription, now_us: int) -> bool:
        consumer = self._consumer(command)
        if consumer is None:
            return True
        outcome = self._broker.poll(consumer, command.correlation_id, now_us)
        if outcome == verbs.WAIT:
            return False
        if self.room_bytes <= 0:
            self._flush()  # and look whether the peer takes it
        return True

    def _credit(self, command: session.OnSubscription, now_us: int) -> None:
        consumer = self._consumer(command)
        if consumer is not None and not self._input_finished:
            self._broker.credit(consumer, command.count, command.correlation_id, now_us)

    def _subscribe(self, command: session.Subscribe, now_us: int) -> None:
        assert self.principal is not None
        if not authorize(self.principal, SUBSCRIBE, command.topic):
            self._nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            return
        topic = self._broker.topics.get(command.topic)
        refusal = "too many topics" if topic is None else self._broker.refusal
        if self._broker.subscription_count() >= SUBSCRIPTIONS_MAX:
            refusal = "too many subscriptions"
        if topic is None or refusal:
            self._reply(self._refusal(command.correlation_id, SUBSCRIBE_FAILED, refusal))
            return
        given = self._broker.subscribe(self, topic, command.qos, now_us)
        self._subscribe_id = given
        ack = messages.encode_ack(command.correlation_id, given)
        self._reply_after(WaitingReply(given, ack, command.correlation_id))

    def _unsubscribe(self, command: session.OnSubscription) -> None:
        consumer = self._consumer(command)
        if consumer is None:
            return
        self._last_id = self._broker.unsubscribe(consumer)
        del self.consumers[command.subscription_id]
        ack = messages.encode_ack(command.correlation_id, command.subscription_id)
        self._reply_after(WaitingReply(self._last_id, ack))

    def _ping(self, correlation_id: int) -> None:
        if self._acknowledged:
            self._acknowledged = False
            self._last_id = self._broker.barrier()
        pong = frames.encode(frames.PONG, correlation_id)
        self._reply_after(WaitingReply(self._last_id, pong))

    def _consumer(self, command: session.OnSubscription) -> Consumer | None:
        """Return the hold on the subscription; refuse the command when there is none."""
        consumer = self.consumers.get(command.subscription_id)
        if consumer is not None:
            if not consumer.subscription.ended:
                return consumer
            del self.consumers[command.subscription_id]
        consumer = self._broker.subscriptions.attach(self, command.subscription_id)
        if consumer is None:
            self._not_found(command)
        return consumer

    # Output.

    def _not_found(self, command: session.Command) -> None:
        self._nack(
            command.correlation_id, session.NOT_FOUND, "unknown subscription or delivery tag"
        )

    def _nack(self, correlation_id: int, code: int, text: str) -> None:
        self._reply(messages.encode_nack(correlation_id, code, text))

    def _late_refusal(self, message: Message, reason: str) -> WaitingReply:
        nack = self._refusal(message.correlation_id, DURABLE_PUBLISH_FAILED, reason)
        return WaitingReply(0, nack)

    def _refusal(self, correlation_id: int, what: str, reason: str) -> bytes:
        text = f"{what}: {reason}"[:REFUSAL_TEXT_MAX]
        return messages.encode_nack(correlation_id, session.SERVER_ERROR, text)

    def _collect(self) -> None:
        deliveries = self.deliveries
        if deliveries:
            out = BytesWriter()
            for delivery in deliveries:
                messages.write_delivery(
                    out, delivery.correlation_id, delivery.qos, delivery.message.body
                )
            self._out.append(out.getvalue())
            self.deliveries = []
