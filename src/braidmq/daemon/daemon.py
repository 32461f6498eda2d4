"""The daemon: start everything in order, and stop it in order.

lock the data directory | HTTP (not ready) | bind | recover | accept | ready file
... a signal, or the log fails ...
accept no more | let acknowledgements arrive | commit | snapshot | close
"""

import asyncio
import json
import os
import time
from collections.abc import Iterator
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from braidmq.admin.http.app import build_app
from braidmq.admin.http.server import AdminServer
from braidmq.admin.status import Status
from braidmq.base.errors import BraidError, ConfigError
from braidmq.broker.broker import Broker
from braidmq.daemon.telemetry import Telemetry
from braidmq.server.access.keys import KeyRing
from braidmq.server.access.users import Users
from braidmq.server.config.config import DEV_PRINCIPAL, Config, ListenerConfig, VibeConfig
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.durability import Durability
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import Recovered, recover
from braidmq.server.engine.ticker import Clock, SystemClock, Ticker
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.listeners import (
    ConnectionQuota,
    Listener,
    MakeConnection,
    TcpListener,
)
from braidmq.server.strands.qumbed.listener import QumbedListener
from braidmq.server.strands.qumbed.mdns import Announcer
from braidmq.server.strands.vibe.connection import VibeConnection
from braidmq.server.strands.vibe.gate import VibeOptions
from braidmq.transport.binding import shown
from braidmq.transport.tcp import TcpWire
from braidmq.wal.disk import Disk
from braidmq.wal.opening import Watch, unwatched
from braidmq.wal.options import FsyncPolicy

if TYPE_CHECKING:
    from braidmq.server.flight.listener import FlightListener
    from braidmq.server.sink.sink import Sink
    from braidmq.server.sink.stages import Stages

LOCK_PATH: Final = "LOCK"
RUN_FILE: Final = "run.json"

SNAPSHOT_RECORDS: Final = 1_000_000
"""Records after which a snapshot is due, however recent the last: a start replays them."""

LAST_REPLIES_S: Final = 0.25
"""How long the last replies may take to leave; a peer that does not read them loses them."""

_log = structlog.get_logger(__name__)


