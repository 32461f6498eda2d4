"""Followers against a model of what they must get, over random sequences of events.

Each follower must get exactly its own messages, in order, once; after a crash recent deliveries
may be repeated, and nothing is missing. `BRAIDMQ_MODEL_EXAMPLES` sets the number of examples.
"""

import os
from dataclasses import dataclass
from typing import Final

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from braidmq.broker.delivery.channels import Peer
from braidmq.broker.marks import mark
from braidmq.broker.outgoing import Followed
from braidmq.broker.settings import Settings
from braidmq.broker.topics import Message
from tests.unit.broker.drive import MS, ROOM_BYTES, Drive, S, peer_of
from tests.unit.broker.following import KEY, OTHER_KEY

EXAMPLES: Final = int(os.environ.get("BRAIDMQ_MODEL_EXAMPLES", "150"))
TOPICS: Final = ("a", "b")
KEYS: Final = (KEY, OTHER_KEY)
SLOTS: Final = 4
"""How many peers may be connected at once."""
TTL_US: Final = 2_500 * MS
OFFLINE_US: Final = 20 * S
PAYLOAD_BYTES_MAX: Final = 60
UNKNOWN: Final = -1

RARELY: Final = st.sampled_from([False, True, False, False])
USUALLY: Final = st.sampled_from([True, False, True, True])
rooms = st.sampled_from([0, 1, 100, 300, ROOM_BYTES, ROOM_BYTES])
topics = st.sampled_from(TOPICS)
keys = st.sampled_from(KEYS)
slots = st.integers(0, SLOTS - 1)


@dataclass
class Known:
    """A durable message as its publisher knows it."""

    topic: str
    to: bytes
    expires_us: int


@dataclass
class FollowerModel:
    """A follower as its client knows it."""

    topic: str
    key: bytes
    owner: str
    start_id: int
    last_id: int  # of the messages it got, or UNKNOWN since a crash
    newest_id: int  # of all messages it ever got

    def is_of(self, other: "FollowerModel") -> bool:
        return (self.topic, self.key, self.owner) == (other.topic, other.key, other.owner)


