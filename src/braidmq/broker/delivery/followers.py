"""Followers: Qumbed's subscriptions, which are settled by handing a message out.

    log ...... | cursor ......... handed out, passed over
               behind, or away    settled

A follower is one peer, one topic and one public key. While its peer has room it is handed
messages as they are committed, and holds none of its own; without room it keeps only its
cursor, and the log is read from there later, for one follower of a peer at a time. A follower
with a record outlives its peer: it is *away* until a peer comes with its key again, or until
`offline_us` is over. What its last peer had not received is then sent again: such a client may
get a message twice, but misses none while it is away.
"""

from collections import deque
from typing import Final, final

from braidmq.broker import dead_letters, records
from braidmq.broker.dedup import HEADER as DEDUP_HEADER
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Delivery, Peer
from braidmq.broker.delivery.pushing import Pushing
from braidmq.broker.delivery.settling import Settling
from braidmq.broker.marks import marks_of
from braidmq.broker.outgoing import Effects, Ended, Followed, LeaseOver, Outgoing
from braidmq.broker.quotas import SUBSCRIPTIONS, Accounts
from braidmq.broker.settings import Settings
from braidmq.broker.stats import Stats
from braidmq.broker.topics import Message, Topic, decode_headers, encode_headers

KEY_ID_BYTES: Final = 8
"""A key's id is the beginning of the public key."""

_LISTED_PER_ROW: Final = 64
"""Followers of a topic whose list takes as long to copy as another row takes to look at."""


@final
class Follower:
    """One peer's position in one topic, for one public key."""

    def __init__(self, topic: Topic, principal: str, key: bytes) -> None:
        self.id: int = 0  # above 0: it has a record, and a restart finds it
        self.topic: Topic = topic
        self.principal: str = principal
        self.key: bytes = key
        self.key_id: bytes = key[:KEY_ID_BYTES]
        self.peer: Peer | None = None  # None: away
        self.started: bool = False  # its record is committed, if it has one
        self.began_id: int = 0  # messages above it are for this follower
        self.cursor: int = 0  # everything up to it was handed out, or is not for it
        self.behind: bool = False  # the log holds more than that
        self.reading: bool = False
        self.noted_id: int = 0  # everything up to it is settled by record
        self.progress: Progress | None = None  # of a record that the log refused
        self.unreceived: deque[int] = deque()  # sent, and with a record not yet received
        self.last_used_us: int = 0  # while it is away: since when

    def begin(self, follower_id: int) -> None:
        """Take the record's id as its own: messages above it are its."""
        self.id = follower_id
        self.cursor = follower_id
        self.noted_id = follower_id

    def belongs_to(self, principal: str, key: bytes) -> bool:
        """Say whether it belongs to this client: the same principal with the same key."""
        return self.key == key and self.principal == principal

    def sent_id(self) -> int:
        """Return the id up to which everything has reached its peer, or is not for it."""
        if self.peer is not None:
            # The oldest that was sent and not confirmed, else the first that is yet to be sent.
            self.peer.note_received()
            if self.unreceived:
                return min(self.cursor, self.unreceived[0] - 1)
            for delivery in self.peer.deliveries:
                if delivery.message.topic is self.topic and delivery.message.id > 0:
                    return min(self.cursor, delivery.message.id - 1)
        return self.cursor

    def has_all(self) -> bool:
        """Say whether everything so far that is for it has reached its peer."""
        return not self.behind and self.sent_id() == self.cursor

    def floor_id(self, committed_id: int) -> int:
        """Return the id up to which it needs nothing more from the log."""
        return max(self.cursor, committed_id) if self.has_all() else self.sent_id()

    def is_unsure(self) -> bool:
        """Say whether its peer may not have received all that was handed out."""
        return self.sent_id() < self.cursor

    def take_progress(self) -> Progress | None:
        """Take what is to be recorded; what its peer has not received yet comes later."""
        sent_id = self.sent_id()
        made = self.progress
        self.progress = None
        if sent_id > self.noted_id:
            if made is None:
                made = Progress()
            made.settle_range(self.noted_id, sent_id, 0)
            self.noted_id = sent_id
        return made

    def replay_progress(self, made: Progress) -> None:
        """Apply a progress record again; its ranges begin where those before it ended."""
        for after, last in made.ranges:
            if after <= self.noted_id < last:
                self.noted_id = last

    def recover(self, now_us: int) -> None:
        """Start as away, after a restart; `offline_us` counts from now."""
        self.cursor = self.noted_id
        self.began_id = self.cursor
        self.behind = self.cursor < self.topic.last_id
        self.last_used_us = now_us  # no record says when its peer left