class Daemon:
    """One broker with its listeners, on the running event loop."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock | None = None,
        mdns: bool = False,
        watch: Watch = unwatched,
    ) -> None:
        self._config = config
        self._watch = watch  # follows recovery, on recovery's thread
        self._given_clock = clock
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._loop = asyncio.get_running_loop()
        self._files = Disk(config.data_dir)
        self._is_locked = False
        self._keys = KeyRing(config.auth.keys, config.dev)
        self.status = Status(config, self._keys, self._files, now_us=self._clock.now_us)
        self.addresses = self.status.addresses
        self.addresses.update(dict.fromkeys(("blip", "vibe", "qumbed", "http", "flight")))
        self._admin: AdminServer | None = None
        self._qumbed: QumbedListener | None = None
        self._flight: FlightListener | None = None
        self._mdns = Announcer(config.qumbed.host) if mdns else None
        self._users: Users | None = None
        self._durability: Durability | None = None
        self._ticker: Ticker | None = None
        self._telemetry = Telemetry(os.environ)
        self._stages: Stages | None = None
        self._sink: Sink | None = None
        self._snapshot_due_s = 0.0
        self._snapshot_id = 0
        self.ended = asyncio.Event()  # the log failed
        self.failure: BraidError | None = None

    # Start.

    async def start(self) -> None:
        """Recover the log, then accept connections.

        The ports are bound before recovery, so that an address in use is reported at once and
        not after minutes; connections are accepted after it.

        Raises:
            BraidError: The broker cannot start; `exit_code` is that of the process.
        """
        self._files.make_dir("")
        self._files.lock(LOCK_PATH)
        self._is_locked = True
        await self._start_admin()
        self._bind()
        # On a thread, so that the health pages answer meanwhile.
        engine = self._start_engine(await asyncio.to_thread(self._recover))
        self._start_sink(engine.broker)
        if self._flight is not None:
            assert self._stages is not None
            assert self._sink is not None
            self._flight.attach(self.status.cursors, self._stages, self._sink)
        for listener in self.status.listeners:
            await listener.start(engine)
        if self._mdns is not None and self._qumbed is not None:
            port = int(self._qumbed.address.rpartition(":")[2])
            key = self._qumbed.gateway_public_key
            await self._mdns.start(port, key, self._announced_topics(engine))
        write_atomically(self._config.data_dir / RUN_FILE, json.dumps(self.ready_facts()))

    async def _start_admin(self) -> None:
        http = self._config.http
        if not http.enabled:
            return
        self._admin = AdminServer(
            build_app(self.status, loopback=http.loopback),
            host=http.host,
            port=http.port,
            tls_cert=http.tls_cert,
            tls_key=http.tls_key,
        )
        self.status.numbers.start()
        self.addresses["http"] = shown(*await self._admin.start())

    def _bind(self) -> None:
        config = self._config
        limits = config.limits
        quota = ConnectionQuota(limits)
        strands: list[tuple[str, ListenerConfig, MakeConnection]] = [
            ("blip", config.blip, BlipConnection),
            ("vibe", config.vibe, _vibe_connections(config.vibe)),
        ]
        for strand, section, make in strands:
            if section.enabled:
                self._listen(TcpListener(strand, section, limits, quota=quota, make=make))
        if config.qumbed.enabled:
            self._qumbed = QumbedListener(
                config.qumbed, limits, quota=quota, named=self._keys.named
            )
            self._listen(self._qumbed)
            self._qumbed.prepare(self._files, config.data_dir, config.schemas_dir)
        if config.flight.enabled:
            self._bind_flight()

    def _bind_flight(self) -> None:
        config = self._config
        try:
            from braidmq.server.flight.listener import FlightListener  # noqa: PLC0415 - takes memory
        except ModuleNotFoundError as error:
            problem = f"needs {error.name}: pip install braidmq[columnar], or turn it off"
            # An operator who configured it wants it. By default it is on, but optional.
            if "flight" in config.model_fields_set:
                raise ConfigError("flight", problem) from None
            _log.warning("flight is off: it " + problem)
            return
        self._flight = FlightListener(config.flight, config.data_dir, self._keys.find)
        self._listen(self._flight)

    def _listen(self, listener: Listener) -> None:
        self.status.listeners.append(listener)
        self.addresses[listener.strand] = listener.address

    def _recover(self) -> Recovered:
        started = time.monotonic()
        found = recover(
            self._files,
            self._config,
            now_us=self._clock.now_us(),
            clock=time.perf_counter,
            watch=self._watch,
        )
        self.status.recovery_seconds = time.monotonic() - started
        return found

    def _start_engine(self, found: Recovered) -> Engine:
        broker = found.broker
        if self._given_clock is None:
            # Only recovery knows the newest time in the log, below which the clock must not be.
            self._clock = SystemClock(broker.latest_us)
        engine = Engine(
            broker,
            now_us=self._clock.now_us,
            find_principal=self._keys.find,
            wake_later=self._wake_later,
            fail=self._fail,
        )
        self._users = Users(
            self._files,
            reserved=[key.name for key in self._config.auth.keys] + [DEV_PRINCIPAL],
            now_us=self._clock.now_us,
            post=self._loop.call_soon_threadsafe,
        )
        engine.users = self._users
        policy = FsyncPolicy.parse(self._config.wal.fsync)
        self._durability = Durability(
            found.wal,
            self._files,
            engine,
            now_us=self._clock.now_us,
            sync_interval_s=policy.interval_ms / 1000,
        )
        self._durability.start()
        engine.start(self._durability)
        self._ticker = Ticker(
            self._clock,
            next_deadline_us=broker.next_deadline_us,
            tick=engine.tick,
            chores=self._do_chores,
        )
        engine.rearm = self._ticker.rearm
        self._ticker.start()
        self._snapshot_due_s = self._loop.time() + self._config.wal.snapshot_interval_s
        self._snapshot_id = broker.committed_id
        self._telemetry.start(engine)
        # Last: once the status has them, HTTP requests use the engine and the log.
        self.status.engine = engine
        self.status.wal = found.wal
        _log_recovery(found, self.status.recovery_seconds)
        return engine

    def _start_sink(self, broker: Broker) -> None:
        # Also with Flight off: a batch may be half committed, or stages may be left to delete.
        is_open = broker.sinks.open is not None
        if not (self._config.flight.enabled or is_open or self._files.list_dir("stages")):
            return
        try:
            from braidmq.server.sink.sink import Sink  # noqa: PLC0415 - takes memory
            from braidmq.server.sink.stages import Stages  # noqa: PLC0415 - as above
        except ModuleNotFoundError as error:
            if is_open:
                _log.warning("a sink's batch cannot be completed: install " + str(error.name))
            return
        self._stages = Stages(self._files, now_us=self._clock.now_us)
        self._sink = Sink(lambda: self.status.engine, lambda: self.status.wal, self._stages)
        self._sink.start()

    # While it runs.

    @property
    def page(self) -> str | None:
        """The dashboard's URL, or None if HTTP is off."""
        address = self.addresses["http"]
        scheme = "https" if self._config.http.tls_cert else "http"
        return None if address is None else f"{scheme}://{address}/"

    def ready_facts(self) -> dict[str, object]:
        """Return the contents of the ready file."""
        qumbed = self._qumbed
        return {
            **self.addresses,
            "pid": os.getpid(),
            "qumbed_fingerprint": None if qumbed is None else qumbed.fingerprint,
            "gateway_public_key": None if qumbed is None else qumbed.gateway_public_key.hex(),
        }

    def look_at_clock(self) -> None:
        """Do what is due, after a test has moved the clock."""
        if self.status.engine is not None:
            self.status.engine.tick()

    def _announced_topics(self, engine: Engine) -> Iterator[str]:
        # With authentication on, topic names are not for every host on the network.
        if self._config.qumbed.auth == "none":
            return (topic.name for topic in engine.broker.topics.all())
        return iter(())

    def _do_chores(self) -> None:
        engine = self.status.engine
        if engine is None or self._durability is None or engine.failed is not None:
            return
        engine.look_for_room()
        for listener in self.status.listeners:
            listener.close_idle()
        if self._mdns is not None:
            self._mdns.update(self._announced_topics(engine))
        records = engine.broker.committed_id - self._snapshot_id
        if self._loop.time() >= self._snapshot_due_s or records >= SNAPSHOT_RECORDS:
            self._snapshot_due_s = self._loop.time() + self._config.wal.snapshot_interval_s
            self._snapshot_id = engine.broker.committed_id
            engine.take_snapshot()
        self._durability.scrub()

    def _wake_later(self, connection: Connection, delay_us: int) -> None:
        def wake() -> None:
            connection.earn()
            if self.status.engine is not None:
                self.status.engine.end_turn()

        self._loop.call_later(delay_us / 1_000_000, wake)

    def _fail(self, error: BraidError) -> None:
        _log.error("the log failed", reason=str(error))
        self.failure = error
        self.ended.set()

    # Stop.

    async def stop(self) -> None:
        """Stop in order, also when only a part was started or the log has failed."""
        engine = self.status.engine
        if self._mdns is not None:
            await self._mdns.stop()
        for listener in self.status.listeners:
            listener.stop_accepting()
        if engine is not None and engine.failed is None:
            await self._drain(engine)
        if self._sink is not None:
            await self._sink.stop()
        await self._close_connections(engine)
        if self._ticker is not None:
            self._ticker.stop()
        # HTTP answers until here, and its requests still read users and the log.
        self.status.numbers.stop()
        if self._admin is not None:
            await self._admin.stop()
        if self._users is not None:
            self._users.stop()
            await asyncio.to_thread(self._users.close)
        # The log closes after everything that can still write to it.
        if self._durability is not None:
            self._durability.stop_reading()
            await asyncio.to_thread(self._durability.close)
        await self._telemetry.stop()
        if self._is_locked:  # else the files belong to another broker
            (self._config.data_dir / RUN_FILE).unlink(missing_ok=True)
            self._files.unlock(LOCK_PATH)
            self._is_locked = False

    async def _drain(self, engine: Engine) -> None:
        engine.drain()
        await engine.waiters.until(
            lambda: engine.failed is not None or engine.is_quiet(),
            within_s=self._config.limits.drain_s,
            outlasts_end=True,
        )
        engine.say_goodbye()
        engine.take_snapshot()
        # What is in the log's hands is finished, however long the disk takes.
        await engine.waiters.until(
            lambda: engine.failed is not None or engine.log_is_full or engine.is_committed(),
            outlasts_end=True,
        )

    async def _close_connections(self, engine: Engine | None) -> None:
        for listener in self.status.listeners:
            listener.close_connections()
        if engine is not None:
            engine.waiters.stop()
            await engine.waiters.until(
                lambda: not engine.connections, within_s=LAST_REPLIES_S, outlasts_end=True
            )
        for listener in self.status.listeners:
            listener.abort_connections()
        if self._flight is not None:
            await self._flight.close()


