"""`braidmq demo`: a real broker, killed in the middle of its work, and counts that must agree.

Sensors publish readings and alarms; four parties consume them, each in another way; the broker
gets a SIGKILL and is started again on the same log; one alarm cannot be handled and becomes a
dead letter. Then everything is counted, what the log holds included. Nothing here is part of
the product: it uses the broker through the command line and the client library, as users do.
"""

import asyncio
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.base.errors import BraidError

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Client, Message, Subscription

SERVE: Final = (sys.executable, "-c", "from braidmq.cli.main import run; run()", "serve")
"""This very program, whatever it is installed as."""

READINGS: Final = "demo.readings"
ALARMS: Final = "demo.alarms"
DEAD_ALARMS: Final = "dlq.demo.alarms"

READINGS_DEFAULT: Final = 12_000
BATCH_COUNT: Final = 200
BATCH_PAUSE_S: Final = 0.25
ALARMS_COUNT: Final = 60
ALARM_PAUSE_S: Final = 0.1
POISON: Final = 40
"""The alarm that nobody can handle; its attempts fall before and after the kill."""

BURST_SHARE: Final = 4
"""One reading in so many is part of the burst that the broker is killed in."""

SETTINGS: Final = {
    "BRAIDMQ_DELIVERY__MAX_RETRIES": "4",
    "BRAIDMQ_DELIVERY__RETRY_BACKOFF_MS": "500",
    "BRAIDMQ_DELIVERY__RETRY_BACKOFF_MAX_MS": "1000",
}
"""Short retries, so that giving up on a message takes seconds; everything else is default."""

EXIT_TERMINATED: Final = 143
"""128 and the number of SIGTERM, as shells say it."""

START_S_MAX: Final = 60.0
SETTLE_S_MAX: Final = 60.0
LOOK_S: Final = 0.02
PROGRESS_S: Final = 1.0


class DemoError(BraidError):
    """The demo could not be carried through."""


class _CannotHandleError(Exception):
    """What the handler of alarms raises over the poisoned one."""


@dataclass
class Account:
    """What one consumer has seen; messages are known by the number in their payload."""

    name: str
    handled: set[int] = field(default_factory=set)
    deliveries: int = 0

    @property
    def again(self) -> str:
        """How many deliveries were of messages that had been handled before, in words."""
        return f"{self.deliveries - len(self.handled):,} delivered again"


@dataclass(frozen=True)
class Line:
    """One line of the summary: two sets of messages that must be the same."""

    what: str
    expected: set[int]
    found: set[int]
    note: str = ""

    @property
    def agrees(self) -> bool:
        """Whether nothing is missing and nothing was invented."""
        return self.expected == self.found


def demo(
    readings: Annotated[
        int, typer.Option(min=BATCH_COUNT, max=1_000_000, help="Sensor readings to publish.")
    ] = READINGS_DEFAULT,
) -> None:
    """Kill a busy broker and count: nothing that was confirmed is missing."""
    # A connection that breaks is the point here, and told below in our own words.
    client_log = logging.getLogger("braidmq.client")
    level = client_log.level
    client_log.setLevel(logging.CRITICAL)
    directory = Path(tempfile.mkdtemp(prefix="braidmq-demo-"))
    agreed = True
    try:
        lines = asyncio.run(_run(directory, readings))
        agreed = summarize(lines)
    except asyncio.CancelledError:
        raise typer.Exit(EXIT_TERMINATED) from None
    finally:
        client_log.setLevel(level)
        if agreed:
            shutil.rmtree(directory, ignore_errors=True)
    if not agreed:
        print(f"The log is kept: {directory}")
        raise typer.Exit(1)


# The broker, as a process of its own.


