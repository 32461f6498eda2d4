"""A broker under attack, and what must stay true of it: no traceback, bounded memory and
descriptors, and a healthy client beside the attack that goes on.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import braidmq
from braidmq.base.errors import BraidError
from tests.integration.blip.peer import until
from tests.integration.served import Served

RSS_BYTES_MAX: Final = (512 + 150) * 1024 * 1024
"""The default of limits.max_memory_bytes, and what the program itself may take."""

DESCRIPTORS_LEFT_MAX: Final = 32
"""More may be open after an attack than before it: segments and indexes, for each thread that
has read them. A round of strangers is more than a hundred.
"""

_BAD_WORDS: Final = ("Traceback (most recent call last)", "exception was never retrieved")


class Watched:
    """One broker's process, as /proc and its log show it."""

    def __init__(self, broker: Served) -> None:
        self.broker = broker
        self.pid = broker.process.pid
        self._descriptors = self.descriptors()
        self.rss_bytes_max = 0

    def descriptors(self) -> int:
        """Return how many descriptors are open."""
        return sum(1 for _ in Path(f"/proc/{self.pid}/fd").iterdir())

    def rss_bytes(self) -> int:
        """Return the resident memory, and remember the most that was seen."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        rss = pages * os.sysconf("SC_PAGE_SIZE")
        self.rss_bytes_max = max(self.rss_bytes_max, rss)
        return rss

    def complaints(self) -> list[str]:
        """Return what its log must never say."""
        lines = self.broker.stderr.splitlines()
        return [
            line for line in lines if any(word in line for word in _BAD_WORDS) or is_error(line)
        ]

    async def check(self) -> None:
        """Assert that it lives, said nothing wrong, and gave back what strangers took."""
        assert self.broker.process.returncode is None, self.broker.stderr[-4000:]
        assert [] == self.complaints()
        assert self.rss_bytes() < RSS_BYTES_MAX
        most = self._descriptors + DESCRIPTORS_LEFT_MAX
        try:
            await until(lambda: self.descriptors() <= most)
        except TimeoutError:
            raise AssertionError(f"more than {most} are open: {self._open()}") from None

    def _open(self) -> Counter[str]:
        """Return what is open, sockets by the port that they belong to."""
        ports: dict[str, str] = {}
        for table in ("tcp", "tcp6", "udp"):
            for line in Path(f"/proc/{self.pid}/net/{table}").read_text().splitlines()[1:]:
                words = line.split()
                port, state = int(words[1].rpartition(":")[2], 16), words[3]
                ports[f"socket:[{words[9]}]"] = f"{table} {port} state {state}"
        found: Counter[str] = Counter()
        for file in Path(f"/proc/{self.pid}/fd").iterdir():
            with suppress(OSError):
                name = str(file.readlink())
                found[ports.get(name, name.partition(":")[0])] += 1
        return found


def is_error(line: str) -> bool:
    """Say whether a line of the log has the level of an error."""
    try:
        return bool(json.loads(line).get("level") in {"error", "critical"})
    except ValueError:
        return False


class Healthy:
    """A client that publishes and consumes all the while, and times each confirmation."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.seconds: list[float] = []
        self.refusals = 0
        self.is_subscribed = False
        self._sent = 0
        self._got: set[int] = set()
        self._ending = asyncio.Event()

    async def run(self) -> None:
        """Work until it is told to end, and then until everything has come back."""
        async with braidmq.connect(self._url) as client, braidmq.connect(self._url) as other:
            consuming = asyncio.create_task(self._consume(other))
            while not self._ending.is_set():
                begin = time.perf_counter()
                try:
                    await client.publish("healthy", b"%d" % self._sent)
                except BraidError:
                    self.refusals += 1  # a full disk; the same number is tried again
                else:
                    self.seconds.append(time.perf_counter() - begin)
                    self._sent += 1
                await asyncio.sleep(0.002)
            await until(lambda: not self.lost() or consuming.done())
            consuming.cancel()

    async def _consume(self, client: "braidmq.Client") -> None:
        async with client.subscribe("healthy") as messages:
            self.is_subscribed = True
            async for message in messages:
                await message.ack()
                self._got.add(int(message.payload))

    def end(self) -> None:
        """Publish no more."""
        self._ending.set()

    @property
    def sent(self) -> int:
        """How many publishes were confirmed."""
        return self._sent

    @property
    def p99_ms(self) -> float:
        """The 99th percentile of the time to a confirmation."""
        return 1000 * sorted(self.seconds)[len(self.seconds) * 99 // 100]

    def lost(self) -> set[int]:
        """Return what was confirmed and never came."""
        return set(range(self._sent)) - self._got


@asynccontextmanager
async def healthy(url: str, *, count_min: int = 50) -> AsyncIterator[Healthy]:
    """Run a healthy client beside the block; at the end nothing of it may be missing."""
    client = Healthy(url)
    running = asyncio.create_task(client.run())
    try:
        await until(lambda: client.is_subscribed or running.done())
        yield client
        await until(lambda: client.sent >= count_min or running.done())
        client.end()
        await asyncio.wait_for(running, 60)
    finally:
        running.cancel()

    assert set() == client.lost()


async def p99_alone(url: str) -> float:
    """Return a healthy client's p99 without an attack, in milliseconds."""
    async with healthy(url, count_min=200) as client:
        pass
    return client.p99_ms


def report(attack: str, alone_ms: float, client: Healthy) -> None:
    """Print a healthy client's p99 with and without an attack; `make chaos` shows it."""
    sys.stderr.write(
        f"\n{attack}: {client.sent} publishes of a healthy client, "
        f"p99 {client.p99_ms:.1f} ms (alone {alone_ms:.1f} ms)\n"
    )
