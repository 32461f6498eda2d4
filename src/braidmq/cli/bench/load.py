"""The load of `braidmq bench`: publishers and subscribers on the client library, and a clock.

A message holds the time at which it was due and its number:

    0   1                    21             33
    +---+--------------------+--------------+-------------+---+
    | " | due, ns, 20 digits | no, 12 digits| filling ... | " |    a JSON string
    +---+--------------------+--------------+-------------+---+

Latency is measured from the time at which a message was due, not from when it was sent.
Otherwise a generator that waits for a slow broker would leave that wait out of the figures.
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import BraidError

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Client, Subscription

SIZE_MIN: Final = 34
"""Size of a message without filling, in bytes."""

MESSAGES_MAX: Final = 10_000_000
"""Per run: each costs eight bytes for its latency and one to detect redelivery."""

BATCH_COUNT: Final = 500
"""Messages per batch of a publisher; at a rate, as many as are due."""

TAKE_COUNT: Final = 256
SILENCE_S_MAX: Final = 10.0
"""How long a run waits for the next delivery after the last confirmation."""

LOOK_S: Final = 0.02
BUCKET_S: Final = 0.1
"""Resolution of the rates over time."""

_NS: Final = 1_000_000_000
_STAMP: Final = slice(1, 21)
_NUMBER: Final = slice(21, 33)


class BenchError(BraidError):
    """A run failed in a way that makes its figures meaningless."""


@dataclass(frozen=True, slots=True)
class Load:
    """The parameters of a run; either `messages` or `seconds` ends it."""

    strand: str
    topic: str
    publishers: int
    subscribers: int
    size: int
    qos: int
    messages: int | None
    seconds: float | None
    rate: float  # messages a second over all publishers; 0: as fast as they are confirmed

    @property
    def messages_max(self) -> int:
        """The most messages that are published."""
        return MESSAGES_MAX if self.messages is None else self.messages

    @property
    def shares(self) -> bool:
        """Whether subscribers share the messages, as consumers of a queue do."""
        return self.strand == "vibe"


@dataclass(slots=True)
class Measured:
    """The counts of a run; times are in seconds."""

    published: int = 0
    refused: int = 0
    delivered: int = 0
    repeated: int = 0
    lost: int = 0
    queue_stays: bool = False
    topic_stays: bool = False
    interrupted: bool = False
    publish_s: float = 0.0
    deliver_s: float = 0.0
    latencies: "array[float]" = field(default_factory=lambda: array("d"))
    confirmations: "array[float]" = field(default_factory=lambda: array("d"))
    published_at: "Counter[int]" = field(default_factory=Counter)  # by bucket of time
    delivered_at: "Counter[int]" = field(default_factory=Counter)


def payload(due_ns: int, number: int, size: int) -> bytes:
    """Return a message of *size* bytes."""
    return b'"%020d%012d%b"' % (due_ns, number, b"x" * (size - SIZE_MIN))


class Run:
    """One run against one broker; *progress* is called with the part done, from 0 to 1."""

    def __init__(self, load: Load, progress: Callable[[float], None]) -> None:
        self._load = load
        self._progress = progress
        self._measured = Measured()
        self._seen: list[bytearray] = []  # by subscriber: a byte for each number
        self._next_number = 0
        self._started_ns = 0
        self._last_delivery_ns = 0

    async def go(self, url: str) -> Measured:
        """Publish, receive and count.

        Raises:
            BenchError: Durable messages were not delivered.
            ClientError: The broker cannot be reached, or refuses every publish.
        """
        import braidmq

        load = self._load
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(braidmq.connect(url))
                for _ in range(load.publishers + load.subscribers)
            ]
            makes_queue = load.strand == "vibe" and await self._is_new_queue(clients[0])
            try:
                await self._measure(clients[: load.publishers], clients[load.publishers :])
            finally:
                if makes_queue:
                    await self._delete_queue(clients[0])
        self._finish()
        return self._measured

    def interrupted(self) -> Measured | None:
        """Return the figures up to the signal that ended the run; None if there are none."""
        if not self._measured.published:
            return None
        self._measured.interrupted = True
        self._measured.deliver_s = (self._last_delivery_ns - self._started_ns) / _NS
        return self._measured

    async def _measure(self, publishers: "list[Client]", readers: "list[Client]") -> None:
        load = self._load
        async with AsyncExitStack() as subscribed:
            tasks = [
                asyncio.create_task(
                    self._receive(
                        await subscribed.enter_async_context(
                            reader.subscribe(load.topic, qos=load.qos)
                        )
                    )
                )
                for reader in readers
            ]
            try:
                await self._publish_all(publishers)
                await self._wait_for_rest(tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _is_new_queue(self, client: "Client") -> bool:
        """Return whether the queue is new, and so ours to delete at the end."""
        from braidmq.client import QueueRefused

        try:
            return await client.queue_info(self._load.topic) is None
        except QueueRefused:  # a key that may not look may still publish
            self._measured.queue_stays = True
            return False

    async def _delete_queue(self, client: "Client") -> None:
        from braidmq.client import ClientError

        try:
            await client.delete_queue(self._load.topic)
        except ClientError:  # the figures are still valid
            self._measured.queue_stays = True

    async def _publish_all(self, publishers: "list[Client]") -> None:
        self._started_ns = self._last_delivery_ns = time.monotonic_ns()
        tasks = [asyncio.create_task(self._publish(client)) for client in publishers]
        try:
            # The first failure ends the others: half a load measures nothing.
            await asyncio.gather(*tasks)
        finally:
            self._measured.publish_s = self._elapsed_s()  # also if a signal ends it here
            for task in tasks:
                task.cancel()

    async def _publish(self, client: "Client") -> None:
        load, measured = self._load, self._measured
        rate = load.rate / load.publishers
        # Look twice per message at least, or low rates would come in steps of LOOK_S.
        pause_s = min(LOOK_S, 0.5 / rate) if rate else 0.0
        due = self._due(rate)
        while True:
            batch = next(due)
            if batch is None:
                return
            if not batch:
                await asyncio.sleep(pause_s)
                continue
            began_ns = time.monotonic_ns()
            published = await self._publish_batch(client, batch)
            if published:
                measured.confirmations.append((time.monotonic_ns() - began_ns) / _NS)
                measured.published_at[self._bucket()] += published
            self._tell()

    async def _publish_batch(self, client: "Client", batch: list[bytes]) -> int:
        """Return how many of a batch were accepted; raise if no message ever was."""
        from braidmq.client import PublishError

        load, measured = self._load, self._measured
        results = await client.publish_many(load.topic, batch, qos=load.qos)
        refusals = [result for result in results if isinstance(result, PublishError)]
        published = len(results) - len(refusals)
        measured.refused += len(refusals)
        measured.published += published
        if refusals and not measured.published:
            raise refusals[0]  # a rate of refusals says nothing about messages
        return published

    def _due(self, rate: float) -> Iterator[list[bytes] | None]:
        """Yield what a publisher must send now, perhaps an empty batch; None at the end."""
        load, sent = self._load, 0
        while not self._is_over():
            now_ns = time.monotonic_ns()
            count = BATCH_COUNT
            if rate:
                due = int((now_ns - self._started_ns) / _NS * rate) + 1
                count = min(count, due - sent)
            left = load.messages_max - self._next_number
            numbers = range(self._next_number, self._next_number + min(count, left))
            self._next_number = numbers.stop
            if rate:
                # Stamped with when each was due, even if the broker made this batch wait.
                gap = _NS / rate
                stamps = (
                    self._started_ns + int((sent + at) * gap) for at in range(len(numbers))
                )
                batch = [
                    payload(*both, load.size) for both in zip(stamps, numbers, strict=True)
                ]
            else:
                batch = [payload(now_ns, number, load.size) for number in numbers]
            sent += len(numbers)
            yield batch
        yield None

    def _is_over(self) -> bool:
        load = self._load
        if load.seconds is not None and self._elapsed_s() >= load.seconds:
            return True
        return self._next_number >= load.messages_max

    async def _receive(self, messages: "Subscription") -> None:
        seen = bytearray()
        self._seen.append(seen)
        measured = self._measured
        while True:
            taken = await messages.take(TAKE_COUNT)
            now_ns = time.monotonic_ns()
            for message in taken:
                number, due_ns = self._told_by(message.payload)
                if number >= len(seen):
                    seen.extend(bytes(number + BATCH_COUNT - len(seen)))
                if seen[number]:
                    measured.repeated += 1
                else:
                    seen[number] = 1
                    measured.delivered += 1
                    measured.latencies.append((now_ns - due_ns) / _NS)
                await message.ack()
            self._last_delivery_ns = now_ns
            measured.delivered_at[self._bucket()] += len(taken)

    def _told_by(self, content: bytes) -> tuple[int, int]:
        """Return number and moment of a message of this run; others are not acknowledged."""
        number, due_ns = content[_NUMBER], content[_STAMP]
        is_one = len(content) == self._load.size and (due_ns + number).isdigit()
        if is_one and int(number) < self._next_number:
            return int(number), int(due_ns)
        topic = self._load.topic
        raise BenchError(
            f"{topic} carries messages of other publishers; choose another --topic"
        )

    async def _wait_for_rest(self, tasks: "list[asyncio.Task[None]]") -> None:
        expected = self._expected()
        # The deadline moves with each delivery: a slow broker is measured, a silent one is not
        # waited for.
        deadline = time.monotonic() + SILENCE_S_MAX
        delivered = self._measured.delivered
        while self._measured.delivered < expected and time.monotonic() < deadline:
            for task in tasks:
                if task.done():
                    task.result()  # it only ends by an error: raise it
            await asyncio.sleep(LOOK_S)
            if self._measured.delivered != delivered:
                delivered = self._measured.delivered
                deadline = time.monotonic() + SILENCE_S_MAX
        self._progress(1.0)

    def _expected(self) -> int:
        load = self._load
        readers = min(load.subscribers, 1) if load.shares else load.subscribers
        return self._measured.published * readers

    def _finish(self) -> None:
        measured = self._measured
        measured.deliver_s = (self._last_delivery_ns - self._started_ns) / _NS
        measured.lost = max(0, self._expected() - measured.delivered)
        # Qumbed delivers at most once and QoS 0 is in memory: there, a loss is a result.
        if measured.lost and self._load.qos and self._load.strand != "qumbed":
            raise BenchError(
                f"{measured.lost:,} of {self._expected():,} deliveries are missing after "
                f"{SILENCE_S_MAX:.0f} s without any; look at the broker's log"
            )

    def _elapsed_s(self) -> float:
        return (time.monotonic_ns() - self._started_ns) / _NS

    def _bucket(self) -> int:
        return int(self._elapsed_s() / BUCKET_S)

    def _tell(self) -> None:
        load = self._load
        if load.messages is not None:
            self._progress(min(1.0, self._next_number / load.messages))
        elif load.seconds is not None:
            self._progress(min(1.0, self._elapsed_s() / load.seconds))
