"""The whole broker in one thread: real engine, connections, broker and log on fakes, one seed.

A :class:`World` owns a disk, a clock, a ledger and clients that speak Blip over in-memory
wires; `queue_simulation` adds clients that speak Vibe. Each :meth:`World.step` is one event
whose timing would be up to a real machine: bytes arrive, the log writes, reads or reports, a
client acts, time passes, a connection breaks. The same seed replays the same events. Not
simulated are the threads of `server.engine.durability` and real sockets: see tests/chaos.

    world = World(seed=7)
    world.run(steps=500)
    world.restart(world.disk.crash(world.rng))     # power cut
    assert [] == world.drain()                     # the checker's violations
"""

from collections import deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Final, Self

from braidmq.base.errors import BraidError, LogError, LogFullError, LogPoisonedError
from braidmq.broker.authorize import Principal
from braidmq.broker.delivery.dispatch import ReadRequest
from braidmq.broker.delivery.recounts import Recount
from braidmq.server.config.config import Config
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.counting import Counting
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import recover
from braidmq.server.strands.blip import BlipConnection
from braidmq.testing.clients import BlipClient, Client, Consumer, Plan, Publisher, Scene
from braidmq.testing.clock import FakeClock
from braidmq.testing.disk import FakeDisk
from braidmq.testing.ledger import Ledger, Violation, check
from braidmq.wal.disk import Files
from braidmq.wal.floor import Floor
from braidmq.wal.keeping import Keeper
from braidmq.wal.wal import Wal
from braidmq.wire.blip import frames

BACKOFF_MAX_S: Final = 1.0
SETTINGS: Final[dict[str, object]] = {
    "dev": True,
    "wal": {"retention_hours": 0.0005},
    "delivery": {
        "max_retries": 3,
        "retry_backoff_ms": 250,
        "retry_backoff_max_ms": int(BACKOFF_MAX_S * 1000),
        "window": 8,
    },
    "vibe": {"ack_timeout_ms": 300, "retry_backoff_ms": 200, "retry_backoff_max_ms": 800},
}
"""Small windows, few retries, short segments, so that a short run exceeds all of them."""

SEGMENT_BYTES: Final = 4096
"""Smaller than the configuration allows."""

PUBLISHERS: Final = 2
AT_ONCE_MAX: Final = 6
"""Chunks of data, or jobs of the log, that are handled in one step."""

SPLIT_CHANCE: Final = 0.3
_HAPPENINGS: Final = ("carry", "work", "act", "time", "chores", "break")
_WEIGHTS: Final = (30, 30, 30, 5, 4, 1)
DRAIN_ROUNDS_MAX: Final = 400


