"""`braidmq demo`: a real broker, killed under load, and counts that must agree.

    sensors -- readings, on Blip --+--> archive, on Blip
                                   +--> two workers, on one Vibe queue
    desk ---- commands, on Vibe ---+--> machine, on Blip
                                   +--> robot, on Vibe: starts late, reads by priority
    for Qumbed see meters.py; for Spark, spark.py

The broker is killed with SIGKILL and restarted on the same log. One reading cannot be handled,
becomes a dead letter and is replayed. Spark makes tables of the log and replays part of it.
Then everything is counted, including the contents of the log and of the tables. The demo uses
only the command line and the client library, as users do.
"""

import asyncio
import json
import logging
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Option

from braidmq.base.counts import counted
from braidmq.base.errors import ConfigError
from braidmq.base.extras import how_to_get
from braidmq.cli.demo.count import Account, Line, summarize
from braidmq.cli.demo.meters import ALARMS, Meters
from braidmq.cli.demo.spark import Tables, can_run
from braidmq.cli.own_broker import LOOK_S, BrokerProcess, DemoError
from braidmq.cli.signals import cancel_on_signals
from braidmq.cli.terminal import styled

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Client, Subscription

PROGRAM: Final = "braidmq"
READINGS: Final = "demo.readings"
COMMANDS: Final = "demo.commands"
DEAD_READINGS: Final = "dlq.demo.readings"
QUEUES: Final = (READINGS, COMMANDS, DEAD_READINGS, ALARMS)

READINGS_DEFAULT: Final = 12_000
BATCH_COUNT: Final = 200
BATCH_PAUSE_S: Final = 0.25
COMMANDS_COUNT: Final = 60
COMMAND_PAUSE_S: Final = 0.1
PRIORITIES: Final = 4
ATTEMPTS_MAX: Final = 3
POISON_PAUSE_S: Final = 1.0  # between its deliveries, so that they span the kill
BURST_SHARE: Final = 4  # 1/4 of the readings is in the burst during which the broker is killed

EXIT_TERMINATED: Final = 128 + signal.SIGTERM  # by the convention of shells
SETTLE_S_MAX: Final = 60.0
PROGRESS_S: Final = 1.0


def demo(
    readings: Annotated[
        int,
        Option(min=BATCH_COUNT, max=1_000_000, help="Number of sensor readings to publish."),
    ] = READINGS_DEFAULT,
    tables: Annotated[
        Path | None,
        Option(metavar="DIR", help="New directory in which to keep Spark's tables."),
    ] = None,
) -> None:
    """Kill a busy broker, restart it, and verify that no confirmed message is lost."""
    if tables is not None and tables.exists():
        raise ConfigError("--tables", f"{tables} exists; name a new directory")
    # Broken connections are expected here; the demo reports them in its own lines.
    client_log = logging.getLogger("braidmq.client")
    level = client_log.level
    client_log.setLevel(logging.CRITICAL)
    directory = Path(tempfile.mkdtemp(prefix="braidmq-demo-"))
    agreed = True
    try:
        lines = asyncio.run(_run(directory, readings, tables or directory / "tables"))
        agreed = summarize(lines)
    except asyncio.CancelledError:
        raise typer.Exit(EXIT_TERMINATED) from None
    finally:
        client_log.setLevel(level)
        if agreed:
            shutil.rmtree(directory, ignore_errors=True)
    if not agreed:
        print(f"The log is kept in {directory}")
        raise typer.Exit(1)
    _tell_where_to_look(tables)


def _tell_where_to_look(tables: Path | None) -> None:
    print("\nWhere to go from here:")
    if tables is not None and tables.exists():
        print(f"  the tables, as Parquet files               {tables}")
        print(f"  the report about them                      {tables / 'report/report.html'}")
    print(f"  your own broker, with a dashboard          {_program()} serve --dev")
    print("                                             http://127.0.0.1:9100")
    print("  the documentation                          README.md, docs/start.md")


def _program() -> str:
    """Return the command that starts this program from the current directory."""
    called = sys.argv[0]
    if Path(called).name != PROGRAM:
        return PROGRAM  # run by another program: our own path is unknown
    found = shutil.which(PROGRAM)
    on_path = found is not None and Path(found).resolve() == Path(called).resolve()
    return PROGRAM if on_path else shlex.quote(called)


