"""The simulation with queues: Vibe clients, and some Blip clients on the same topics.

    world = QueueWorld(seed=7)
    world.run(steps=500)
    world.restart(world.disk.crash(world.rng))     # power cut
    assert [] == world.drain()

In addition to the events of :class:`World`, queues are declared, deleted and purged, and their
dead letters replayed. After each start the broker's own counts are compared with the log.
"""

from collections.abc import Callable
from typing import Final

from braidmq.base.errors import BraidError
from braidmq.broker.delivery.queue import Lane
from braidmq.server.strands.vibe.connection import VibeConnection
from braidmq.server.strands.vibe.gate import VibeOptions
from braidmq.testing import ledger as kinds
from braidmq.testing.clients import Client, Consumer, Plan, Publisher
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk
from braidmq.testing.ledger import DEAD_LETTER_PREFIX, Ledger, Violation, check
from braidmq.testing.queue_books import check_queues
from braidmq.testing.simulation import MemoryWire, World
from braidmq.testing.vibe_clients import (
    LETTERS,
    QUEUES,
    REPLAYED,
    SILENT,
    WATCHERS,
    QueuePlan,
    QueueScene,
    VibeConsumer,
    VibePublisher,
)
from braidmq.wire.vibe import frames, messages

TAKE_WITHIN_S: Final = 0.49
"""Less than the shortest redelivery delay, 300 ms + 200 ms."""

VIBE_OPTIONS: Final = VibeOptions(
    max_message_bytes=1 << 20, auto_create=True, version="simulated"
)

_REPLAYED_MAX: Final = 3
_READ_MAX: Final = 1 << 30
MISCOUNTED: Final = "miscounted"

_PUBLISHER: Final = "publisher"
_BLIP_PUBLISHER: Final = "Blip publisher"
_OPERATOR: Final = "operator"
_Role = str | Plan | QueuePlan


class VibeWire(MemoryWire):
    """The bytes of a Vibe connection, without a socket."""

    def __init__(self) -> None:
        super().__init__()
        self.body_sink: Callable[[messages.Body], None] | None = None
        self._bodies = frames.FrameDecoder()
        self._bodies.dialect = frames.DIALECT_1_1

    def write(self, data: bytes) -> None:
        """Hand every whole body to the client."""
        self._bodies.receive_data(data)
        while (body := self._bodies.next_body()) is not None:
            assert self.body_sink is not None
            self.body_sink(messages.read_body(body))


