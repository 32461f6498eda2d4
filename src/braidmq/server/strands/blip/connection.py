"""A Blip connection: executes the commands of a Blip session, and publishes.

Turns and waiting are the same for every strand (`engine.connection`); the session knows the
bytes and their order. Subscriptions are in `consuming`, what leaves the connection in `output`.
"""

from typing import Final, final

from braidmq.broker import admission
from braidmq.broker.authorize import PUBLISH, authorize
from braidmq.broker.topics import Message, Topic
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.host import Host, Limits, Wire
from braidmq.server.engine.output import WAITING_REPLIES_MAX, WaitingReply
from braidmq.server.engine.tokens import TokenBucket
from braidmq.server.strands.blip.consuming import Consuming
from braidmq.server.strands.blip.output import (
    DURABLE_PUBLISH_FAILED,
    PUBLISH_FAILED,
    BlipOutput,
    refusal,
)
from braidmq.wire.blip import frames, messages, session
from braidmq.wire.errors import WireError

TOPICS_REMEMBERED_MAX: Final = 1024
"""Topics whose permission was looked up, per connection."""


@final
class BlipConnection(Connection):
    """One Blip connection."""

    def __init__(self, host: Host, wire: Wire, limits: Limits) -> None:
        super().__init__(host, wire, limits, BlipOutput(host, wire, limits))
        self._session = session.Session()
        self._consuming: Consuming = Consuming(self, host.broker)
        self._held: session.Command | None = None
        self._topics: dict[str, Topic] = {}
        self._paid: bool = False  # the held PUBLISH has its token

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self._session.state == session.AUTHENTICATED

    # What the transport and the host say.

    def lost(self) -> None:
        """Give back what the peer held: its connection is lost."""
        self._held = None
        super().lost()

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
        # Blip has no frame that says so: nothing behind it can be read, all before is answered.
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
            tokens = self._tokens
            if tokens is not None:
                return self._publish_at_rate(self._session.publish, tokens, now_us)
            return self._publish(self._session.publish, now_us)
        if kind == frames.ACK:
            return self._consuming.acknowledge(self._session.on_subscription, now_us)
        if kind == frames.POLL and not replies:
            return self._consuming.poll(self._session.on_subscription, now_us)
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
            self._consuming.credit(self._session.on_subscription, now_us)
        elif kind == frames.SUBSCRIBE:
            assert isinstance(command, session.Subscribe)
            self._consuming.subscribe(command, now_us)
        elif kind == frames.UNSUBSCRIBE:
            self._consuming.unsubscribe(self._session.on_subscription)
        elif kind == frames.STATS:
            stats = self._host.connection_stats()
            self.output.reply(messages.encode_stats(command.correlation_id, stats))
        else:
            assert isinstance(command, session.Authenticate)
            self._authenticate(command)

    # One verb each.

    def _authenticate(self, command: session.Authenticate) -> None:
        principal = self._host.find_principal(command.key)
        if principal is None:
            self._host.authentication_failures["blip"] += 1
            reply, is_last = self._session.authentication_refused(command.correlation_id)
            self.output.reply(reply)
            if is_last:
                self._end_now()
            return
        self.principal = principal
        self._wire.greeted()
        self.output.reply(self._session.authenticated(command.correlation_id))

    def _end_now(self) -> None:
        # The bytes that follow in the buffer are dropped with their session.
        self._session = session.Session()
        self._ending = True

    def _publish_at_rate(
        self, command: session.Publish, tokens: TokenBucket, now_us: int
    ) -> bool:
        if not self._paid and not tokens.take(now_us):
            if not self._will_wake:
                self._will_wake = True
                self._host.wake_later(self, tokens.missing_us())
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
        if self.subscribed_id > broker.committed_id and not admission.needs_record(message):
            return False  # it would miss the subscription before it
        if qos != 0:
            message.publisher = self
            message.correlation_id = command.correlation_id
        verdict = self._admission.judge(message, "", now_us)
        if verdict != admission.GO:
            return self._publish_otherwise(verdict, message, command.correlation_id, now_us)
        given = broker.publish(message, now_us)
        if given:
            self.last_id = given
        return True

    def _publish_otherwise(
        self, verdict: int, message: Message, correlation_id: int, now_us: int
    ) -> bool:
        """Do as the admission says; return whether the command is done."""
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
            self.output.reply(refusal(correlation_id, DURABLE_PUBLISH_FAILED, reason))
        return True

    def _learn_topic(self, command: session.Publish) -> Topic | None:
        assert self.principal is not None
        if not authorize(self.principal, PUBLISH, command.topic):
            self.output.reply(
                messages.encode_nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            )
            return None
        topic = self._broker.topics.get(command.topic)
        if topic is None:
            why = "too many topics"
            self.output.reply(refusal(command.correlation_id, PUBLISH_FAILED, why))
            return None
        if len(self._topics) >= TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[topic.name] = topic  # not the peer's own copy of the name
        return topic

    def _ping(self, correlation_id: int) -> None:
        if self._consuming.acknowledged:
            self._consuming.acknowledged = False
            self.last_id = self._broker.barrier()
        pong = frames.encode(frames.PONG, correlation_id)
        self.output.reply_after(WaitingReply(self.last_id, pong))