class InlineLog:
    """A log for the engine that does its work only when told to.

    `jobs` are the writer's, `reads` the reader's, `reports` their results for the engine.
    """

    def __init__(
        self, wal: Wal, files: Files, reports: Engine, now_us: Callable[[], int]
    ) -> None:
        self._wal = wal
        self._keeper = Keeper(wal, files, needed_id=reports.broker.needed_id())
        self._reports = reports
        self._now_us = now_us
        self.jobs: deque[Callable[[], None]] = deque()
        self.reads: deque[Callable[[], None]] = deque()
        self.reports: deque[Callable[[], None]] = deque()

    def append(self, bodies: list[bytes], *, urgent: bool) -> None:
        """Append a batch and commit it."""

        def job() -> None:
            self._wal.append(bodies, urgent=urgent)
            up_to = self._wal.commit(self._now_us())
            self.reports.append(lambda: self._reports.committed(up_to))

        self.jobs.append(job)

    def read(self, request: ReadRequest) -> None:
        """Read backlog back from the log."""

        def job() -> None:
            try:
                found = self._wal.read(
                    request.after_id,
                    topic=request.topic,
                    up_to=request.up_to,
                    count_max=request.count_max,
                    bytes_max=request.bytes_max,
                    priority=request.priority,
                )
            except LogFullError:
                self.reads.append(job)  # there is no descriptor or no memory for it now
                return
            lost = 0 if found.lost is None else found.lost[1] - found.lost[0] + 1
            self.reports.append(
                lambda: self._reports.backlog_read(
                    request, found.records, reached_id=found.reached_id, lost_count=lost
                )
            )

        self.reads.append(job)

    def count(self, wanted: list[Recount]) -> None:
        """Count messages again."""
        counting = Counting(self._wal, wanted)

        def job() -> None:
            try:
                is_done = counting.go_on()
            except LogFullError:
                is_done = False
            if not is_done:
                self.reads.append(job)
                return
            counts = counting.counts()
            self.reports.append(lambda: self._reports.recounted(counts))

        self.reads.append(job)

    def save(
        self,
        last_id: int,
        parts: list[bytes],
        needed_id: int,
        *,
        wall_ahead_us: int = 0,  # noqa: ARG002 - no clock is set wrong here
    ) -> None:
        """Write a snapshot, then delete the segments that are no longer needed."""

        def job() -> None:
            now_us = self._now_us()
            self._retained(
                self._keeper.keep(last_id, parts, needed_id=needed_id, now_us=now_us)
            )

        self.jobs.append(job)

    def make_room(self) -> None:
        """Delete what is not needed, and try to restore the reserve."""

        def job() -> None:
            self._retained(self._keeper.retain(self._now_us()))
            if self._wal.refill_reserve():
                self.reports.append(self._reports.room_made)

        self.jobs.append(job)

    def _retained(self, forced: Floor | None) -> None:
        floor_id = self._wal.first_id
        self.reports.append(lambda: self._reports.retained(floor_id))
        if forced is not None:
            self.reports.append(lambda: self._reports.forced_out(forced.first_id))

    def do(self, jobs: deque[Callable[[], None]]) -> None:
        """Do the first of *jobs*; report a failure."""
        try:
            jobs.popleft()()
        except LogError as error:
            failure: BraidError = error
            self.reports.append(lambda: self._reports.log_failed(failure))
        except OSError as error:
            poisoned = LogPoisonedError("write", str(error))
            self.reports.append(lambda: self._reports.log_failed(poisoned))


class MemoryWire:
    """The bytes of a connection, without a socket; whole frames are handed on at once."""

    def __init__(self) -> None:
        self.sink: Callable[[int, int, bytes], None] | None = None
        self._decoder = frames.FrameDecoder()
        self.to_server: deque[bytes] = deque()
        self.paused = False
        self.closed = False

    def write(self, data: bytes) -> None:
        """Hand every whole frame to the client."""
        self._decoder.receive_data(data)
        while kind := self._decoder.advance():
            assert self.sink is not None
            self.sink(kind, self._decoder.correlation_id, self._decoder.payload())

    def unsent_bytes(self) -> int:
        """Return 0: all output is taken at once."""
        return 0

    def pause_reading(self) -> None:
        """Deliver no more data for a while."""
        self.paused = True

    def resume_reading(self) -> None:
        """Deliver data again."""
        self.paused = False

    def close(self) -> None:
        """Record that the connection is to be closed."""
        self.closed = True

    def abort(self) -> None:
        """Record that the connection is closed."""
        self.closed = True

    def greeted(self, name: str) -> bool:
        """Do nothing: there is no handshake timeout here, and a place for each."""
        del name
        return True


class _InOrder(set[Connection]):
    """A set iterated in insertion order: memory addresses must not influence a replay."""

    def __init__(self, order: dict[Connection, None]) -> None:
        super().__init__()
        self._order = order

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._order))