def _log_recovery(found: Recovered, seconds: float) -> None:
    recovered = found.wal.recovered
    _log.info(
        "recovered",
        seconds=round(seconds, 3),
        replayed_records=recovered.replayed_records,
        next_id=found.wal.next_id,
        subscriptions=found.broker.subscription_count(),
        topics=len(found.broker.topics),
    )
    if recovered.torn_bytes or recovered.zero_bytes:
        _log.warning(
            "torn tail healed: an unfinished write was moved to quarantine",
            torn_bytes=recovered.torn_bytes,
            zero_bytes=recovered.zero_bytes,
            files=recovered.quarantined,
        )
    for path in found.snapshots_rejected:
        _log.warning("bad snapshot set aside", file=path)


def write_atomically(path: Path, text: str) -> None:
    """Write *text* to *path*; readers see all of it or the file before.

    It is not synced: the file says what runs now, and is stale after a power cut anyway.
    """
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(text)
    temporary.replace(path)


def _vibe_connections(config: VibeConfig) -> MakeConnection:
    options = VibeOptions(
        max_message_bytes=config.max_message_bytes,
        auto_create=config.auto_create,
        version=version("braidmq"),
    )
    numbers = count(1)

    def make(engine: Engine, wire: TcpWire, limits: Limits) -> Connection:
        return VibeConnection(engine, wire, limits, options, next(numbers))

    return make