class Followers(RuleBasedStateMachine):
    """Everything that may happen to followers."""

    @initialize(offline=USUALLY, route_all=RARELY, room_bytes=rooms)
    def begin(self, offline: bool, route_all: bool, room_bytes: int) -> None:
        self.drive = Drive(
            Settings(
                window=8,
                offline_us=OFFLINE_US if offline else 0,
                qumbed_route_all=route_all,
            )
        )
        self.messages: dict[int, Known] = {}
        self.volatile: dict[bytes, tuple[str, bytes]] = {}
        self.models: dict[int, FollowerModel] = {}
        self.ended: dict[int, FollowerModel] = {}  # a crash may bring them back
        self.peers: dict[int, Peer] = {}
        self.begun: set[int] = set()  # followers whose record is committed
        self.serial = 0
        self.handed = 0
        for slot in range(SLOTS - 1):
            self.follow(slot, "a", KEYS[slot % len(KEYS)])
            self.give_room(slot, room_bytes)
        self.work_on_the_log(commits=True, batch_only=False)

    # Publishers.

    @rule(
        topic=topics,
        to=st.sampled_from([b"", b"", *(key[:8] for key in KEYS)]),
        ttl_us=st.sampled_from([0, 0, 0, TTL_US]),
        qos=st.sampled_from([1, 1, 1, 0]),
        size=st.integers(0, PAYLOAD_BYTES_MAX - 8),
        count=st.integers(1, 6),
        is_committed=USUALLY,
    )
    def publish(  # noqa: PLR0917 - hypothesis passes them by name
        self,
        topic: str,
        to: bytes,
        ttl_us: int,
        qos: int,
        size: int,
        count: int,
        is_committed: bool,
    ) -> None:
        if qos and self.drive.broker.refusal:
            return
        for _ in range(count):
            self.serial += 1
            message = self.drive.message(topic, b"%08d" % self.serial + b"x" * size, qos=qos)
            mark(message, schema_id="", recipient_key_id=to, sender_public_key=b"")
            message.expires_us = self.drive.now_us + ttl_us if ttl_us else 0
            if qos == 0:
                self.volatile[message.payload] = (topic, to)
            message_id = self.drive.broker.publish(message, self.drive.now_us)
            if qos:
                self.messages[message_id] = Known(topic, to, message.expires_us)

        if is_committed:
            self.work_on_the_log(commits=True, batch_only=False)

    @rule(commits=st.booleans(), batch_only=st.booleans())
    def work_on_the_log(self, commits: bool, batch_only: bool) -> None:
        """Append the accepted records, and commit one batch of them or all."""
        drive = self.drive
        if not commits:
            drive.append()
            return
        while drive.batch is not None or drive.broker.wants_commit():
            owed = {i: self.missing(model) for i, model in self.models.items()}
            drive.commit_batch()
            self.check_new_followers(owed)
            if batch_only:
                return

    def check_new_followers(self, owed: dict[int, list[int]]) -> None:
        """A follower whose key is connected already takes over what that one misses."""
        followers = self.drive.broker.followers.by_id
        for follower_id, model in self.models.items():
            follower = followers[follower_id]
            if follower_id in self.begun or not follower.started or follower_id < 0:
                continue
            self.begun.add(follower_id)
            for other_id, other in self.models.items():
                twin = followers[other_id]
                if other_id in self.begun and twin.peer is not None and other.is_of(model):
                    assert all(missed > follower.began_id for missed in owed[other_id])
            model.start_id = min(model.start_id, follower.began_id)

    # Subscribers.

    @rule(slot=slots, topic=topics, key=keys)
    def follow(self, slot: int, topic: str, key: bytes) -> None:
        drive = self.drive
        if drive.broker.refusal:
            return
        peer = self.peers.get(slot)
        if peer is None:
            peer = self.peers[slot] = peer_of(("ada", "bob")[slot % 2])
            peer.room_bytes = 0
        before = peer.following.get(topic)
        if before is not None and before.key != key:
            self.take(slot, len(peer.deliveries))  # as the server does
        assert peer.principal is not None
        owner = peer.principal.name
        start_id = len(drive.log.records)
        record_id = drive.broker.followers.follow(peer, drive.topic(topic), key, drive.now_us)
        follower = peer.following[topic]
        if before is not None and before is not follower:
            self.end(before.id)
        wanted = FollowerModel(topic, key, owner, max(start_id, record_id), 0, 0)
        model = self.models.setdefault(follower.id, wanted)
        assert model.is_of(wanted)
        assert (record_id > 0) == (not follower.started)
        for follower_id, other in list(self.models.items()):
            if follower_id not in drive.broker.followers.by_id:
                # An offline follower with this key has ended: it had missed no more.
                assert other.is_of(model)
                assert all(missed > follower.cursor for missed in self.missing(other))
                self.end(follower_id)

    def end(self, follower_id: int) -> None:
        self.ended[follower_id] = self.models.pop(follower_id)

    @rule(slot=slots, topic=topics, happens=RARELY)
    def unfollow(self, slot: int, topic: str, happens: bool) -> None:
        peer = self.peers.get(slot)
        if peer is None or not happens:
            return
        self.take(slot, len(peer.deliveries))
        follower = peer.following.get(topic)
        record_id = self.drive.broker.followers.unfollow(peer, self.drive.topic(topic))
        assert (record_id > 0) == (follower is not None and follower.id > 0)
        if follower is not None:
            self.end(follower.id)

    @rule(slot=slots, count=st.integers(1, 9))
    def take(self, slot: int, count: int) -> None:
        """Send the first deliveries of a peer, as far as its connection allows."""
        peer = self.peers.get(slot)
        if peer is None:
            return
        sent = peer.deliveries[:count]
        peer.deliveries = peer.deliveries[count:]
        self.handed += len(sent)
        for delivery in sent:
            message = delivery.message
            follower = peer.following[message.topic.name]
            if message.id:
                self.check_is_next(self.models[follower.id], message)
            else:
                assert (message.topic.name, message.recipient_key_id) == self.volatile[
                    message.payload
                ]
                assert self.is_addressed(follower.key, message.recipient_key_id)

    @rule(slot=slots, room_bytes=rooms)
    def give_room(self, slot: int, room_bytes: int) -> None:
        peer = self.peers.get(slot)
        if peer is not None:
            peer.room_bytes = room_bytes
            if room_bytes:
                self.drive.broker.resume(peer, self.drive.now_us)

    @rule(slot=slots)
    def leave(self, slot: int) -> None:
        peer = self.peers.pop(slot, None)
        if peer is None:
            return
        following = list(peer.following.values())
        self.handed += len(peer.deliveries)  # they count although they were not sent
        self.drive.broker.detach(peer, self.drive.now_us)
        assert ([], {}, []) == (peer.deliveries, peer.following, peer.laggards)
        for follower in following:
            model = self.models[follower.id]
            if follower.id not in self.drive.broker.followers.by_id:
                assert follower.id < 0 or self.is_taken_over(model)
                self.end(follower.id)
            else:
                assert follower.id > 0

    def is_taken_over(self, model: FollowerModel) -> bool:
        """Say whether another follower gets all that this one misses, also after a crash."""
        followers = self.drive.broker.followers.by_id
        twins = [
            (other_id, other)
            for other_id, other in self.models.items()
            if other is not model
            and other.is_of(model)
            and other_id in followers
            and followers[other_id].peer is not None
        ]
        return all(
            any(
                twin.start_id < missed and (missed > twin_id or missed <= twin.newest_id)
                for twin_id, twin in twins
            )
            for missed in self.missing(model)
        )

    # The log and time.

    @rule(one=st.booleans())
    def serve_reads(self, one: bool) -> None:
        drive = self.drive
        if not one:
            drive.serve_reads()
            return
        drive.requests += drive.broker.take_reads(drive.now_us)
        if drive.requests:
            drive.serve_one_read()

    @rule()
    def snapshot(self) -> None:
        if not self.drive.broker.refusal and self.drive.awaited_snapshot is None:
            self.drive.snapshot()

    @rule(delay_us=st.sampled_from([20 * MS, 1 * S, 3 * S, OFFLINE_US]))
    def let_time_pass(self, delay_us: int) -> None:
        self.drive.advance(delay_us)
        for ended_lease in self.drive.broker.take_leases_over():
            assert ended_lease.subscription_id not in self.drive.broker.followers.by_id
            self.end(ended_lease.subscription_id)

    @rule(happens=RARELY, has_room_again=USUALLY)
    def fill_the_disk(self, happens: bool, has_room_again: bool) -> None:
        if not happens:
            return
        refused = self.drive.refuse()
        for item in refused:
            if isinstance(item, Message):
                del self.messages[item.id]
            else:
                assert isinstance(item, Followed)
                self.models.pop(item.follower.id, None)
        if has_room_again:
            self.make_room()

    @rule()
    def make_room(self) -> None:
        self.drive.broker.accept_again()

    @rule(happens=st.booleans())
    def crash(self, happens: bool) -> None:
        if not happens:
            return
        self.drive.restart()
        self.peers = {}
        self.handed = 0
        committed_id = len(self.drive.log.records)
        self.messages = {i: known for i, known in self.messages.items() if i <= committed_id}
        committed = {i: model for i, model in self.models.items() if 0 < i <= committed_id}
        self.models = {}
        for follower_id, follower in self.drive.broker.followers.by_id.items():
            model = committed.pop(follower_id, None) or self.ended[follower_id]
            self.models[follower_id] = model
            self.begun.add(follower_id)
            model.last_id = UNKNOWN
            model.start_id = max(model.start_id, follower_id)
            assert (model.topic, model.key, model.owner) == (
                follower.topic.name,
                follower.key,
                follower.principal,
            )
        assert {} == committed

    # Invariants.

    def is_addressed(self, key: bytes, to: bytes) -> bool:
        return not to or to == key[:8] or self.drive.settings.qumbed_route_all

    def candidates(self, model: FollowerModel, after_id: int) -> list[int]:
        """Return the committed, unexpired messages of a follower above an id."""
        first_id = max(after_id, model.start_id)
        return [
            i
            for i, known in sorted(self.messages.items())
            if first_id < i <= len(self.drive.log.records)
            and known.topic == model.topic
            and self.is_addressed(model.key, known.to)
            and not 0 < known.expires_us <= self.drive.now_us
        ]

    def missing(self, model: FollowerModel) -> list[int]:
        return self.candidates(model, model.newest_id)

    def check_is_next(self, model: FollowerModel, message: Message) -> None:
        known = self.messages[message.id]
        assert (known.topic, known.to) == (model.topic, message.recipient_key_id)
        assert self.is_addressed(model.key, known.to)
        assert message.id > model.start_id
        after_id = model.newest_id if model.last_id == UNKNOWN else model.last_id
        if model.last_id != UNKNOWN:
            assert message.id > model.last_id
        skipped = [i for i in self.candidates(model, after_id) if i < message.id]
        assert [] == skipped
        model.last_id = message.id
        model.newest_id = max(model.newest_id, message.id)

    @invariant()
    def followers_that_are_behind_take_turns(self) -> None:
        for peer in self.peers.values():
            behind = [f.id for f in peer.following.values() if f.behind]
            assert sorted(behind) == sorted(f.id for f in peer.laggards)
            assert [] == [f.id for f in peer.laggards[1:] if f.reading]
            if peer.laggards and peer.room_bytes > 0:
                assert peer.laggards[0].reading  # none waits needlessly

    @invariant()
    def memory_is_bounded_by_the_room(self) -> None:
        assert 0 == self.drive.broker.dispatch.windows.held_bytes
        for peer in self.peers.values():
            assert peer.room_bytes > -(2 * PAYLOAD_BYTES_MAX + 8)

    @invariant()
    def the_log_keeps_what_followers_miss(self) -> None:
        needed_id = self.drive.broker.needed_id()
        for model in self.models.values():
            if model.last_id != UNKNOWN and (missing := self.missing(model)):
                assert needed_id <= missing[0]

    @invariant()
    def the_broker_knows_exactly_these_followers(self) -> None:
        assert set(self.models) == set(self.drive.broker.followers.by_id)
        listed = [f.id for name in TOPICS for f in self.drive.topic(name).followers]
        assert sorted(self.models) == sorted(listed)
        pending = sum(len(peer.deliveries) for peer in self.peers.values())
        assert self.handed + pending == self.drive.broker.stats.delivered

    def every_follower_gets_everything(self) -> None:
        """Every follower, connected or returning, misses nothing in the end."""
        self.make_room()
        self.work_on_the_log(commits=True, batch_only=False)
        away = [f for f in self.drive.broker.followers.by_id.values() if f.peer is None]
        for number, follower in enumerate(away):
            if follower.id not in self.drive.broker.followers.by_id:
                continue  # another follower with its key has been resumed
            slot = SLOTS + number
            self.peers[slot] = peer_of(follower.principal)
            self.peers[slot].room_bytes = 0
            self.follow(slot, follower.topic.name, follower.key)
        for slot in list(self.peers):
            self.give_room(slot, ROOM_BYTES)
        self.serve_reads(one=False)
        for slot, peer in list(self.peers.items()):
            self.take(slot, len(peer.deliveries))
        for model in self.models.values():
            assert [] == self.missing(model)
        for slot in [slot for slot in self.peers if slot >= SLOTS]:
            self.leave(slot)

    def teardown(self) -> None:
        if hasattr(self, "drive"):
            self.every_follower_gets_everything()


TestFollowers = Followers.TestCase
TestFollowers.settings = hypothesis_settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None
)
