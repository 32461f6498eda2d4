"""The daemon: start everything in order, and stop it in order.

lock the data directory | HTTP (not ready) | bind | recover | accept | ready file
... a signal, or the log fails ...
accept no more | let acknowledgements arrive | commit | snapshot | close
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog

from braidmq.admin.reloads import Reloaded
from braidmq.admin.status import Status
from braidmq.base.errors import BraidError, ConfigError, LogFullError, LogScarceError
from braidmq.base.extras import MissingExtraError, how_to_get
from braidmq.broker.broker import Broker
from braidmq.daemon.descriptors import flight_connections, within_descriptors
from braidmq.daemon.listeners import (
    admin_server,
    announcer,
    qumbed_listener,
    vibe_connections,
)
from braidmq.daemon.ready import log_recovery, write_atomically
from braidmq.daemon.reloading import LoadConfig, Parts, Reloading
from braidmq.daemon.telemetry import Telemetry
from braidmq.server.access.keys import KeyRing
from braidmq.server.access.users import Users
from braidmq.server.config.config import (
    DEV_PRINCIPAL,
    Config,
    ListenerConfig,
    quotas_for,
)
from braidmq.server.engine.clock import BrokerClock, TimeSource
from braidmq.server.engine.connection import Connection
from braidmq.server.engine.durability import Durability
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.recovery import Recovered, recover
from braidmq.server.engine.requests import UnavailableError
from braidmq.server.engine.ticker import Ticker
from braidmq.server.strands.blip import BlipConnection
from braidmq.server.strands.listeners import Listener, MakeConnection, TcpListener
from braidmq.transport.binding import shown
from braidmq.transport.door import Door
from braidmq.wal.disk import SPARE_DESCRIPTORS, Disk
from braidmq.wal.opening import Watch, unwatched
from braidmq.wal.options import FsyncPolicy

if TYPE_CHECKING:  # imported where they are on
    from braidmq.admin.http.server import AdminServer
    from braidmq.server.flight.listener import FlightListener
    from braidmq.server.sink.sink import Sink
    from braidmq.server.sink.stages import Stages
    from braidmq.server.strands.qumbed.listener import QumbedListener

LOCK_PATH: Final = "LOCK"
RUN_FILE: Final = "run.json"

SNAPSHOT_RECORDS: Final = 1_000_000
"""Records after which a snapshot is due, however recent the last: a start replays them."""

FULL_SNAPSHOT_S: Final = 2.0
"""How often a snapshot is taken while the disk is full: retention goes by the newest ones."""

RECOVER_AGAIN_S: Final = 1.0
"""Pause before recovery is tried again for which there was no descriptor or no memory."""

CHORE_PAUSE_S: Final = 0.004
"""Between the turns of a chore that takes many: about as long as one of them."""

LAST_REPLIES_S: Final = 0.25
"""How long the last replies may take to leave; a peer that does not read them loses them."""

_log = structlog.get_logger(__name__)


class Daemon:
    """One broker with its listeners, on the running event loop."""

    def __init__(
        self,
        config: Config,
        *,
        clock: TimeSource | None = None,
        mdns: bool = False,
        watch: Watch = unwatched,
        load: LoadConfig | None = None,
        is_greeted: bool = False,
    ) -> None:
        """Make a daemon; *load* reads the configuration again when it is told to reload.

        *is_greeted*: a greeting will say what is off, so that no warning has to.
        """
        self._config = config
        self._is_greeted = is_greeted
        self._load: LoadConfig = load if load is not None else lambda: config
        self._reloading: Reloading | None = None
        self.reloaded: Callable[[], None] = lambda: None  # called after each reload
        self._watch = watch  # follows recovery, on recovery's thread
        self._clock = BrokerClock(clock)
        self._loop = asyncio.get_running_loop()
        self._files = Disk(config.data_dir, spare=SPARE_DESCRIPTORS)
        self._is_locked = False
        self._keys = KeyRing(config.auth.keys, config.dev, config.quotas)
        self.status = Status(config, self._keys, self._files, clock=self._clock)
        self.addresses = self.status.addresses
        self.addresses.update(dict.fromkeys(("blip", "vibe", "qumbed", "http", "flight")))
        self._door = Door(
            connections=within_descriptors(
                config.limits.connections, with_flight=config.flight.enabled
            ),
            strangers=config.limits.unauthenticated_connections,
            per_address=config.limits.connections_per_ip,
        )
        self._admin: AdminServer | None = None
        self._qumbed: QumbedListener | None = None
        self._flight: FlightListener | None = None
        self._mdns = announcer(config.qumbed) if mdns else None
        self._users: Users | None = None
        self._durability: Durability | None = None
        self._ticker: Ticker | None = None
        self._telemetry = Telemetry(os.environ)
        self._stages: Stages | None = None
        self._sink: Sink | None = None
        self._snapshot_due_s = 0.0
        self._snapshot_id = 0
        self.ended = asyncio.Event()  # the log failed
        self.leaving = asyncio.Event()  # set by a signal: a start that cannot go on gives up
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
        engine = self._start_engine(await self._recovered())
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
        try:
            write_atomically(self._config.data_dir / RUN_FILE, json.dumps(self.ready_facts()))
        except OSError as error:  # a full disk: consumers must be able to drain it all the same
            _log.warning("cannot write " + RUN_FILE, reason=error.strerror)
        assert self._users is not None
        parts = Parts(self.status, self._keys, self._users, self._admin, self._qumbed)
        self._reloading = Reloading(parts, self._config, self._load)
        self.status.reloads.run = self.reload

    async def _start_admin(self) -> None:
        http = self._config.http
        if not http.enabled:
            return
        self._admin = admin_server(http, self.status, self._door)
        self.status.numbers.start()
        self.addresses["http"] = shown(*await self._admin.start())

    def _bind(self) -> None:
        config = self._config
        limits = config.limits
        strands: list[tuple[str, ListenerConfig, MakeConnection]] = [
            ("blip", config.blip, BlipConnection),
            ("vibe", config.vibe, vibe_connections(config.vibe)),
        ]
        for strand, section, make in strands:
            if section.enabled:
                self._listen(TcpListener(strand, section, limits, door=self._door, make=make))
        if config.qumbed.enabled:
            self._qumbed = qumbed_listener(config, self._door, self._keys)
            self._listen(self._qumbed)
            self._qumbed.prepare(self._files, config.data_dir, config.schemas_dir)
        if config.flight.enabled:
            self._bind_flight()

    def _bind_flight(self) -> None:
        config = self._config
        try:
            from braidmq.server.flight.listener import FlightListener  # noqa: PLC0415 - takes memory
        except ModuleNotFoundError as error:
            problem = f"needs {error.name}: {how_to_get('columnar')}; or turn it off"
            # An operator who configured it wants it. By default it is on, but optional.
            if "flight" in config.model_fields_set:
                raise ConfigError("flight", problem) from None
            if not self._is_greeted:
                _log.warning("flight is off: it " + problem)
            return
        self._flight = FlightListener(
            config.flight,
            config.limits,
            door=self._door,
            connections_max=flight_connections(),
            data_dir=config.data_dir,
            find=self._keys.find,
        )
        self._listen(self._flight)

    def _listen(self, listener: Listener) -> None:
        self.status.listeners.append(listener)
        self.addresses[listener.strand] = listener.address

    async def _recovered(self) -> Recovered:
        started = time.monotonic()
        while True:
            try:
                # On a thread, so that the health pages answer meanwhile.
                found = await asyncio.to_thread(
                    recover,
                    self._files,
                    self._config,
                    now_us=self._clock.now_us(),
                    clock=time.perf_counter,
                    watch=self._watch,
                )
            except LogScarceError as error:
                _log.warning("the log cannot be opened yet", reason=str(error))
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.leaving.wait(), RECOVER_AGAIN_S)
                if self.leaving.is_set():
                    raise
            else:
                self.status.recovery_seconds = time.monotonic() - started
                return found

    def _start_engine(self, found: Recovered) -> Engine:
        broker = found.broker
        self._clock.begin(found.start)  # only recovery knows the newest time in the log
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
            after=self._loop.call_later,
            quotas=quotas_for(self._config.quotas),
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
        refusal = "" if found.wal.has_room else str(LogFullError())
        engine.start(self._durability, refusal=refusal)
        self._ticker = Ticker(
            self._clock,
            next_deadline_us=broker.next_deadline_us,
            tick=engine.tick,
            chores=self._do_chores,
        )
        engine.rearm = self._ticker.rearm
        engine.later = self._later
        self._ticker.start()
        self._snapshot_due_s = self._loop.time() + self._config.wal.snapshot_interval_s
        self._snapshot_id = broker.committed_id
        self._telemetry.start(engine)
        # Last: once the status has them, HTTP requests use the engine and the log.
        self.status.engine = engine
        self.status.wal = found.wal
        log_recovery(found, self.status.recovery_seconds)
        for alarm in self._clock.alarms:
            _log.error("clock alarm", reason=alarm)
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
                missing = MissingExtraError("to complete it", str(error.name), "columnar")
                _log.warning("a sink's batch is incomplete; " + str(missing))
            return
        self._stages = Stages(
            self._files, now_us=self._clock.now_us, step_us=self._clock.step_us
        )
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

    async def reload(self) -> Reloaded:
        """Read keys, users, certificates and schemas again; a bad file changes nothing.

        Raises:
            ConfigError: A file cannot be used.
            UnavailableError: The broker is still starting, or shuts down.
        """
        if self._reloading is None:
            raise UnavailableError("the broker is still starting")
        found = await self._reloading.reload()
        # A fingerprint may be another now.
        write_atomically(self._config.data_dir / RUN_FILE, json.dumps(self.ready_facts()))
        self.reloaded()
        return found

    def look_at_clock(self) -> None:
        """Do what is due, after a test has moved the clock."""
        if self.status.engine is not None:
            self._look_at_clock(self.status.engine)
            self.status.engine.tick()

    def _look_at_clock(self, engine: Engine) -> None:
        was_stepped = self._clock.is_stepped
        self._clock.look()
        engine.broker.times.wall_ahead_us = self._clock.wall_ahead_us
        if self._clock.is_stepped != was_stepped:
            # The next start must know of it, even if this process is killed.
            engine.take_snapshot()
            said = (
                "the system's clock was set" if self._clock.is_stepped else "the clocks agree"
            )
            _log.warning(said, ahead_s=self._clock.wall_ahead_us / 1e6)

    def _announced_topics(self, engine: Engine) -> Iterator[str]:
        # With authentication on, topic names are not for every host on the network.
        if self._config.qumbed.auth == "none":
            return (topic.name for topic in engine.broker.topics.all())
        return iter(())

    def _do_chores(self) -> None:
        engine = self.status.engine
        if engine is None or self._durability is None or engine.failed is not None:
            return
        self._look_at_clock(engine)
        engine.look_for_room()
        for listener in self.status.listeners:
            listener.close_idle()
        if self._mdns is not None:
            self._mdns.update(self._announced_topics(engine))
        if engine.log_is_full:
            soon = self._loop.time() + FULL_SNAPSHOT_S
            self._snapshot_due_s = min(self._snapshot_due_s, soon)
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

    def _later(self, call: Callable[[], None]) -> None:
        # With a pause, so that what has arrived meanwhile takes turns with a long chore.
        self._loop.call_later(CHORE_PAUSE_S, call)

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
        self._door.close()
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
        engine.take_last_snapshot()
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
