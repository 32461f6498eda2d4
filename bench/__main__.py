"""`python -m bench`: run all benchmarks, with the installed peers; see docs/benchmarks.md."""

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from bench import (
    blip,
    dashboard,
    memory,
    nats,
    qumbed,
    rabbitmq,
    redis,
    report,
    spark,
    start,
    vibe,
)
from bench.servers import Broker, Peer, interpreted_package
from bench.streams import BrokenRunError, Sample
from braidmq.base.build import is_compiled

KIB: Final = 1024
MIB: Final = 1024 * 1024
INTERPRETED_BAR_DIVISOR: Final = 3
MEMORY_BAR_MIB: Final = 20.0
RECOVERY_BAR_S: Final = 5.0
QUEUES_BAR_MIB: Final = 100.0
BACKLOG: Final = "backlog"
QUEUES: Final = "queues"
IDLE_BAR_KIB: Final = 200.0
IDLE: Final = "qumbed-idle"


@dataclass(frozen=True)
class Sizes:
    """The amount of work: rounds, messages per run, and whether both builds are measured."""

    rounds: int
    messages_divisor: int
    backlog_messages: int
    queues: int
    starts: int
    readings: int
    both_builds: bool  # interpreted as well, where modules are compiled


FULL: Final = Sizes(
    rounds=3,
    messages_divisor=1,
    backlog_messages=5_000_000,
    queues=10_000,
    starts=start.STARTS,
    readings=5_000_000,
    both_builds=True,
)
QUICK: Final = Sizes(
    rounds=1,
    messages_divisor=10,
    backlog_messages=100_000,
    queues=500,
    starts=2,
    readings=100_000,
    both_builds=False,
)


class Product(NamedTuple):
    """Another product: its server's program, and how to start it in a directory."""

    program: str
    start: Callable[[Path], Peer]
    version: Callable[[str], str] = report.version_of
    path: str = ""  # if the program on the PATH is only a wrapper

    @property
    def is_installed(self) -> bool:
        """Whether the server is installed."""
        return shutil.which(self.path or self.program) is not None


NATS: Final = Product(nats.PROGRAM, nats.start)
REDIS: Final = Product(redis.PROGRAM, redis.start)
RABBITMQ: Final = Product(rabbitmq.PROGRAM, rabbitmq.RabbitMQ, rabbitmq.version, rabbitmq.PATH)


@dataclass(frozen=True)
class Contest:
    """A comparison with one peer; *ours* returns a sample for each row.

    Without a peer to start there is a rate to reach; *peer_name* says where that comes from.
    """

    name: str
    rows: Sequence[tuple[str, float | None]]  # title and bar
    ours: Callable[[Broker, int], Sample | Sequence[Sample]]
    messages: int
    interpreted_messages: int
    peer_name: str
    peer: Product | None = None
    theirs: Callable[[Peer, int], Sample] | None = None
    ours_as_theirs: Callable[[Broker, int], Sample] | None = None  # our own broker as peer
    peer_messages: int = 0
    fixed_rate: int = 0  # messages/s
    settings: Mapping[str, str] = field(default_factory=dict)


