"""A connection: joins a Blip session to the broker.

One call of :meth:`Connection.receive` handles every frame that is in, and answers with one
write. A command that cannot be answered yet is held, and everything behind it with it; what
wakes it is named in :meth:`Connection.wake`. Replies leave in the order of their requests: one
that waits for a commit keeps the later ones behind it.
"""

from collections import deque
from typing import Final

from librt.strings import BytesWriter

from braidmq.broker import broker as verbs
from braidmq.broker.authorize import PUBLISH, SUBSCRIBE, authorize
from braidmq.broker.broker import Broker
from braidmq.broker.subscriptions import SUBSCRIPTIONS_MAX, Consumer, Peer
from braidmq.broker.topics import Message, Topic
from braidmq.server.host import Host, Limits, Wire
from braidmq.wire.blip import frames, messages, session
from braidmq.wire.errors import WireError

READ_AHEAD_BYTES: Final = 256 * 1024
"""What a connection that waits may have unhandled before it is no longer read from."""

TOPICS_REMEMBERED_MAX: Final = 1024
"""Topics whose permission was looked up, per connection."""

WAITING_REPLIES_MAX: Final = 16_384
"""Replies that may wait for a commit; above it the connection's frames wait as well."""

REFUSAL_TEXT_MAX: Final = 200
"""A reason in a NACK is one short line."""


class WaitingReply:
    """A reply that leaves once an id is committed; a SUBSCRIBE's can still be refused."""

    def __init__(self, after_id: int, data: bytes, subscribe_correlation_id: int = -1) -> None:
        self.after_id: int = after_id
        self.data: bytes = data
        self.subscribe_correlation_id: int = subscribe_correlation_id