class BrokerProcess:
    """A broker below *directory*, on a free port that it keeps over restarts."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self._ready_file = directory / "ready.json"
        self._log_file = directory / "broker.log"
        self._process: asyncio.subprocess.Process | None = None
        self.address = "127.0.0.1:0"

    @property
    def url(self) -> str:
        """What clients connect to."""
        return f"blip://dev-key@{self.address}"

    async def start(self) -> None:
        """Start it and wait until it accepts connections.

        Raises:
            DemoError: It did not start.
        """
        self._ready_file.unlink(missing_ok=True)
        places = ("--data-dir", str(self.data_dir), "--ready-file", str(self._ready_file))
        listeners = ("--blip", self.address, "--http", "off")
        mine = {k: v for k, v in os.environ.items() if not k.startswith("BRAIDMQ_")}
        with self._log_file.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(*SERVE, "--dev", *places, *listeners), stderr=log, env=mine | SETTINGS
            )
        deadline = time.monotonic() + START_S_MAX
        while not self._ready_file.exists():
            if self._process.returncode is not None or time.monotonic() > deadline:
                raise DemoError(f"the broker did not start: {self._last_words()}")
            await asyncio.sleep(LOOK_S)
        self.address = json.loads(self._ready_file.read_text("utf-8"))["blip"]

    async def kill(self) -> None:
        """End it as a crash does: it gets no chance to say or write anything."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end; return its exit code."""
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        return await self._process.wait()

    def _last_words(self) -> str:
        lines = self._log_file.read_text("utf-8", "replace").splitlines()
        return lines[-1] if lines else "it said nothing"


@asynccontextmanager
async def _broker(directory: Path) -> AsyncIterator[BrokerProcess]:
    broker = BrokerProcess(directory)
    try:
        await broker.start()
        yield broker
    finally:
        await broker.kill()


# Who publishes and who consumes.


def _payload(number: int, sensor: str, value: float) -> bytes:
    return json.dumps({"number": number, "sensor": sensor, "celsius": value}).encode()


def _number(payload: bytes) -> int:
    number = json.loads(payload)["number"]
    assert isinstance(number, int)
    return number


def _reading(number: int) -> bytes:
    return _payload(number, f"sensor-{number % 20}", round(random.gauss(20, 3), 2))


def _batches(numbers: range) -> Iterable[range]:
    for first in range(0, len(numbers), BATCH_COUNT):
        yield numbers[first : first + BATCH_COUNT]


