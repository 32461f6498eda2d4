"""Snapshots that are taken over many turns, while everything goes on."""

from random import Random
from typing import Any

import msgspec
import pytest

from braidmq.broker import endings, records, state
from braidmq.broker.policy import FAN_OUT_WITH_ACK, PRIORITY_BASED
from braidmq.broker.settings import Settings
from braidmq.broker.snapshots import Snapshot
from tests.unit.broker.drive import Drive, peer_of, policy_of

NAMES = ["a", "b", "c", "d"]
QUEUES = ["plain", "urgent", "all"]
MODES = {"plain": 0, "urgent": PRIORITY_BASED, "all": FAN_OUT_WITH_ACK}


class Busy:
    """A broker in which anything may happen between two turns of a snapshot."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.batches = 0
        self.drive = Drive(Settings(window=8, offline_us=10**12, max_retries=3))
        self.consumers = [self.drive.subscribe(self.rng.choice(NAMES)) for _ in range(5)]
        self.joined: dict[str, Any] = {}
        self.peers = [peer_of("ada") for _ in range(3)]
        for name in QUEUES:
            self.declare(name)
        for _ in range(60):
            self.act()

    def declare(self, name: str) -> None:
        queue = self.drive.declare(name, policy_of(mode=MODES[name], max_attempts=2))
        self.joined[name] = self.drive.join(queue)

    def act(self) -> None:
        """Do one thing at random."""
        kind = self.rng.randrange(13)
        if kind < 5:
            topic = self.rng.choice([*NAMES, *QUEUES])
            message = self.drive.message(topic)
            message.priority = self.rng.randrange(4)
            self.drive.publish_once(message, str(self.rng.random()))
        elif kind == 5:
            self.drive.commit()
        elif kind == 6:
            self.subscriptions()
        elif kind == 7:
            self.queues()
        elif kind == 8:
            self.drive.advance(self.rng.choice([20_000, 6_000_000, 40_000_000]))
        elif kind == 9:
            self.followers()
        elif kind == 10:
            self.sink()
        else:
            self.settle()

    def sink(self) -> None:
        """Begin a batch, go on with it, or end it."""
        sinks = self.drive.broker.sinks
        if sinks.open is None:
            self.drive.commit()  # no batch begins before the last one's end is committed
            self.batches += 1
            query = self.rng.choice(["q", "r", f"{self.batches:032x}"])
            batch = self.batches if len(query) == 1 else 0
            sinks.begin("ada", query, "", batch, [(bytes(16), self.rng.randrange(3))])
        elif sinks.open.appended < sinks.open.rows:
            sinks.append([("rows", b"x", b"", 1)], self.drive.broker.committed_id, 0)
        else:
            sinks.finish()

    def subscriptions(self) -> None:
        self.drive.commit()
        topic = self.drive.broker.topics.find(self.rng.choice(NAMES))
        if topic is not None and self.rng.random() < 0.2:
            endings.end_topic(self.drive.broker, topic)
            self.consumers = [one for one in self.consumers if not one.subscription.ended]
            self.consumers.append(self.drive.subscribe(self.rng.choice(NAMES)))
        elif self.rng.random() < 0.5:
            self.consumers.append(self.drive.subscribe(self.rng.choice(NAMES)))
        elif len(self.consumers) > 1:
            gone = self.consumers.pop(self.rng.randrange(len(self.consumers)))
            self.drive.broker.unsubscribe(gone)

    def queues(self) -> None:
        name = self.rng.choice(QUEUES)
        queue = self.drive.broker.queues.by_name.get(name)
        if queue is None:
            self.declare(name)
        elif self.rng.random() < 0.3:
            self.drive.broker.queues.purge(queue, self.drive.now_us)
        else:
            self.drive.broker.queues.delete(queue)
            self.joined.pop(name, None)

    def followers(self) -> None:
        broker, now_us = self.drive.broker, self.drive.now_us
        peer, topic = self.rng.choice(self.peers), self.drive.topic(self.rng.choice(NAMES))
        if self.rng.random() < 0.7:
            broker.followers.follow(
                peer, topic, self.rng.choice([b"k" * 32, b"l" * 32]), now_us
            )
        else:
            broker.followers.unfollow(peer, topic)
        peer.deliveries = []

    def settle(self) -> None:
        consumer = self.rng.choice(self.consumers)
        self.drive.commit()
        tag = self.drive.poll_id(consumer)
        if tag and self.rng.random() < 0.7:
            self.drive.ack(consumer, tag)
        for name, joined in list(self.joined.items()):
            for entry in self.drive.taken(joined):
                chance = self.rng.random()
                if entry.consumer is None:
                    continue  # its time is over
                if name in self.drive.broker.queues.by_name and chance < 0.4:
                    self.drive.broker.queues.acknowledge(entry, self.drive.now_us)
                elif chance < 0.5:
                    self.drive.broker.queues.reject(entry, "rejected", self.drive.now_us)

    def facts(self) -> dict[str, Any]:
        """Return everything durable, as a snapshot has it; ranges as the messages outside."""
        _, data = state.snapshot(self.drive.broker, self.drive.now_us)
        found: dict[str, Any] = msgspec.msgpack.decode(data)
        del found["queues_at"]
        expired_us = self.drive.now_us - self.drive.settings.dedup_window_us
        found["dedup"] = list({tuple(row) for row in found["dedup"] if row[0] > expired_us})
        owners = [account_id for account_id, _ in found.pop("accounts")] + [b""]
        for row in found["topics"]:
            row[3] = owners[row[3]]
            row[4] = 0  # any id before its first message is right
        for row in found["queues"]:
            row[5] = owners[row[5]]
        for row in found["subscriptions"]:
            row[3], row[5] = self.open_in(row[1], row[3], row[5])
            row[-1] = 0  # when it was last used is known to a snapshot only
        for row in found["queues"]:
            for number, lane in enumerate(row[4]):
                priority = number if len(row[4]) > 1 else -1
                lane[0], lane[2] = self.open_in(row[1], lane[0], lane[2], priority)
        for row in found["followers"]:
            row[-1], _ = self.open_in(row[1], [[0, row[-1]]], [])
        for section in ("topics", "subscriptions", "queues", "followers", "dedup"):
            found[section].sort()
        return found

    def open_in(
        self, topic: str, ranges: list[Any], attempts: list[Any], priority: int = -1
    ) -> tuple[list[int], list[Any]]:
        """Return the messages of a topic outside of the ranges, and their attempts."""
        log = enumerate(map(records.describe, self.drive.log.records), 1)
        ids = [
            i
            for i, described in log
            if described.topic == topic.encode() and priority in {-1, described.priority}
        ]
        left = [i for i in ids if not any(after < i <= last for after, last in ranges)]
        return left, sorted(pair for pair in attempts if pair[0] in left)


@pytest.mark.parametrize("seed", range(30))
def test_a_snapshot_and_the_records_after_it_are_the_log(seed: int) -> None:
    """However the turns lie: a restart from both finds what one from the log alone finds."""
    busy = Busy(seed)
    drive = busy.drive
    taken = Snapshot(drive.broker, drive.now_us)
    while not taken.go_on(rows_max=1):
        for _ in range(busy.rng.randrange(4)):
            busy.act()
    for _ in range(10):
        busy.act()
    drive.commit()
    drive.restart()
    alone = busy.facts()
    drive.log.snapshots.append((taken.last_id, b"".join(taken.parts())))
    drive.restart()

    assert alone == busy.facts()
    # Retention deletes nothing that is still to be delivered.
    rows = [*alone["subscriptions"], *(lane for row in alone["queues"] for lane in row[4])]
    left = [i for row in rows for part in row if isinstance(part, list) for i in part]
    assert taken.needed_id <= min(
        (i for i in left if isinstance(i, int)), default=taken.needed_id
    )


def test_no_turn_takes_more_than_its_rows() -> None:
    """Also with many messages in memory, and long names."""
    drive = Drive()
    for number in range(300):
        drive.topic(f"{number}".rjust(4_000, "x"))
    for number in range(50):
        drive.declare(f"q{number}", policy_of(mode=PRIORITY_BASED))
        consumer = drive.subscribe("a")
        drive.credit(consumer, 5)
    drive.publish_many("a", 30)
    done = [("q" * 1_000 + str(number), "s" * 1_000, "ada", 1, 1) for number in range(100)]
    drive.broker.sinks.restore(None, done)
    taken = Snapshot(drive.broker, drive.now_us)
    turns = 1
    while not taken.go_on(rows_max=100):
        turns += 1

    rows = 300 * (1 + 4_000 // 256) + 50 * 5 + 50 * 31 + 2 + 100 * (1 + 2_000 // 256)
    assert rows // 200 <= turns <= rows // 50


def test_what_queries_have_done_is_taken_turn_by_turn() -> None:
    """However many there are, and it is what a restart needs."""
    drive = Drive()
    done = [(f"q{number}", "s" * 512, "ada", 1, number) for number in range(100)]
    drive.broker.sinks.restore(None, done)
    taken = Snapshot(drive.broker, drive.now_us)
    turns = 1
    while not taken.go_on(rows_max=30):
        turns += 1
    drive.log.snapshots.append((taken.last_id, b"".join(taken.parts())))
    drive.restart()
    sinks = drive.broker.sinks

    assert 100 * 3 // 30 <= turns <= 100 * 3 // 30 + 5
    assert done == [(q, s, *(sinks.last_done(q, s) or ())) for q, s in sinks.queries()]
