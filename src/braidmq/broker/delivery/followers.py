"""Followers: subscriptions that are settled by handing a message out.

    log ...... | cursor ......... handed out, passed over
               behind, or away    settled

A follower is one peer, one topic and one public key. It takes messages as they are committed
while its peer has room, holds none of its own, and when there is no room keeps only its cursor:
the log is read from there later, for one follower of a peer at a time. One that is *recorded*
outlives its peer: it is *away* until somebody comes with its key again, or for too long. What
its peer's transport has not received by then is still to come.
"""

import base64
from collections import deque
from typing import Final, final

from braidmq.base.strict_json import is_json
from braidmq.broker import dead_letters, headers, records
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.pushing import Deliverer
from braidmq.broker.delivery.rules import Rules, of_settings
from braidmq.broker.delivery.subscriptions import Delivery, Peer, Subscription
from braidmq.broker.expiry import is_expired
from braidmq.broker.outgoing import Ended, Outgoing, Started
from braidmq.broker.schemas import SEALED_BYTES_MIN, SENDER_KEY_BYTES
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import ORIGIN_QUMBED, Message, Topic, Topics

SCHEMA_ID: Final = "schemaId"
RECIPIENT_KEY_ID: Final = "recipientKeyId"
SENDER_PUBLIC_KEY: Final = "senderPublicKey"
"""Headers of a Qumbed message, in this order, each only when it is there; keys are base64."""

_RECIPIENT: Final = RECIPIENT_KEY_ID.encode()

KEY_ID_BYTES: Final = 8
"""A key's id is the beginning of the public key."""

FOLLOWER_QOS: Final = 2
"""What a follower has in place of a QoS: no other subscription has it."""


@final
class Marks:
    """What a Qumbed publisher said of a message, besides whom it is for."""

    def __init__(self, schema_id: str, sender_public_key: bytes, *, sealed: bool) -> None:
        self.schema_id: str = schema_id
        self.sender_public_key: bytes = sender_public_key
        self.sealed: bool = sealed  # a box between two keys, handed on as it is


def mark(
    message: Message, *, schema_id: str, recipient_key_id: bytes, sender_public_key: bytes
) -> None:
    """Make *message* one of a Qumbed publisher's: its origin, its headers, whom it is for."""
    said: dict[str, str] = {}
    if schema_id:
        said[SCHEMA_ID] = schema_id
    if recipient_key_id:
        said[RECIPIENT_KEY_ID] = base64.b64encode(recipient_key_id).decode()
    if sender_public_key:
        said[SENDER_PUBLIC_KEY] = base64.b64encode(sender_public_key).decode()
    message.origin = ORIGIN_QUMBED
    message.headers = headers.encode(said)
    message.recipient_key_id = recipient_key_id


def recipient_of(block: bytes) -> bytes:
    """Return the id of the key that a Qumbed message with these headers is for, if any."""
    if _RECIPIENT not in block:
        return b""
    return base64.b64decode(headers.decode(block).get(RECIPIENT_KEY_ID, ""))


def marks_of(message: Message) -> Marks:
    """Return what is known of a message of any strand; found out once."""
    marks = message.marks
    if marks is None:
        marks = _read_marks(message)
        message.marks = marks
    return marks


def _read_marks(message: Message) -> Marks:
    if message.origin != ORIGIN_QUMBED or not message.headers:
        return Marks("", b"", sealed=False)  # such headers of another strand mean nothing
    said = headers.decode(message.headers)
    sender_public_key = base64.b64decode(said.get(SENDER_PUBLIC_KEY, ""))
    payload = message.payload
    sealed = (
        len(payload) >= SEALED_BYTES_MIN
        and len(sender_public_key) == SENDER_KEY_BYTES
        and not is_json(payload)
    )
    return Marks(said.get(SCHEMA_ID, ""), sender_public_key, sealed=sealed)