class QueueWorld(World):
    """A world whose clients use queues, mostly over Vibe."""

    scene: QueueScene

    def __init__(
        self,
        seed: int,
        *,
        disk: FakeDisk | None = None,
        clock: FakeClock | None = None,
        parent: World | None = None,
    ) -> None:
        self.miscounts: list[Violation] = []
        self._purges: list[int] = []  # ids of records whose commit confirms a purge
        self.replays: set[str] = set()
        super().__init__(seed, disk=disk, clock=clock, parent=parent)
        if isinstance(parent, QueueWorld):
            self.scene.repeatable.extend(parent.scene.repeatable)
            self._end_replays(parent.replays)

    def new_scene(self, ledger: Ledger) -> QueueScene:
        """Return the shared state of the clients."""
        return QueueScene(
            self.rng,
            ledger,
            now_s=lambda: self.clock.now_us() / 1e6,
            take_within_s=TAKE_WITHIN_S,
        )

    def boot(self) -> None:
        """Start the broker, and compare its counts with the log."""
        self._purges = []
        self._end_replays(self.replays)
        self.scene.ledger.note(kinds.RESTART)
        super().boot()
        self.count()

    def _end_replays(self, replays: set[str]) -> None:
        # Letters whose replay was not committed are still there: record that again.
        for name in sorted(replays):
            self.scene.ledger.note(kinds.REPLAYING, name)
        self.replays = set()

    def count(self) -> None:
        """Compare each queue's message count with the log."""
        for queue in self.engine.broker.queues.by_name.values():
            for lane in queue.durable_channels():
                settled = lane.position.settled
                is_lane = isinstance(lane, Lane)
                assert settled is None or lane.position.behind or not is_lane
                if settled is None:
                    continue
                found = self.wal.read(
                    settled.floor,
                    topic=queue.topic.raw,
                    up_to=queue.topic.last_id,
                    count_max=_READ_MAX,
                    bytes_max=_READ_MAX,
                    priority=lane.priority if isinstance(lane, Lane) else -1,
                )
                actual = sum(not settled.contains(number) for number, _ in found.records)
                if actual != lane.unsettled:
                    text = f"{queue.topic.name}: {lane.unsettled}, and {actual} are in the log"
                    self.miscounts.append(Violation(MISCOUNTED, text))

    def fail(self, error: BraidError) -> None:
        """Record that the log has failed; the daemon would exit now."""
        super().fail(error)
        self.scene.ledger.note(kinds.FAILED)

    # Single steps.

    def step(self) -> None:
        """Run one random event."""
        super().step()
        self._note_ends()

    def _note_ends(self) -> None:
        while self._purges and self._purges[0] <= self.engine.broker.committed_id:
            self._purges.pop(0)
            if not self._purges:  # the ledger knows the newest one
                self.scene.ledger.note(kinds.PURGED, SILENT.name)
        queues = self.engine.broker.queues.by_name
        over = {
            name for name in self.replays if name not in queues or not queues[name].replaying
        }
        self.replays -= over
        for name in sorted(over):
            self.scene.ledger.note(kinds.REPLAYING, name)

    def roles(self) -> list[_Role]:
        """Return who may act now: Blip's dead letters need consumers first."""
        letters = [plan for plan in WATCHERS if plan.topic.startswith(DEAD_LETTER_PREFIX)]
        if not all(plan in self.scene.subscriptions for plan in letters):
            return [*letters]
        roles: list[_Role] = [_PUBLISHER] * 4
        roles += [_BLIP_PUBLISHER, _OPERATOR, _OPERATOR]
        roles += WATCHERS
        for plan in (*QUEUES, *LETTERS):
            roles += [plan] * plan.consumers
        return roles

    def act(self) -> None:
        """Let a client or the operator act, or connect a new client."""
        role = self.rng.choice(self.roles())
        if role == _OPERATOR:
            self._operate()
            return
        found = [client for client in self.clients if _role_of(client) == role]
        wanted = 1 if isinstance(role, str | Plan) else role.consumers
        if len(found) < wanted:
            self.join_as(role)
            return
        client = self.rng.choice(found)
        if isinstance(client, Publisher):
            names = [plan.name for plan in self.scene.publishable()]
            client.publish(self.rng.choices(names, k=self.rng.randint(1, 3)))
        else:
            client.act()

    def _operate(self) -> None:
        """Purge a queue, or replay some dead letters."""
        queues = self.engine.broker.queues
        now_us = self.clock.now_us()
        name = self.rng.choice([SILENT.name, REPLAYED])
        queue = queues.by_name.get(name)
        if queue is None:
            return
        if name == SILENT.name:
            self.scene.ledger.note(kinds.PURGING, name)
            queues.purge(queue, now_us)
            self._purges.append(self.engine.broker.barrier())
        else:
            self.scene.ledger.note(kinds.REPLAYING, name)
            self.replays.add(name)
            queues.replays.replay(queue, self.rng.randint(1, _REPLAYED_MAX), now_us)
        self.engine.end_turn()

    def join_as(self, role: _Role) -> Client:
        """Connect a client."""
        if isinstance(role, Plan):
            return self.join(role)
        if role == _BLIP_PUBLISHER:
            return self.join(None)
        wire = VibeWire()
        name = self.new_name()
        connection = VibeConnection(self.engine, wire, self.limits, VIBE_OPTIONS, self._names)
        client: VibePublisher | VibeConsumer
        if isinstance(role, QueuePlan):
            client = VibeConsumer(self.scene, name, wire.to_server.append, role)
        else:
            client = VibePublisher(self.scene, name, wire.to_server.append)
        wire.body_sink = client.receive
        self.admit(client, wire, connection)
        return client

    # The end.

    def verdict(self) -> list[Violation]:
        """Return the violations of the ledger, and the broker's wrong counts."""
        ledger = self.scene.ledger
        for plan in (*QUEUES, *LETTERS):
            ledger.note(kinds.QUEUE_DRAINED, plan.name)
        return [*check(ledger), *check_queues(ledger, lossless=True), *self.miscounts]

    def empty(self) -> None:
        """Consume everything, after publishes that prove that the broker still works."""
        self.clear()
        before = self.scene.confirmations
        publisher = self.join(None)
        assert isinstance(publisher, Publisher)
        plans = self.scene.publishable()
        publisher.publish([plan.name for plan in plans])
        modern = self.join_as(_PUBLISHER)
        assert isinstance(modern, VibePublisher)
        modern.publish(plans)
        self.settle()
        answered = self.scene.confirmations - before
        assert answered == 1 + len(plans), "the broker no longer confirms"
        drainers = [self.join(plan) for plan in list(self.scene.subscriptions)]
        for plan in (*QUEUES, *LETTERS):
            drainers += [self.join_as(plan) for _ in range(plan.consumers)]
        self.settle()
        self.drain_by(drainers)

    def drain_once(self, drainer: Client) -> int:
        """Consume what is available now; return the number of deliveries."""
        if isinstance(drainer, Consumer):
            return super().drain_once(drainer)
        assert isinstance(drainer, VibeConsumer)
        before = drainer.acknowledged
        drainer.care = 1.0
        drainer.acknowledge_all()
        self.settle()
        return drainer.acknowledged - before


def _role_of(client: Client) -> _Role:
    if isinstance(client, VibeConsumer | Consumer):
        return client.plan
    return _PUBLISHER if isinstance(client, VibePublisher) else _BLIP_PUBLISHER