def _owner_of(follower: Follower) -> tuple[str, str, bytes]:
    return follower.topic.name, follower.principal, follower.key


@final
class Followers:
    """Every follower by its id, and delivery to them."""

    def __init__(self, settings: Settings, pushing: Pushing) -> None:
        self.by_id: dict[int, Follower] = {}  # those without a record have ids below 0
        self.pushing: Pushing = pushing
        self.settling: Settling = pushing.settling
        self.effects: Effects = pushing.effects
        self.stats: Stats = pushing.stats
        self._settings: Settings = settings
        self._outgoing: Outgoing = pushing.settling.outgoing
        self._accounts: Accounts = pushing.settling.topics.accounts
        self._unrecorded: int = 0  # the lowest id of a follower without a record
        # A round of `end_overdue`: who is yet to be looked at, who is away, and who is here.
        self._unseen: list[Follower] = []
        self._away: list[Follower] = []
        self._here: set[tuple[str, str, bytes]] = set()

    # A follower's life.

    def follow(self, peer: Peer, topic: Topic, key: bytes, now_us: int) -> int:
        """Let *peer* follow a topic; return the id that must be committed for it, or 0."""
        assert peer.principal is not None
        name = peer.principal.name
        current = peer.following.get(topic.name)
        if current is not None:
            if current.belongs_to(name, key):
                return 0 if current.started else current.id
            self.unfollow(peer, topic)
        follower = self._returning(topic, name, key)
        given = 0
        if follower is None:
            follower = Follower(topic, name, key)
            if self._settings.offline_us > 0:  # else it need not outlive its peer: no record
                record = records.encode_follow(now_us, key, name, topic.name)
                given = self._outgoing.add(Followed(follower), record)
                self.add(follower, given)
            else:
                self._unrecorded -= 1
                self.add(follower, self._unrecorded)
                follower.cursor = topic.last_id
                follower.started = True
        elif not follower.started:
            given = follower.id  # it came back before its own record was committed
        follower.peer = peer
        peer.following[topic.name] = follower
        self._read_if_behind(follower, peer)
        return given

    def _returning(self, topic: Topic, principal: str, key: bytes) -> Follower | None:
        """Return the follower that is away with this key; end all but the furthest behind."""
        found: Follower | None = None
        for follower in topic.followers:
            if follower.peer is not None or not follower.belongs_to(principal, key):
                continue
            if found is None:
                found = follower
            elif follower.cursor < found.cursor:
                self.end(found, records.ENDED_BY_REQUEST)
                found = follower
            else:
                self.end(follower, records.ENDED_BY_REQUEST)
        return found

    def start(self, follower: Follower) -> None:
        """Start a follower whose record is committed.

        Another follower with its key may be the same client, on a connection that has broken
        without the broker noticing: what did not arrive there is sent here as well.
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
            self._read_if_behind(follower, peer)

    def add(self, follower: Follower, follower_id: int) -> None:
        """List a new follower; it counts towards the quota from now on."""
        self._accounts.of(follower.principal).add(SUBSCRIPTIONS, 1)
        follower.begin(follower_id)
        self.by_id[follower_id] = follower
        follower.topic.followers.append(follower)

    def unfollow(self, peer: Peer, topic: Topic) -> int:
        """Stop *peer* following a topic; return the id to be committed for it, or 0."""
        follower = peer.following.pop(topic.name, None)
        if follower is None:
            return 0
        peer.deliveries = [d for d in peer.deliveries if d.message.topic is not topic]
        if follower.behind:
            peer.laggards.remove(follower)
            self.read_for(peer)  # it may have been this one's turn
        given = self.end(follower, records.ENDED_BY_REQUEST)
        follower.peer = None
        return given

    def leave(self, peer: Peer, now_us: int) -> None:
        """End or keep the followers of a peer that is gone or has stopped."""
        following = peer.following
        peer.following = {}
        peer.laggards = []
        for follower in following.values():
            if follower.id > 0 and self._may_miss(follower):
                # What was handed out and has not arrived must be sent again.
                sent_id = follower.sent_id()
                if sent_id < follower.cursor:
                    follower.cursor = sent_id
                    follower.behind = True
                follower.last_used_us = now_us
            else:
                self.end(follower, records.ENDED_BY_REQUEST)
            follower.peer = None
            # A read may still be under way: `take_up` drops what it brings if no peer is there.
            follower.reading = False
            follower.unreceived = deque()
        if following:
            peer.deliveries = [
                d for d in peer.deliveries if d.message.topic.name not in following
            ]

    def _may_miss(self, follower: Follower) -> bool:
        """Say whether it must be kept: no other follower gets all that it would miss."""
        if self._settings.offline_us == 0:
            return False
        for other in self._twins(follower):
            # A restart finds the other at its record, so what is before that must have arrived.
            is_past = other.has_all() or other.sent_id() >= other.id
            takes_over = is_past and other.began_id <= follower.sent_id()
            if other.started and (takes_over or follower.has_all()):
                return False
        return True

    def _twins(self, follower: Follower) -> list[Follower]:
        """Return the other followers with the same key that have a peer."""
        return [
            other
            for other in follower.topic.followers
            if other is not follower
            and other.peer is not None
            and other.belongs_to(follower.principal, follower.key)
        ]

    def end(self, follower: Follower, reason: int) -> int:
        """End a follower; return the id to be committed for it, or 0."""
        self.drop(follower)
        if follower.id < 0:
            return 0
        return self._outgoing.add(
            Ended(follower.id, reason), records.encode_unsubscribe(follower.id, reason)
        )

    def drop(self, follower: Follower) -> None:
        """Drop a follower, also one whose record the log refused."""
        peer = follower.peer
        if peer is not None and peer.following.get(follower.topic.name) is follower:
            del peer.following[follower.topic.name]
        follower.peer = None
        follower.progress = None
        self.effects.dirty_followers.pop(follower.id, None)
        if self.by_id.pop(follower.id, None) is not None:
            self._accounts.of(follower.principal).add(SUBSCRIPTIONS, -1)
        topic = follower.topic
        topic.followers = [other for other in topic.followers if other is not follower]

    def end_overdue(self, now_us: int, rows_max: int) -> bool:
        """End followers that are away for too long, or no longer needed; say if all had a turn.

        Those that come, go or catch up between the turns are judged in the next round.
        """
        if not self.is_in_round():
            self._unseen = list(self.by_id.values())
            self._here = set()
        rows = 0
        # First who is here, so that only for those the others are searched for twins: with many
        # that are away in one topic, each with all others would be too much.
        while self._unseen and rows < rows_max:
            follower = self._unseen.pop()
            rows += 1
            if follower.peer is None:
                self._away.append(follower)
            else:
                self._here.add(_owner_of(follower))
        while self._away and rows < rows_max:
            follower = self._away.pop()
            rows += 1
            if follower.peer is not None or self.by_id.get(follower.id) is not follower:
                continue  # it has returned, or ended, meanwhile
            if self._is_overdue(follower, now_us):
                rows += len(follower.topic.followers) // _LISTED_PER_ROW  # a list made anew
                self._end_overdue(follower)
        return not self.is_in_round()

    def is_in_round(self) -> bool:
        """Say whether `end_overdue` has begun a round that is not over."""
        return bool(self._unseen or self._away)

    def _is_overdue(self, follower: Follower, now_us: int) -> bool:
        offline_us = self._settings.offline_us
        return (
            follower.last_used_us + offline_us <= now_us
            or offline_us == 0
            or (_owner_of(follower) in self._here and not self._may_miss(follower))
        )

    def _end_overdue(self, follower: Follower) -> None:
        self.end(follower, records.ENDED_BY_LEASE)
        self.stats.leases_ended += 1
        self.effects.leases_over.append(
            LeaseOver(follower.id, follower.topic.name, follower.principal)
        )

    def needed_id(self, committed_id: int) -> int:
        """Return the lowest id that a follower still needs from the log."""
        needed = committed_id + 1
        for follower in self.by_id.values():
            needed = min(needed, follower.floor_id(committed_id) + 1)
        return needed

    # Followers get a message.

    def route(self, message: Message, now_us: int) -> None:
        """Hand a message to the followers of its topic that it is for."""
        for follower in message.topic.followers:
            if not follower.started:
                continue  # messages before its record, and memory-only ones, are not for it
            if message.id > 0:
                self._offer_durable(follower, message, now_us)
            else:
                self._offer_volatile(follower, message, now_us)

    def _offer_durable(self, follower: Follower, message: Message, now_us: int) -> None:
        peer = follower.peer
        if not self._is_for(follower, message):
            # If it is behind, the cursor must stay: messages before this one are to be read.
            if not follower.behind:
                follower.cursor = message.id
            return
        if peer is not None:
            message.routed += 1  # reported in the publisher's Ack
        if follower.behind:
            return  # it will be read from the log, after what is before it
        if peer is None:
            follower.behind = True
        elif message.expires_us and message.is_expired(now_us):
            self.stats.expired += 1
            follower.cursor = message.id
        elif peer.room_bytes > 0 and not self.pushing.stopped:
            self._hand(follower, peer, message, now_us)
        else:
            follower.behind = True
            peer.laggards.append(follower)

    def _offer_volatile(self, follower: Follower, message: Message, now_us: int) -> None:
        peer = follower.peer
        if peer is None or not self._is_for(follower, message):
            return
        if message.is_expired(now_us):
            self.stats.expired += 1
        elif peer.room_bytes > 0 and not self.pushing.stopped:
            message.routed += 1
            self.pushing.deliver(peer, Delivery(message, 0, 0))
        else:
            self.stats.dropped.overflow += 1

    def _is_for(self, follower: Follower, message: Message) -> bool:
        recipient = message.recipient_key_id
        if recipient and recipient != follower.key_id and not self._settings.qumbed_route_all:
            return False
        return not self._settings.qumbed_gateway_off or marks_of(message).sealed

    def _hand(self, follower: Follower, peer: Peer, message: Message, now_us: int) -> None:
        """Hand out a durable message, which settles it."""
        self.pushing.deliver(peer, Delivery(message, 0, 0))
        follower.cursor = message.id
        if follower.id > 0:
            self.effects.note_followed(follower, now_us)

    # What is in the log only.

    def read_for(self, peer: Peer) -> None:
        """Have the log read for one of a peer's followers that are behind; they take turns."""
        if peer.laggards and peer.room_bytes > 0 and not self.pushing.stopped:
            follower = peer.laggards[0]
            if not follower.reading:
                follower.reading = True
                self.effects.follower_reads.append(follower)

    def take_up(
        self,
        follower: Follower,
        found: list[Message],
        *,
        after_id: int,
        reached_id: int,
        now_us: int,
    ) -> None:
        """Hand out what was read from the ids above *after_id*, as far as there is room."""
        peer = follower.peer
        follower.reading = False
        if peer is None or not follower.behind:
            return  # the peer that this was read for is gone
        if after_id <= follower.cursor:  # if not, there may be messages between the two
            self._hand_found(follower, peer, found, reached_id, now_us)
        peer.laggards.remove(follower)
        follower.behind = follower.cursor < follower.topic.last_id
        self._read_if_behind(follower, peer)
        self.read_for(peer)  # the next one's turn

    def _read_if_behind(self, follower: Follower, peer: Peer) -> None:
        if follower.behind:
            peer.laggards.append(follower)
            self.read_for(peer)

    def _hand_found(
        self, follower: Follower, peer: Peer, found: list[Message], reached_id: int, now_us: int
    ) -> None:
        # One message goes even if the peer's other followers have used up the room since this
        # was asked for: beside a follower that is never behind it would wait for ever.
        may_hand = not self.pushing.stopped
        for message in found:
            if message.id <= follower.cursor:
                continue
            if self._is_for(follower, message):
                if message.is_expired(now_us):
                    self.stats.expired += 1
                elif may_hand:
                    self._hand(follower, peer, message, now_us)
                    may_hand = peer.room_bytes > 0
                else:
                    return
            follower.cursor = message.id
        follower.cursor = max(follower.cursor, reached_id)

    # What no frame can carry.

    def letter_of_too_large(self, peer: Peer, message: Message, now_us: int) -> Message | None:
        """Return the dead letter of a message that no frame to *peer* can carry.

        None when it is dropped: it is a dead letter already or lives in memory only, or the log
        takes no dead letter now.
        """
        topic: Topic | None = None
        name = message.topic.name
        follower = peer.following.get(name)
        is_letter = dead_letters.is_dead_letter_topic(name)
        if follower is not None and message.id > 0 and not is_letter:
            payer = self._accounts.of(follower.principal)
            letters = dead_letters.topic_for(name)
            topic = self.settling.queues.letters_topic(letters, payer, now_us)
        if topic is None:
            self.stats.drop(dead_letters.TOO_LARGE)
            return None
        self.stats.dead_lettered += 1
        letter = dead_letters.letter_of(
            message, topic, dead_letters.TOO_LARGE, now_us=now_us, attempts=1
        )
        # The message stays stored, and its publisher's dedup id stays with it.
        kept = decode_headers(letter.headers)
        kept.pop(DEDUP_HEADER, None)
        letter.headers = encode_headers(kept)
        return letter