CONTESTS: Final = (
    Contest(
        name="publish",
        rows=[("publish, QoS 1, fsynced", 2.0)],
        ours=blip.publish,
        messages=500_000,
        interpreted_messages=200_000,
        peer_name="JetStream file",
        peer=NATS,
        theirs=nats.publish,
        peer_messages=300_000,
    ),
    Contest(
        name="poll",
        rows=[("POLL, QoS 1", 3.0)],
        ours=blip.poll,
        messages=300_000,
        interpreted_messages=100_000,
        peer_name="XREADGROUP",
        peer=REDIS,
        theirs=redis.read_group,
        peer_messages=200_000,
        # Neither side acknowledges here, so our window must hold all messages.
        settings={
            "BRAIDMQ_DELIVERY__WINDOW": "1000000",
            "BRAIDMQ_DELIVERY__WINDOW_BYTES": "1000000000",
        },
    ),
    Contest(
        name="consume",
        rows=[("POLL and ACK, QoS 1", None), ("CREDIT and ACK, QoS 1", None)],
        ours=blip.poll_and_credit,
        messages=300_000,
        interpreted_messages=100_000,
        peer_name="XREADGROUP",
        peer=REDIS,
        theirs=redis.read_group,
        peer_messages=200_000,
    ),
    Contest(
        name="relay",
        rows=[("publish to deliver, QoS 0", 0.5)],
        ours=blip.relay,
        messages=1_000_000,
        interpreted_messages=300_000,
        peer_name="NATS core",
        peer=NATS,
        theirs=nats.relay,
        peer_messages=2_000_000,
    ),
    Contest(
        name="vibe",
        rows=[("Vibe publish, pipelined, fsynced", 1.0)],
        ours=vibe.publish,
        messages=200_000,
        interpreted_messages=50_000,
        peer_name="RabbitMQ",
        peer=RABBITMQ,
        theirs=rabbitmq.publish,
        peer_messages=100_000,
    ),
    Contest(
        name="load",
        rows=[("Vibe load test, each reply awaited", 5.0)],
        ours=vibe.load,
        messages=50_000,
        interpreted_messages=20_000,
        peer_name="VibeMQ as documented",
        fixed_rate=10_000,
    ),
    Contest(
        name="qumbed-connected",
        rows=[("Qumbed publish, on one connection", 20.0)],
        ours=qumbed.publish,
        messages=40_000,
        interpreted_messages=20_000,
        peer_name="a connection for each",
        ours_as_theirs=qumbed.publish_each_connected,
        peer_messages=500,
    ),
    Contest(
        name="qumbed",
        rows=[("Qumbed publish, pipelined, fsynced", 1.0)],
        ours=qumbed.publish,
        messages=40_000,
        interpreted_messages=20_000,
        peer_name="goal",
        fixed_rate=8_000,
    ),
    Contest(
        name="qumbed-fan-out",
        rows=[("Qumbed fan-out to 10, sealed for each", 1.0)],
        ours=qumbed.fan_out,
        messages=50_000,
        interpreted_messages=30_000,
        peer_name="goal",
        fixed_rate=10_000,
    ),
)
NAMES: Final = (
    *(contest.name for contest in CONTESTS),
    *(start.NAME, BACKLOG, QUEUES, IDLE, dashboard.NAME, spark.NAME),
)
DASHBOARD_MESSAGES: Final = 500_000