class World:
    """A broker and its clients, all driven by one seed; with a *parent*, it continues that."""

    scene: Scene

    def __init__(
        self,
        seed: int,
        *,
        disk: FakeDisk | None = None,
        clock: FakeClock | None = None,
        parent: "World | None" = None,
    ) -> None:
        self.rng = Random(seed)
        self.disk = disk if disk is not None else FakeDisk()
        self.clock = clock if clock is not None else FakeClock()
        self.life = 0
        self.scene = self.new_scene(Ledger() if parent is None else parent.scene.ledger.fork())
        if parent is not None:
            self.clock = FakeClock(parent.clock.now_us())
            self.life = parent.life
            self.scene.subscriptions.update(parent.scene.subscriptions)
        self.config = _config()
        self.limits = Limits(output_buffer_bytes=1 << 20, messages_per_s=0)
        self.failure: BraidError | None = None
        self._names = 0
        self.clients: list[Client] = []
        self.wires: dict[Client, tuple[MemoryWire, Connection]] = {}
        self.connections: dict[Connection, None] = {}
        self._principal = Principal("sim", publish=["*"], subscribe=["*"], admin=True)
        self.boot()

    def new_scene(self, ledger: Ledger) -> Scene:
        """Return the shared state of the clients."""
        return Scene(self.rng, ledger)

    def heir(self, disk: FakeDisk, seed: int) -> Self:
        """Return an independent world that continues from here on *disk*."""
        return type(self)(seed, disk=disk, parent=self)

    # Starts and restarts.

    def boot(self) -> None:
        """Start the broker on the disk's present contents.

        Raises:
            BraidError: It refuses to start.
        """
        self.life += 1
        self.clients = []
        self.wires = {}
        self.connections = {}
        self.failure = None
        self.disk.lock("LOCK")
        found = recover(self.disk, self.config, now_us=self.clock.now_us(), clock=lambda: 0.0)
        self.wal = found.wal
        self.engine = Engine(
            found.broker,
            now_us=self.clock.now_us,
            find_principal=lambda _: self._principal,
            wake_later=lambda connection, _: connection.earn(),
            fail=self.fail,
        )
        self.engine.connections = _InOrder(self.connections)
        self.log = InlineLog(found.wal, self.disk, self.engine, self.clock.now_us)
        refusal = "" if found.wal.has_room else str(LogFullError())
        self.engine.start(self.log, refusal=refusal)

    def restart(self, disk: FakeDisk) -> None:
        """Drop the process and start a new one on *disk*."""
        self.disk = disk
        self.boot()

    def fail(self, error: BraidError) -> None:
        """Record that the log has failed."""
        self.failure = error

    # Single steps.

    def run(self, steps: int) -> None:
        """Run *steps* steps, or fewer if the log fails."""
        for _ in range(steps):
            if self.failure is not None:
                return
            self.step()

    def step(self) -> None:
        """Run one random event."""
        happening = self.rng.choices(_HAPPENINGS, _WEIGHTS)[0]
        if happening == "carry":
            for _ in range(self.rng.randint(1, AT_ONCE_MAX)):
                self._carry()
        elif happening == "work":
            for _ in range(self.rng.randint(1, AT_ONCE_MAX)):
                self._work()
        elif happening == "act":
            self.act()
        elif happening == "time":
            self.pass_time(self.rng.choice((0.01, 0.1, 0.3, 2.0)))
        elif happening == "chores":
            self.engine.look_for_room()
            self.engine.take_snapshot()
        elif self.clients:
            self.break_connection(self.rng.choice(self.clients))

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, and let the broker do what is due."""
        self.clock.advance(seconds)
        self.engine.tick()

    def break_connection(self, client: Client) -> None:
        """Break a connection; what was in flight to the broker is lost."""
        self.clients.remove(client)
        _, connection = self.wires.pop(client)
        self.connections.pop(connection)
        connection.lost()

    def settle(self) -> None:
        """Carry data and do the log's work until nothing is left."""
        while self.failure is None and (self._carry() or self._work()):
            pass

    def _carry(self) -> bool:
        waiting = [
            (wire, connection)
            for wire, connection in self.wires.values()
            if wire.to_server and not wire.paused
        ]
        if not waiting:
            return False
        wire, connection = self.rng.choice(waiting)
        data = wire.to_server.popleft()
        if len(data) > 1 and self.rng.random() < SPLIT_CHANCE:  # as TCP may cut it, anywhere
            cut = self.rng.randrange(1, len(data))
            wire.to_server.appendleft(data[cut:])
            data = data[:cut]
        connection.receive(data)
        return True

    def _work(self) -> bool:
        # Writer, reader and event loop are threads: each keeps its own order, and any of them
        # may be the next to run.
        log = self.log
        queues = [queue for queue in (log.jobs, log.reads, log.reports) if queue]
        if not queues:
            return False
        queue = self.rng.choice(queues)
        if queue is log.reports:
            queue.popleft()()
        else:
            log.do(queue)
        return True

    def act(self) -> None:
        """Let a client act, or connect a new one."""
        role = self.rng.choice(self.scene.roles())
        found = [c for c in self.clients if getattr(c, "plan", None) is role]
        wanted = PUBLISHERS if role is None else role.consumers
        if role is not None and role not in self.scene.subscriptions:
            wanted = 1  # only one may create it
        if len(found) < wanted:
            self.join(role)
        else:
            self.rng.choice(found).act()

    def join(self, role: Plan | None) -> Client:
        """Connect a client: a consumer of *plan*, or a publisher."""
        wire = MemoryWire()
        connection = BlipConnection(self.engine, wire, self.limits)
        name = self.new_name()
        client: BlipClient
        if role is None:
            client = Publisher(self.scene, name, wire.to_server.append)
        else:
            client = Consumer(self.scene, name, wire.to_server.append, role)
        wire.sink = client.receive
        self.admit(client, wire, connection)
        return client

    def new_name(self) -> str:
        """Return a name that no connection has used."""
        self._names += 1
        return f"{self.life}.{self._names}"

    def admit(self, client: Client, wire: MemoryWire, connection: Connection) -> None:
        """Add a client and its wire."""
        self.connections[connection] = None
        self.wires[client] = (wire, connection)
        self.clients.append(client)

    # The end.

    def drain(self) -> list[Violation]:
        """Consume everything, restart, consume again; return the violations.

        The second time there must be nothing: settled messages stay settled.
        """
        self.empty()
        self.restart(self.disk.kill())
        self.empty()
        for subscription in self.scene.subscriptions.values():
            self.scene.ledger.drained(subscription)
        return self.verdict()

    def verdict(self) -> list[Violation]:
        """Return the violations that the ledger shows."""
        return check(self.scene.ledger)

    def clear(self) -> None:
        """Disconnect all clients."""
        for client in list(self.clients):
            self.break_connection(client)
        self.settle()

    def empty(self) -> None:
        """Consume everything, after a publish that proves that the broker still works."""
        self.clear()
        publisher = self.join(None)
        assert isinstance(publisher, Publisher)
        before = self.scene.confirmations
        publisher.publish(["orders", "events"])
        self.settle()
        assert self.scene.confirmations == before + 1, "the broker no longer confirms"
        drainers = [self.join(plan) for plan in list(self.scene.subscriptions)]
        self.drain_by(drainers)

    def drain_by(self, drainers: list[Client]) -> None:
        """Let *drainers* consume until nothing arrives."""
        quiet = 0
        for _ in range(DRAIN_ROUNDS_MAX):
            taken = sum(self.drain_once(drainer) for drainer in drainers)
            quiet = 0 if taken else quiet + 1
            if quiet > 1:  # and not at once: the pause in between makes redeliveries due
                return
            if not taken:
                self.pass_time(2 * BACKOFF_MAX_S)
                self.settle()
        raise AssertionError("deliveries never end")

    def drain_once(self, drainer: Client) -> int:
        """Consume what is available now; return the number of deliveries."""
        assert isinstance(drainer, Consumer)
        if not drainer.subscription:
            return 0
        drainer.care = 1.0
        before = drainer.delivered
        drainer.ask(8)
        drainer.fence()
        self.settle()
        drainer.acknowledge_all()
        self.settle()
        return drainer.delivered - before


def _config() -> Config:
    config = Config.model_validate(SETTINGS)
    wal = config.wal.model_copy(update={"segment_bytes": SEGMENT_BYTES})
    return config.model_copy(update={"wal": wal})


def survives(disk: FakeDisk, world: World, seed: int) -> list[Violation]:
    """Return the violations of a broker started on *disk*, given the ledger of *world*."""
    return world.heir(disk, seed).drain()