# Publishers and consumers.


def _reading(number: int, *, broken: bool = False) -> bytes:
    reading = {
        "number": number,
        "sensor_id": f"sensor-{number % 20}",
        "celsius": "unknown" if broken else round(random.gauss(20, 3), 2),
        "timestamp_ms": time.time_ns() // 1_000_000,
    }
    return json.dumps(reading).encode()


def _number(payload: bytes) -> int:
    number = json.loads(payload)["number"]
    assert isinstance(number, int)
    return number


def _by_priority(numbers: Iterable[int]) -> list[int]:
    return sorted(numbers, key=lambda number: (-(number % PRIORITIES), number))


def _batches(numbers: range) -> Iterable[range]:
    for first in range(0, len(numbers), BATCH_COUNT):
        yield numbers[first : first + BATCH_COUNT]


class Story:
    """The events of the demo, from the first start of the broker to the count."""

    def __init__(
        self, broker: BrokerProcess, readings: int, tables: Path | None = None
    ) -> None:
        self._broker = broker
        self._readings = readings
        self._begun = time.monotonic()
        before = (readings - readings // BURST_SHARE) // 2
        self._burst = range(before + 1, before + readings // BURST_SHARE + 1)
        self._burst_is_seen = asyncio.Event()
        self.poison = before  # the reading that workers reject until it is replayed
        self._is_mended = False
        self.confirmed: set[int] = set()
        self.repeated = 0
        self.commands: set[int] = set()
        self.archive = Account("archive")
        self.pair = (Account("worker 1"), Account("worker 2"))
        self.machine = Account("machine")
        self.robot: list[int] = []
        self.replayed: set[int] = set()
        self.left = 0  # in the queues, at the end
        self.meters = Meters(self.say)
        topics = (READINGS, COMMANDS)
        self.tables = None if tables is None else Tables(broker, tables, topics, self.say)

    async def run(self) -> None:
        """Run the demo; return when everything is handled, or after a timeout."""
        import braidmq

        blip_at, vibe_at, qumbed_at, *_ = self._broker.addresses.values()
        self.say("broker", f"Blip on {blip_at}, Vibe on {vibe_at}, Qumbed on {qumbed_at}")
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            blip = await stack.enter_async_context(braidmq.connect(self._broker.url("blip")))
            vibe = await stack.enter_async_context(braidmq.connect(self._broker.url("vibe")))
            await self.meters.connect(stack, self._broker.url("qumbed"))
            await vibe.declare_queue(READINGS, max_attempts=ATTEMPTS_MAX)
            await vibe.declare_queue(COMMANDS, mode="PriorityBased")
            subscriptions = await self._subscribe(stack, group, blip, vibe)
            subscriptions += await self.meters.subscribe(
                stack, group, blip=blip, vibe=vibe, readings=READINGS, commands=COMMANDS
            )
            progress = group.create_task(self._tell_progress())
            commands = group.create_task(self._publish_commands(vibe))
            bills = group.create_task(self.meters.publish())
            disaster = group.create_task(self._kill_and_replay(vibe))
            await self._publish_readings(blip)
            self.say("sensors", f"all {len(self.confirmed):,} readings are confirmed")
            await bills
            await commands
            await self._work_off_commands(vibe)
            await disaster
            deadline = time.monotonic() + SETTLE_S_MAX
            while not self._is_done() and time.monotonic() < deadline:  # noqa: ASYNC110 - a bounded look
                await asyncio.sleep(LOOK_S)
            progress.cancel()
            for subscription in subscriptions:
                await subscription.drain()
            if self.tables is not None:
                await self.tables.run(blip)
            else:
                self.say(
                    "Spark",
                    f"is not installed, so there are no tables; {how_to_get('spark')}",
                )
            self.left = sum([await self._waiting(vibe, name) for name in QUEUES])

    async def _subscribe(
        self, stack: AsyncExitStack, group: asyncio.TaskGroup, blip: "Client", vibe: "Client"
    ) -> list["Subscription"]:
        parties = (
            (blip, READINGS, self.archive),
            (blip, COMMANDS, self.machine),
            (vibe, READINGS, self.pair[0]),
            (vibe, READINGS, self.pair[1]),
        )
        entered = []
        for client, topic, account in parties:
            messages = await stack.enter_async_context(client.subscribe(topic))
            group.create_task(self._consume(messages, account))
            entered.append(messages)
        self.say("Blip", "sensors publish readings to an archive; a machine waits for commands")
        self.say("Vibe", "a desk publishes commands; two workers share a queue of readings")
        return entered

    async def _publish_readings(self, blip: "Client") -> None:
        everything = range(1, self._readings + 1)
        first, last = self._burst.start - 1, self._burst.stop - 1
        batches = [*_batches(everything[:first]), self._burst, *_batches(everything[last:])]
        for batch in batches:
            if batch is self._burst:
                self.say("sensors", f"a burst of {len(batch):,} readings at once")
            await self._publish_batch(blip, batch)
            await asyncio.sleep(BATCH_PAUSE_S)

    async def _publish_batch(self, blip: "Client", batch: range) -> None:
        from braidmq.client import PublishError

        # With retry, readings whose confirmation the kill prevented are sent again, and may be
        # stored twice.
        readings = (_reading(number, broken=number == self.poison) for number in batch)
        results = await blip.publish_many(READINGS, readings, retry=True)
        for number, result in zip(batch, results, strict=True):
            if not isinstance(result, PublishError):
                self.confirmed.add(number)
                self.repeated += result.repeated

    async def _publish_commands(self, vibe: "Client") -> None:
        for number in range(1, COMMANDS_COUNT + 1):
            payload = json.dumps({"number": number, "turn": "left"}).encode()
            priority = number % PRIORITIES  # Low, Normal, High, Critical
            # With a dedupId the broker recognises a retry and stores it once.
            headers = {"dedupId": f"command-{number}"}
            await vibe.publish(
                COMMANDS, payload, headers=headers, priority=priority, retry=True
            )
            self.commands.add(number)
            await asyncio.sleep(COMMAND_PAUSE_S)

    async def _kill_and_replay(self, vibe: "Client") -> None:
        # At that moment parts of the burst are delivered, stored, or neither.
        await self._burst_is_seen.wait()
        await self._broker.kill()
        self.say("KILL -9", "the broker is dead, in the middle of the burst", alarm=True)
        await self._broker.start()
        self.say("broker", "restarted on the same log; clients reconnect by themselves")
        await self._send_dead_letter_back(vibe)

    async def _consume(self, messages: "Subscription", account: Account) -> None:
        async for message in messages:
            number = _number(message.payload)
            is_poison = account in self.pair and number == self.poison
            if is_poison and not self._is_mended:
                which = f"reading {number} (delivery {message.attempt} of {ATTEMPTS_MAX})"
                self.say(account.name, f"cannot handle {which}")
                await message.nack(delay=POISON_PAUSE_S)
                continue
            async with message.process():
                account.deliveries += 1
                account.handled.add(number)
            if is_poison:
                self.replayed.add(number)
                self.say(account.name, f"handled reading {number} this time")
            if account is self.archive and number >= self._burst.start:
                self._burst_is_seen.set()

    async def _work_off_commands(self, vibe: "Client") -> None:
        self.say(
            "robot", f"starts late, with {await self._waiting(vibe, COMMANDS)} commands waiting"
        )
        deadline = time.monotonic() + SETTLE_S_MAX
        async with vibe.subscribe(COMMANDS) as messages:
            while len(self.robot) < len(self.commands) and time.monotonic() < deadline:
                for message in await messages.fetch():
                    self.robot.append(_number(message.payload))
                    await message.ack()
        self.say("robot", f"got {len(self.robot)}, critical ones first: {self.robot[:3]} ...")

    async def _send_dead_letter_back(self, vibe: "Client") -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        while not await self._waiting(vibe, DEAD_READINGS):
            if time.monotonic() > deadline:
                raise DemoError(f"reading {self.poison} did not become a dead letter")
            await asyncio.sleep(LOOK_S)
        self.say("broker", f"gave up on reading {self.poison}: it is now a dead letter")
        self._is_mended = True
        replay = ("dlq", "replay", DEAD_READINGS)
        self.say("operator", f"$ braidmq {' '.join(replay)}")
        self.say("operator", await self._broker.command(*replay))

    async def _waiting(self, vibe: "Client", name: str) -> int:
        queue = await vibe.queue_info(name)
        return queue.waiting + queue.in_flight if queue else 0

    def _is_done(self) -> bool:
        workers = self.pair[0].handled | self.pair[1].handled
        readings = self.archive.handled & workers
        is_screened = self.meters.is_done(self.confirmed, self.commands)
        return (
            is_screened and self.confirmed <= readings and self.commands <= self.machine.handled
        )

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            workers = " + ".join(f"{len(worker.handled):,}" for worker in self.pair)
            readings = f"archive {len(self.archive.handled):,}, workers {workers}"
            commands = f"machine {len(self.machine.handled)}"
            both = f"{len(self.confirmed):,} readings: {readings}; commands: {commands}"
            self.say("so far", both, quiet=True)

    def say(self, who: str, what: str, *, alarm: bool = False, quiet: bool = False) -> None:
        """Print one line of the story."""
        line = f"{time.monotonic() - self._begun:5.1f} s  {who:8} {what}"
        if alarm:
            line = styled(line, fg=typer.colors.RED, bold=True)
        print(styled(line, dim=True) if quiet else line, flush=True)


# The count.


async def _run(directory: Path, readings: int, tables: Path) -> list[Line]:
    print("Clients exchange messages over three protocols; the broker is killed meanwhile.\n")
    cancel_on_signals()  # so that the broker's process is ended too, whatever ends ours
    broker = BrokerProcess(directory)
    try:
        await broker.start()
        story = Story(broker, readings, tables if can_run() else None)
        await story.run()
        code = await broker.stop()
    except ExceptionGroup as group:
        # The first one ended the others, and is reported as one line.
        raise group.exceptions[0] from None
    finally:
        await broker.kill()
    if code != 0:
        raise DemoError(f"the broker ended with exit code {code}")
    lines = count(story, readings, stored(broker.data_dir))
    return lines if story.tables is None else lines + story.tables.lines(broker.data_dir)


def stored(data_dir: Path) -> dict[str, list[int]]:
    """Return the numbers of the messages in a stopped broker's log, by topic.

    Raises:
        DemoError: The log is damaged.
    """
    from braidmq.broker.records import describe
    from braidmq.wal.disk import Disk
    from braidmq.wal.maintenance.survey import dump, verify

    disk = Disk(data_dir)
    if not verify(disk, describe).is_intact:
        raise DemoError("the log is damaged")
    found: dict[str, list[int]] = {name: [] for name in QUEUES}
    for record in dump(disk, describe, from_id=1, limit=sys.maxsize):
        if record.what is not None and record.what.topic:
            numbers = found.setdefault(record.what.topic.decode(), [])
            if record.what.topic.decode() in QUEUES:
                numbers.append(_number(record.body[record.what.payload_at :]))
    return found


def count(story: Story, readings: int, log: dict[str, list[int]]) -> list[Line]:
    """Return the lines of the summary."""
    pair = Account("pair", story.pair[0].handled | story.pair[1].handled)
    pair.deliveries = sum(worker.deliveries for worker in story.pair)
    shares = " and ".join(f"{len(worker.handled):,}" for worker in story.pair)
    told, commands, poison = story.confirmed, story.commands, story.poison
    published = set(range(1, readings + 1))
    sent_again = f"{story.repeated:,} sent again after the kill"
    return [
        Line("readings confirmed, on Blip", published, told, sent_again),
        Line("  in the log", told, set(log[READINGS]), _doubled(log[READINGS])),
        Line("  archive, on Blip", told, story.archive.handled, story.archive.again),
        Line("  two workers, on Vibe", told, pair.handled, f"{shares}; {pair.again}"),
        Line("commands confirmed, on Vibe", set(range(1, COMMANDS_COUNT + 1)), commands),
        Line("  in the log, each once", sorted(commands), sorted(log[COMMANDS])),
        Line("  machine, on Blip", commands, story.machine.handled, story.machine.again),
        Line("  robot, on Vibe, by priority", _by_priority(commands), story.robot),
        Line("dead letters in the log", [poison], log[DEAD_READINGS], f"reading {poison}"),
        Line("  handled after the replay", {poison}, story.replayed),
        *story.meters.lines(told, commands),
        Line("left in the queues", set(), set(range(story.left))),
    ]


def _doubled(numbers: list[int]) -> str:
    return counted(sum(times > 1 for times in Counter(numbers).values()), "duplicate")