class Story:
    """Everything that happens between the first start of the broker and the count."""

    def __init__(self, broker: BrokerProcess, readings: int) -> None:
        self._broker = broker
        self._readings = readings
        self._begun = time.monotonic()
        before = (readings - readings // BURST_SHARE) // 2
        self._burst = range(before + 1, before + readings // BURST_SHARE + 1)
        self._burst_is_seen = asyncio.Event()
        self.confirmed: set[int] = set()
        self.repeated = 0
        self.alarms: set[int] = set()
        self.archive = Account("archive")
        self.pair = (Account("worker 1"), Account("worker 2"))
        self.poller = Account("poller")
        self.siren = Account("siren")
        self.letters = Account("dead letters")

    async def run(self) -> None:
        """Let it happen; return when everything is handled, or takes too long."""
        import braidmq

        self.say("broker", f"up on {self._broker.address}, every commit is fsynced")
        async with AsyncExitStack() as stack, asyncio.TaskGroup() as group:
            one = await stack.enter_async_context(braidmq.connect(self._broker.url))
            other = await stack.enter_async_context(braidmq.connect(self._broker.url))
            subscriptions = await self._subscribe(stack, group, one, other)
            progress = group.create_task(self._tell_progress())
            alarms = group.create_task(self._publish_alarms(other))
            await self._publish_readings(one, group)
            await alarms
            self.say("sensors", f"all {len(self.confirmed):,} readings are confirmed")
            await self._until(self._is_done, SETTLE_S_MAX)
            progress.cancel()
            for subscription in subscriptions:
                await subscription.drain()

    async def _subscribe(
        self,
        stack: AsyncExitStack,
        group: asyncio.TaskGroup,
        one: "Client",
        other: "Client",
    ) -> list["Subscription"]:
        archive = await stack.enter_async_context(one.subscribe(READINGS))
        first = await stack.enter_async_context(one.subscribe(READINGS))
        second = await stack.enter_async_context(
            other.subscribe(READINGS, subscription_id=first.subscription_id)
        )
        poller = await stack.enter_async_context(one.subscribe(READINGS))
        siren = await stack.enter_async_context(other.subscribe(ALARMS))
        letters = await stack.enter_async_context(other.subscribe(DEAD_ALARMS))
        group.create_task(self._iterate(archive, self.archive))
        group.create_task(self._iterate(first, self.pair[0]))
        group.create_task(self._iterate(second, self.pair[1]))
        group.create_task(self._poll(poller))
        group.create_task(self._sound(siren))
        group.create_task(self._iterate(letters, self.letters))
        self.say(
            "readers", "archive iterates, two workers compete, poller fetches, siren waits"
        )
        return [archive, first, second, poller, siren, letters]

    async def _publish_readings(self, client: "Client", group: asyncio.TaskGroup) -> None:
        everything = range(1, self._readings + 1)
        for batch in _batches(everything[: self._burst.start - 1]):
            await self._publish_batch(client, batch)
            await asyncio.sleep(BATCH_PAUSE_S)
        self.say("sensors", f"now a burst of {len(self._burst):,} readings at once")
        group.create_task(self._kill_and_restart())
        await self._publish_batch(client, self._burst)
        for batch in _batches(everything[self._burst.stop - 1 :]):
            await self._publish_batch(client, batch)
            await asyncio.sleep(BATCH_PAUSE_S)

    async def _publish_batch(self, client: "Client", batch: range) -> None:
        from braidmq.client import PublishError

        # With retry, what the kill left in doubt is sent again, perhaps stored twice.
        results = await client.publish_many(READINGS, map(_reading, batch), retry=True)
        for number, result in zip(batch, results, strict=True):
            if not isinstance(result, PublishError):
                self.confirmed.add(number)
                self.repeated += result.repeated

    async def _publish_alarms(self, client: "Client") -> None:
        for number in range(1, ALARMS_COUNT + 1):
            alarm = _payload(number, "furnace", 900.0)
            await client.publish(ALARMS, alarm, retry=True)
            self.alarms.add(number)
            await asyncio.sleep(ALARM_PAUSE_S)

    async def _kill_and_restart(self) -> None:
        # Some of the burst is delivered then, some stored, some neither: nobody knows how much.
        await self._burst_is_seen.wait()
        await self._broker.kill()
        self.say("KILL -9", "the broker is dead, in the middle of the burst", alarm=True)
        await self._broker.start()
        self.say("broker", "up again on the same log; clients find it by themselves")

    async def _iterate(self, messages: "Subscription", account: Account) -> None:
        async for message in messages:
            async with message.process():
                self._count(message, account)

    async def _poll(self, messages: "Subscription") -> None:
        from braidmq.client import Closed

        while True:
            try:
                batch = await messages.fetch(max=BATCH_COUNT, timeout=BATCH_PAUSE_S)
            except Closed:
                return
            for message in batch:
                self._count(message, self.poller)
                await message.ack()

    async def _sound(self, messages: "Subscription") -> None:
        failures = 0
        async for message in messages:
            try:
                async with message.process():
                    self._handle_alarm(message)
            except _CannotHandleError:
                failures += 1
                self.say("siren", f"cannot handle alarm {POISON} (delivery {failures})")

    def _handle_alarm(self, message: "Message") -> None:
        if _number(message.payload) == POISON:
            raise _CannotHandleError
        self._count(message, self.siren)

    def _count(self, message: "Message", account: Account) -> None:
        number = _number(message.payload)
        account.deliveries += 1
        account.handled.add(number)
        if account is self.archive and number >= self._burst.start:
            self._burst_is_seen.set()
        elif account is self.letters:
            self.say("broker", f"gave up on alarm {number}: it is a dead letter now")

    def _is_done(self) -> bool:
        workers = self.pair[0].handled | self.pair[1].handled
        everywhere = self.archive.handled & self.poller.handled & workers
        return self.confirmed <= everywhere and self.alarms <= (
            self.siren.handled | self.letters.handled
        )

    async def _until(self, condition: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not condition() and time.monotonic() < deadline:  # noqa: ASYNC110 - a bounded look
            await asyncio.sleep(LOOK_S)

    async def _tell_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            workers = " + ".join(f"{len(worker.handled):,}" for worker in self.pair)
            self.say(
                "so far",
                f"{len(self.confirmed):,} confirmed; archive {len(self.archive.handled):,}, "
                f"workers {workers}, poller {len(self.poller.handled):,}; "
                f"alarms {len(self.siren.handled)}",
                quiet=True,
            )

    def say(self, who: str, what: str, *, alarm: bool = False, quiet: bool = False) -> None:
        """Print one line of the story."""
        line = f"{time.monotonic() - self._begun:5.1f} s  {who:8} {what}"
        if alarm:
            line = _styled(line, fg=typer.colors.RED, bold=True)
        print(_styled(line, dim=True) if quiet else line, flush=True)


# The count.


async def _run(directory: Path, readings: int) -> list[Line]:
    print("Sensors publish, four parties read, and the broker is killed on the way.\n")
    task = asyncio.current_task()
    assert task is not None
    # Whoever ends the demo ends its broker: Ctrl-C does already, a SIGTERM by this.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with _broker(directory) as broker:
        story = Story(broker, readings)
        try:
            await story.run()
        except ExceptionGroup as group:
            # Told as one line, and the first is the one that ended the others.
            raise group.exceptions[0] from None
        code = await broker.stop()
    if code != 0:
        raise DemoError(f"the broker ended with exit code {code}")
    return count(story, readings, stored(broker.data_dir))


def stored(data_dir: Path) -> dict[str, list[int]]:
    """Return the numbers of the messages in a stopped broker's log, by topic.

    Raises:
        DemoError: The log is damaged.
    """
    from braidmq.broker.records import describe
    from braidmq.wal.disk import Disk
    from braidmq.wal.repair import dump, verify

    disk = Disk(data_dir)
    if not verify(disk, describe).is_intact:
        raise DemoError("the log is damaged")
    found: dict[str, list[int]] = {READINGS: [], ALARMS: [], DEAD_ALARMS: []}
    for record in dump(disk, describe, from_id=1, limit=sys.maxsize):
        if record.what is not None and record.what.topic:
            numbers = found.setdefault(record.what.topic.decode(), [])
            numbers.append(_number(record.body[record.what.payload_at :]))
    return found


def count(story: Story, readings: int, log: dict[str, list[int]]) -> list[Line]:
    """Return the lines of the summary."""
    pair = Account("pair", story.pair[0].handled | story.pair[1].handled)
    pair.deliveries = sum(worker.deliveries for worker in story.pair)
    shares = " and ".join(f"{len(worker.handled):,}" for worker in story.pair)
    told, alarms, letters = story.confirmed, story.alarms, story.letters.handled
    sent_again = f"{story.repeated:,} sent again after the kill"
    published = set(range(1, readings + 1))
    poisoned = letters - story.siren.handled
    return [
        Line("readings published, and confirmed", published, told, sent_again),
        Line("  in the log", told, set(log[READINGS]), _doubled(log[READINGS])),
        Line("  archive, iterating", told, story.archive.handled, story.archive.again),
        Line("  two workers, competing", told, pair.handled, f"{shares}; {pair.again}"),
        Line("  poller, fetching", told, story.poller.handled, story.poller.again),
        Line("alarms published, and confirmed", set(range(1, ALARMS_COUNT + 1)), alarms),
        Line("  in the log", alarms, set(log[ALARMS]), _doubled(log[ALARMS])),
        Line("  handled, or dead letters", alarms, story.siren.handled | letters),
        Line("dead letters, only the poisoned", {POISON}, poisoned),
        Line("  in the log", letters, set(log[DEAD_ALARMS])),
    ]


def _doubled(numbers: list[int]) -> str:
    return f"{sum(times > 1 for times in Counter(numbers).values()):,} twice"


def summarize(lines: list[Line]) -> bool:
    """Print the summary; return whether all counts agree."""
    print(f"\n{'':34}{'expected':>9} {'found':>9}")
    for line in lines:
        verdict = "ok"
        if not line.agrees:
            missing, extra = len(line.expected - line.found), len(line.found - line.expected)
            verdict = f"NO: {missing:,} missing, {extra:,} too many"
        colour = typer.colors.GREEN if line.agrees else typer.colors.RED
        numbers = f"{len(line.expected):9,} {len(line.found):9,}"
        note = f"  ({line.note})" if line.note else ""
        print(f"{line.what:34}{numbers}  {_styled(verdict, fg=colour)}{note}")
    agreed = all(line.agrees for line in lines)
    print("\nTwice and again are what at least once means: in doubt, both ends repeat.")
    verdict = "The counts agree: nothing that was confirmed is missing."
    if not agreed:
        verdict = "THE COUNTS DO NOT AGREE."
    colour = typer.colors.GREEN if agreed else typer.colors.RED
    print(_styled(verdict, fg=colour, bold=True))
    return agreed


def _styled(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, fg=fg, bold=bold or None, dim=dim or None)