class Bench:
    """One run of the benchmarks, in a temporary directory."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self._directory = directory
        self._sizes = sizes
        self._runs = 0
        self._interpreted = interpreted_package(directory / "interpreted")

    def contest(self, contest: Contest) -> Iterator[report.Row]:
        """Run ours, the peer and ours interpreted in turn, for some rounds; return the rows."""
        ours: list[Sequence[Sample]] = []
        interpreted: list[Sequence[Sample]] = []
        theirs: list[Sample] = []
        # In turn, not one after the other: a machine that slows down then slows all of them,
        # and the ratio of a round stays fair.
        for _ in range(self._sizes.rounds):
            if is_compiled():
                ours.append(self._ours(contest, contest.messages, None))
            theirs += self._theirs(contest)
            if self._sizes.both_builds or not is_compiled():
                count = contest.interpreted_messages
                interpreted.append(self._ours(contest, count, self._interpreted))
        peer = contest.peer_name
        if not theirs:
            assert contest.peer is not None
            peer = f"{contest.peer.program} is not installed"
        for i, (title, bar) in enumerate(contest.rows):
            for suffix, samples, divisor in (
                ("", ours, 1),
                (", interpreted", interpreted, INTERPRETED_BAR_DIVISOR),
            ):
                if samples:
                    yield report.rate_row(
                        title + suffix,
                        [sample[i] for sample in samples],
                        peer_name=peer,
                        peer_samples=theirs,
                        bar=None if bar is None else bar / divisor,
                    )

    def start(self) -> Iterator[report.Row]:
        """Start programs; return the rows on how long they take."""
        yield from start.rows(self._new_directory(), self._sizes.starts)

    def backlog(self) -> Iterator[report.Row]:
        """Let a subscription fall far behind; return the rows on memory and recovery."""
        found = memory.backlog(self._new_directory(), self._sizes.backlog_messages)
        behind = f"{found.messages:,} behind"
        grown_mib = found.grown_bytes / MIB
        yield report.amount_row(f"memory, {behind}", grown_mib, "MiB", bar=MEMORY_BAR_MIB)
        # After a kill the broker replays the log since the last snapshot; the bar is for a log
        # that ends with one.
        for how, restart, bar in (
            ("stop", found.after_stop, RECOVERY_BAR_S),
            ("kill", found.after_kill, None),
        ):
            yield report.amount_row(
                f"ready again after a {how}, {behind}",
                restart.ready_s,
                "s",
                bar=bar,
                note=f"recovery itself {restart.recovery_s:.2f} s",
            )

    def queues(self) -> Iterator[report.Row]:
        """Let one message wait in each of many queues; return the row on memory."""
        count = self._sizes.queues
        grown = memory.queues(self._new_directory(), count)
        yield report.amount_row(
            f"memory, {count:,} queues with a message each",
            grown / MIB,
            "MiB",
            bar=QUEUES_BAR_MIB,
        )

    def idle(self) -> Iterator[report.Row]:
        """Connect many idle clients; return the row on memory per client."""
        with Broker(self._new_directory()) as broker:
            grown = qumbed.idle_bytes(broker)
        yield report.amount_row(
            "memory, an idle Qumbed subscriber", grown / KIB, "KiB", bar=IDLE_BAR_KIB
        )

    def dashboard(self) -> Iterator[report.Row]:
        """Publish with the dashboard open, and without; return the rows."""
        messages = DASHBOARD_MESSAGES // self._sizes.messages_divisor
        yield from dashboard.rows(self._new_directory(), messages, 2 * self._sizes.rounds)

    def spark(self, *, with_spark: bool) -> Iterator[report.Row]:
        """Read a log as tables; return the rows, those with a JVM only in a full run."""
        directory = self._new_directory()
        yield from spark.rows(
            directory, self._sizes.readings, self._sizes.rounds, with_spark=with_spark
        )

    def _ours(self, contest: Contest, messages: int, package: Path | None) -> Sequence[Sample]:
        directory = self._new_directory()
        with Broker(directory, package=package, settings=contest.settings) as broker:
            found = contest.ours(broker, messages // self._sizes.messages_divisor)
        return [found] if isinstance(found, Sample) else found

    def _theirs(self, contest: Contest) -> Sequence[Sample]:
        """Return a sample of the peer, or none if it is not installed."""
        messages = contest.peer_messages // self._sizes.messages_divisor
        if contest.fixed_rate:
            return [Sample(contest.fixed_rate, 1.0, 0.0, 0.0)]
        if contest.ours_as_theirs is not None:
            with Broker(self._new_directory()) as broker:
                return [contest.ours_as_theirs(broker, messages)]
        assert contest.peer is not None
        assert contest.theirs is not None
        if not contest.peer.is_installed:
            return []
        with contest.peer.start(self._new_directory()) as peer:
            return [contest.theirs(peer, messages)]

    def _new_directory(self) -> Path:
        self._runs += 1
        return self._directory / f"run{self._runs}"


def main(arguments: Sequence[str]) -> int:
    """Measure and print; return 1 if a run fails."""
    options = _options(arguments)
    chosen = options.only or NAMES
    signal.signal(signal.SIGTERM, _end)
    with tempfile.TemporaryDirectory(prefix="braidmq-bench-") as directory:
        bench = Bench(Path(directory), QUICK if options.quick else FULL)
        versions = {
            product.program: product.version(product.program)
            for product in (NATS, REDIS, RABBITMQ)
            if product.is_installed
        }
        facts = report.machine(Path(directory), versions)
        # Starting a JVM takes longer than the rest of a quick run.
        with_spark = bool(options.only) or not options.quick
        runs: dict[str, Callable[[], Iterator[report.Row]]] = {
            **{contest.name: partial(bench.contest, contest) for contest in CONTESTS},
            start.NAME: bench.start,
            BACKLOG: bench.backlog,
            QUEUES: bench.queues,
            IDLE: bench.idle,
            dashboard.NAME: bench.dashboard,
            spark.NAME: partial(bench.spark, with_spark=with_spark),
        }
        rows: list[report.Row] = []
        try:
            for name, run in runs.items():
                if name in chosen:
                    rows += run()
        except (BrokenRunError, OSError) as error:
            print(f"error: a run broke: {error}", file=sys.stderr)
            return 1
    if not is_compiled():
        facts["braidmq"] = "there are no compiled modules here: `make setup`"
    print("\n".join(f"{fact}: {value}" for fact, value in facts.items()))
    print()
    print(report.table(rows))
    if options.json is not None:
        report.write_json(options.json, facts, rows)
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="BraidMQ beside its peers, on this machine."
    )
    quick = "one short round: shows that it works, not how fast"
    parser.add_argument("--quick", action="store_true", help=quick)
    only = "measure only this; may be repeated"
    parser.add_argument("--only", action="append", choices=NAMES, help=only)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    return parser.parse_args(arguments)


def _end(number: int, frame: object) -> NoReturn:
    # Raise, so that every started server is stopped on the way out.
    del frame
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