@final
class Follower(Subscription):
    """One peer's place in one topic, for one public key."""

    def __init__(self, topic: Topic, principal: str, key: bytes, rules: Rules) -> None:
        super().__init__(topic, FOLLOWER_QOS, principal, rules)
        self.key: bytes = key
        self.key_id: bytes = key[:KEY_ID_BYTES]
        self.peer: Peer | None = None  # None: away
        self.recorded: bool = False  # a restart finds it
        self.started: bool = False  # its record is committed, if it has one
        self.began_id: int = 0  # what is above it is for this one
        self.noted_id: int = 0  # everything up to it is settled by record
        self.unreceived: deque[int] = deque()  # sent; if recorded, until it has arrived

    def begin(self, subscription_id: int) -> None:
        """Take the record's id as its own: messages above it are its."""
        super().begin(subscription_id)
        self.noted_id = subscription_id

    def sent_id(self) -> int:
        """Return the id up to which everything has reached its peer, or is not for it."""
        if self.peer is not None:
            self.peer.note_received()
            if self.unreceived:
                return min(self.cursor, self.unreceived[0] - 1)
            for delivery in self.peer.deliveries:
                if delivery.message.topic is self.topic and delivery.message.id > 0:
                    return min(self.cursor, delivery.message.id - 1)
        return self.cursor

    def has_all(self) -> bool:
        """Say whether everything that is for it so far has reached its peer."""
        return not self.behind and self.sent_id() == self.cursor

    def floor_id(self, committed_id: int) -> int:
        """Return the id up to which it needs nothing from the log any more."""
        sent_id = self.sent_id()
        if self.behind or sent_id < self.cursor:
            return sent_id
        return max(sent_id, committed_id)

    def take_progress(self) -> Progress | None:
        """Take what is to be recorded; what its peer has not taken yet comes later."""
        sent_id = self.sent_id()
        self.is_unsure = sent_id < self.cursor
        made = self.progress  # that of a record that the log refused
        self.progress = None
        if sent_id > self.noted_id:
            if made is None:
                made = Progress()
            made.settle_range(self.noted_id, sent_id, 0)
            self.noted_id = sent_id
        return made

    def recover(self, now_us: int) -> None:
        """Be away, as after a restart; the time of it counts from now."""
        assert self.settled is not None
        self.cursor = self.settled.floor
        self.noted_id = self.cursor
        self.began_id = self.cursor
        self.settled = None
        self.behind = self.cursor < self.topic.last_id
        self.last_used_us = now_us