class Connection(Peer):
    """One Blip connection."""

    def __init__(self, host: Host, wire: Wire, limits: Limits) -> None:
        super().__init__()
        self._host: Host = host
        self._broker: Broker = host.broker
        self._wire: Wire = wire
        self._limits: Limits = limits
        self._rate: int = limits.messages_per_s
        self._session = session.Session()
        self._out: list[bytes] = []
        self._replies: deque[WaitingReply] = deque()
        self._held: session.Command | None = None
        self._topics: dict[str, Topic] = {}
        self._last_id: int = 0  # the newest record that this connection caused
        self._subscribe_id: int = 0  # its newest subscription
        self._acknowledged: bool = False  # since the last fence
        self._starving: bool = False
        self._is_waiting: bool = False  # is in the host's list
        self._ending: bool = False  # close when everything is answered
        self._closed: bool = False
        self._reading: bool = True
        self._writable: bool = True
        self._tokens: float = float(limits.messages_per_s)
        self._tokens_us: int = 0
        self._paid: bool = False  # the held PUBLISH has its token
        self._will_wake: bool = False  # a timer for the next token runs
        self._input_finished: bool = False
        self.room_bytes = limits.output_buffer_bytes

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer has proven who it is."""
        return self._session.state == session.AUTHENTICATED

    # What the transport says.

    def receive(self, data: bytes) -> None:
        """Handle bytes of the peer."""
        if self._ending or self._closed:
            return
        self._session.receive_data(data)
        if self._held is not None:
            self._after_run()  # whatever the held command waits for will wake us
            return
        self._run()
        self._host.end_turn()

    def finish_input(self) -> None:
        """Answer everything, then close: the peer sends no more."""
        self._input_finished = True
        self._broker.stop_pushing(self)
        self._ending_after_input()
        self._host.end_turn()

    def set_writable(self, writable: bool) -> None:  # noqa: FBT001 - the transport's own word
        """Note whether the output buffer has room."""
        self._writable = writable
        if writable and not self._closed:
            self.room_bytes = self._limits.output_buffer_bytes
            self._broker.resume(self, self._host.now_us())
            self.wake()
            self._host.end_turn()
        elif not writable:
            self.room_bytes = 0

    def lost(self) -> None:
        """Give back what the peer was holding: it is gone."""
        self._closed = True
        self._held = None
        self._replies.clear()
        self._broker.detach(self, self._host.now_us())
        self._host.end_turn()

    # What the host says.

    def wake(self) -> None:
        """Go on: a commit, a read, room, or time has come."""
        if self._closed:
            return
        self._send_committed()
        self._run()

    def refuse(self, from_id: int, refused: list[Message], again_id: int, reason: str) -> None:
        """Turn the answers to what the log refused, from *from_id* on, into NACKs.

        Replies that wait for acknowledgements wait for *again_id* instead.
        """
        kept: deque[WaitingReply] = deque()
        at = 0
        for reply in self._replies:
            while at < len(refused) and refused[at].id <= reply.after_id:
                kept.append(WaitingReply(0, self._refusal(refused[at].correlation_id, reason)))
                at += 1
            if reply.after_id < from_id:
                kept.append(reply)
            elif reply.subscribe_correlation_id >= 0:
                nack = self._refusal(reply.subscribe_correlation_id, reason)
                kept.append(WaitingReply(0, nack))
            else:
                kept.append(WaitingReply(again_id, reply.data))
        for message in refused[at:]:
            kept.append(WaitingReply(0, self._refusal(message.correlation_id, reason)))
        self._replies = kept
        if self._last_id >= from_id:
            self._last_id = again_id
        if self._subscribe_id >= from_id:
            self._subscribe_id = 0
        self._note_waiting()

    # The turn.

    def _run(self) -> None:
        now_us = self._host.now_us()
        try:
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
        except WireError:
            # Framing is lost: nothing behind it can be read, all before it is answered.
            self._ending = True
        self._flush()
        self._after_run()

    def _after_run(self) -> None:
        blocked = self._held is not None or not self._writable
        if blocked:
            if self._reading and self._session.held_bytes > READ_AHEAD_BYTES:
                self._reading = False
                self._wire.pause_reading()
        elif not self._reading:
            self._reading = True
            self._wire.resume_reading()
        if self._ending and not blocked and not self._closed and not self._replies:
            self._closed = True
            self._wire.close()

    def _ending_after_input(self) -> None:
        self._run()
        self._ending = True
        self._after_run()

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
        if command.qos == 0:
            if self._subscribe_id > broker.committed_id:
                return False  # it would miss the subscription before it
            broker.publish(Message(topic, 0, command.body), now_us)
            return True
        if broker.refusal:
            broker.stats.refused += 1
            self._reply(self._refusal(command.correlation_id, broker.refusal))
            return True
        if broker.outgoing.bytes >= self._host.uncommitted_bytes_max:
            self._starve()
            return False
        message = Message(topic, 1, command.body)
        message.publisher = self
        message.correlation_id = command.correlation_id
        self._last_id = broker.publish(message, now_us)
        return True

    def _learn_topic(self, command: session.Publish) -> Topic | None:
        assert self.principal is not None
        if not authorize(self.principal, PUBLISH, command.topic):
            self._nack(command.correlation_id, session.FORBIDDEN, "forbidden")
            return None
        topic = self._broker.topics.get(command.topic)
        if topic is None:
            self._reply(self._refusal(command.correlation_id, "too many topics"))
            return None
        if len(self._topics) >= TOPICS_REMEMBERED_MAX:
            self._topics.clear()
        self._topics[command.topic] = topic
        return topic

    def _take_token(self, now_us: int) -> bool:
        rate = self._rate
        earned = (now_us - self._tokens_us) * rate / 1_000_000
        self._tokens = min(float(rate), self._tokens + earned)
        self._tokens_us = now_us
        if self._tokens < 1.0:
            if not self._will_wake:
                self._will_wake = True
                self._host.wake_later(self, int((1.0 - self._tokens) * 1_000_000 / rate) + 1)
            return False
        self._tokens -= 1.0
        return True

    def earn(self) -> None:
        """Go on publishing: time has passed, and a token is there."""
        self._will_wake = False
        self.wake()

    def _starve(self) -> None:
        if not self._starving:
            self._starving = True
            self._host.starved.append(self)

    def feed(self) -> None:
        """Go on publishing: what waited for the log is committed."""
        self._starving = False
        self.wake()

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
        if len(self._broker.subscriptions) >= SUBSCRIPTIONS_MAX:
            refusal = "too many subscriptions"
        if topic is None or refusal:
            self._reply(self._refusal(command.correlation_id, refusal))
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
            self._last_id = self._broker.fence()
        pong = frames.encode(frames.PONG, correlation_id)
        self._reply_after(WaitingReply(self._last_id, pong))

    def _consumer(self, command: session.OnSubscription) -> Consumer | None:
        """Return the hold on the subscription; refuse the command when there is none."""
        consumer = self.consumers.get(command.subscription_id)
        if consumer is not None:
            if not consumer.subscription.ended:
                return consumer
            del self.consumers[command.subscription_id]
        consumer = self._broker.attach(self, command.subscription_id)
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

    def _refusal(self, correlation_id: int, reason: str) -> bytes:
        text = f"durable publish failed: {reason}"[:REFUSAL_TEXT_MAX]
        return messages.encode_nack(correlation_id, session.SERVER_ERROR, text)

    def _reply(self, data: bytes) -> None:
        if self._replies:
            # Behind what may still be refused, so that a refusal comes before it.
            self._replies.append(WaitingReply(self._last_id, data))
        else:
            self._collect()
            self._out.append(data)

    def _reply_after(self, reply: WaitingReply) -> None:
        if not self._replies and reply.after_id <= self._broker.committed_id:
            self._collect()
            self._out.append(reply.data)
        else:
            self._replies.append(reply)
            self._note_waiting()

    def _note_waiting(self) -> None:
        if not self._is_waiting and self._replies:
            self._is_waiting = True
            self._host.waiting.append(self)

    def no_longer_listed(self) -> None:
        """Note that the host has taken this connection off its list of waiting ones."""
        self._is_waiting = False

    def _send_committed(self) -> None:
        replies = self._replies
        committed_id = self._broker.committed_id
        while replies and replies[0].after_id <= committed_id:
            self._collect()
            self._out.append(replies.popleft().data)
        self._note_waiting()

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

    def _flush(self) -> None:
        self._collect()
        if self._out and not self._closed:
            data = b"".join(self._out)
            self._out = []
            self._wire.write(data)
            if self._writable:
                self._measure_room()

    def _measure_room(self) -> None:
        # Up to the bound and not above it there is room: only above it does the transport
        # call us again when there is.
        was_full = self.room_bytes <= 0
        self.room_bytes = self._limits.output_buffer_bytes + 1 - self._wire.unsent_bytes()
        if was_full and self.room_bytes > 0:
            self._broker.resume(self, self._host.now_us())