class FollowerDeliverer(Deliverer):
    """Delivery to followers."""

    def __init__(
        self, settings: Settings, topics: Topics, outgoing: Outgoing, stats: Stats
    ) -> None:
        super().__init__(settings, topics, outgoing, stats)
        self.followers: dict[int, Follower] = {}  # those without a record have ids below 0
        self._unrecorded: int = 0
        self._follower_rules: Rules = of_settings(settings)

    # A follower's life.

    def follow(self, peer: Peer, topic: Topic, key: bytes, now_us: int) -> int:
        """Let *peer* follow a topic; return the id that must be committed for it, or 0."""
        assert peer.principal is not None
        name = peer.principal.name
        current = peer.following.get(topic.name)
        if current is not None:
            if current.key == key and current.principal == name:
                return 0 if current.started else current.id
            self.unfollow(peer, topic)
        follower = self._returning(topic, name, key)
        given = 0
        if follower is None:
            follower = self.new_follower(topic, name, key)
            if self.settings.offline_us > 0:
                record = records.encode_follow(now_us, key, name, topic.name)
                given = self.outgoing.add(Started(follower), record)
                self.add_follower(follower, given)
            else:
                self._unrecorded -= 1
                self.add_follower(follower, self._unrecorded)
                follower.cursor = topic.last_id
                follower.started = True
        elif not follower.started:
            given = follower.id
        follower.peer = peer
        peer.following[topic.name] = follower
        if follower.behind:
            peer.laggards.append(follower)
            self.read_for(peer)
        return given

    def _returning(self, topic: Topic, principal: str, key: bytes) -> Follower | None:
        """Take up who is away with this key: of several the one that has missed most."""
        found: Follower | None = None
        for follower in topic.followers:
            if (
                follower.peer is None
                and follower.key == key
                and follower.principal == principal
            ):
                if found is None:
                    found = follower
                elif follower.cursor < found.cursor:
                    self.end_follower(found, records.ENDED_BY_REQUEST)
                    found = follower
                else:
                    self.end_follower(follower, records.ENDED_BY_REQUEST)
        return found

    def new_follower(self, topic: Topic, principal: str, key: bytes) -> Follower:
        """Return a follower that is listed nowhere yet."""
        return Follower(topic, principal, key, self._follower_rules)

    def start_follower(self, follower: Follower) -> None:
        """Let a follower begin whose record is committed.

        Where its key is there already, that may be itself, on a connection that has broken and
        is not known to have: what has not arrived there comes here as well.
        """
        follower.started = True
        follower.began_id = follower.cursor
        for other in self._twins(follower):
            if other.started:
                follower.began_id = min(follower.began_id, other.sent_id())
        peer = follower.peer
        if peer is not None and follower.began_id < follower.cursor:
            follower.cursor = follower.began_id
            follower.behind = follower.cursor < follower.topic.last_id
            if follower.behind:
                peer.laggards.append(follower)
                self.read_for(peer)

    def add_follower(self, follower: Follower, follower_id: int) -> None:
        """List a new follower; one that has a record is found again after a restart."""
        follower.begin(follower_id)
        follower.recorded = follower_id > 0
        self.followers[follower_id] = follower
        follower.topic.followers.append(follower)

    def unfollow(self, peer: Peer, topic: Topic) -> int:
        """End what follows a topic for *peer*; return the id to be committed for it, or 0."""
        follower = peer.following.pop(topic.name, None)
        if follower is None:
            return 0
        peer.deliveries = [d for d in peer.deliveries if d.message.topic is not topic]
        if follower.behind:
            peer.laggards.remove(follower)
            self.read_for(peer)
        given = self.end_follower(follower, records.ENDED_BY_REQUEST)
        follower.peer = None
        return given

    def leave_followed(self, peer: Peer, now_us: int) -> None:
        """Let go of all that a peer follows: it is gone, or wants no more."""
        following = peer.following
        peer.following = {}
        peer.laggards = []
        for follower in following.values():
            if follower.recorded and self._may_miss(follower):
                # What it was given and has not taken is still to come, or it were lost.
                sent_id = follower.sent_id()
                if sent_id < follower.cursor:
                    follower.cursor = sent_id
                    follower.behind = True
                follower.last_used_us = now_us
            else:
                self.end_follower(follower, records.ENDED_BY_REQUEST)
            follower.peer = None
            follower.reading = False
            follower.unreceived = deque()
        if following:
            peer.deliveries = [
                d for d in peer.deliveries if d.message.topic.name not in following
            ]

    def _may_miss(self, follower: Follower) -> bool:
        """Say whether messages could be missed: not while another peer has the same place."""
        if self.settings.offline_us == 0:
            return False
        for other in self._twins(follower):
            # A restart finds it at its record: what is before that it must have by now.
            is_past = other.has_all() or other.sent_id() >= other.id
            takes_over = is_past and other.began_id <= follower.sent_id()
            if other.started and (takes_over or follower.has_all()):
                return False
        return True

    def _twins(self, follower: Follower) -> list[Follower]:
        """Return the others that are there with the same key."""
        return [
            other
            for other in follower.topic.followers
            if other is not follower
            and other.peer is not None
            and other.key == follower.key
            and other.principal == follower.principal
        ]

    def end_follower(self, follower: Follower, reason: int) -> int:
        """End a follower; return the id to be committed for it, or 0."""
        self.drop_follower(follower)
        if not follower.recorded:
            return 0
        return self.outgoing.add(
            Ended(follower.id, reason), records.encode_unsubscribe(follower.id, reason)
        )

    def drop_follower(self, follower: Follower) -> None:
        """Let go of a follower, also of one that the log refused."""
        peer = follower.peer
        if peer is not None and peer.following.get(follower.topic.name) is follower:
            del peer.following[follower.topic.name]
        self.forget(follower)
        self.followers.pop(follower.id, None)
        topic = follower.topic
        topic.followers = [other for other in topic.followers if other is not follower]

    def end_overdue(self, now_us: int) -> list[Follower]:
        """End those who are away for too long, or taken over meanwhile, and return them."""
        offline_us = self.settings.offline_us
        over = [
            follower
            for follower in self.followers.values()
            if follower.peer is None
            and (follower.last_used_us + offline_us <= now_us or not self._may_miss(follower))
        ]
        for follower in over:
            self.stats.leases_ended += 1
            self.end_follower(follower, records.ENDED_BY_LEASE)
        return over

    def followers_need(self, committed_id: int) -> int:
        """Return the lowest id that a follower still needs from the log."""
        needed = committed_id + 1
        for follower in self.followers.values():
            needed = min(needed, follower.floor_id(committed_id) + 1)
        return needed

    # A message comes to followers.

    def route_to_followers(self, message: Message, now_us: int) -> None:
        """Hand a message to the followers of its topic that it is for."""
        for follower in message.topic.followers:
            if not follower.started:
                continue  # its record is behind this message's, or this has none
            if message.id > 0:
                self._offer_durable(follower, message, now_us)
            else:
                self._offer_volatile(follower, message, now_us)

    def _offer_durable(self, follower: Follower, message: Message, now_us: int) -> None:
        peer = follower.peer
        if not self._is_for(follower, message):
            if not follower.behind:
                follower.cursor = message.id
            return
        if peer is not None:
            message.routed += 1
        if follower.behind:
            return
        if peer is None:
            follower.behind = True
        elif message.expires_us and is_expired(message.expires_us, now_us):
            self.stats.expired += 1
            follower.cursor = message.id
        elif peer.room_bytes > 0 and not self.stopped:
            self._hand(follower, peer, message, now_us)
        else:
            follower.behind = True
            peer.laggards.append(follower)

    def _offer_volatile(self, follower: Follower, message: Message, now_us: int) -> None:
        peer = follower.peer
        if peer is None or not self._is_for(follower, message):
            return
        if is_expired(message.expires_us, now_us):
            self.stats.expired += 1
        elif peer.room_bytes > 0 and not self.stopped:
            message.routed += 1
            self._deliver(peer, Delivery(message, 0, 0))
        else:
            self.stats.dropped_overflow += 1

    def _is_for(self, follower: Follower, message: Message) -> bool:
        recipient = message.recipient_key_id
        if recipient and recipient != follower.key_id and not self.settings.qumbed_route_all:
            return False
        return not self.settings.qumbed_gateway_off or marks_of(message).sealed

    def _hand(self, follower: Follower, peer: Peer, message: Message, now_us: int) -> None:
        """Give a durable message to the peer, and be done with it."""
        self._deliver(peer, Delivery(message, 0, 0))
        follower.cursor = message.id
        if follower.recorded:
            self.note_progress(follower, now_us)

    # What is in the log only.

    def read_for(self, peer: Peer) -> None:
        """Have the log read for the next of a peer's followers that are behind, one by one."""
        if peer.laggards and peer.room_bytes > 0 and not self.stopped:
            follower = peer.laggards[0]
            if not follower.reading:
                follower.reading = True
                self.reads.append(follower)

    def take_up(
        self,
        follower: Follower,
        found: list[Message],
        *,
        after_id: int,
        reached_id: int,
        now_us: int,
    ) -> None:
        """Hand out what was read of the ids above *after_id*, as far as there is room."""
        peer = follower.peer
        follower.reading = False
        if peer is None or not follower.behind:
            return  # it was asked for a peer that is gone
        if after_id <= follower.cursor:  # else there may be more between the two
            self._hand_found(follower, peer, found, reached_id, now_us)
        peer.laggards.remove(follower)
        follower.behind = follower.cursor < follower.topic.last_id
        if follower.behind:
            peer.laggards.append(follower)
        self.read_for(peer)

    def _hand_found(
        self, follower: Follower, peer: Peer, found: list[Message], reached_id: int, now_us: int
    ) -> None:
        # Whatever neighbours have left of the room, one message goes: it had room when it was
        # asked for, and would wait for ever beside a follower that is never behind.
        may_hand = not self.stopped
        for message in found:
            if message.id <= follower.cursor:
                continue
            if self._is_for(follower, message):
                if is_expired(message.expires_us, now_us):
                    self.stats.expired += 1
                elif may_hand:
                    self._hand(follower, peer, message, now_us)
                    may_hand = peer.room_bytes > 0
                else:
                    return
            follower.cursor = message.id
        follower.cursor = max(follower.cursor, reached_id)

    # What no frame can carry.

    def letter_for_too_large(self, peer: Peer, message: Message, now_us: int) -> Message | None:
        """Return the dead letter of a message that was handed to *peer* in vain.

        None, and it is dropped, when it has none: it is one itself, or no record.
        """
        topic: Topic | None = None
        name = message.topic.name
        follower = peer.following.get(name)
        is_letter = dead_letters.is_dead_letter_topic(name)
        if follower is not None and message.id > 0 and not is_letter:
            topic = self._letters_of(follower, now_us)
        if topic is None:
            self.stats.drop(dead_letters.TOO_LARGE)
            return None
        self.stats.dead_lettered += 1
        letter = dead_letters.letter_of(
            message,
            topic,
            reason=dead_letters.TOO_LARGE,
            attempts=1,
            keep_id=False,
            now_us=now_us,
        )
        # Its publisher's id stays that of the message, which is stored as well.
        kept = headers.decode(letter.headers)
        kept.pop(DEDUP_HEADER, None)
        letter.headers = headers.encode(kept)
        return letter
