"""What the machine lacks: descriptors, memory, space, a disk that answers, files, the time.

Each attack meets the real daemon while the rig's clients keep a ledger and a healthy client
works beside. In the end everything that was confirmed must be there, once, in order; the broker
itself must have lived through it, unless its files were taken away, when it may refuse to start
but never start without them. BRAIDMQ_EXHAUSTIONS sets how often each attack is repeated;
`make chaos` prints the p99 of the healthy client with and without the attack. Those that need
root, a mount or minutes are left out where they cannot run.
"""

import asyncio
import os
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import pytest

import braidmq
from braidmq.testing.ledger import summarize
from tests.chaos.rig import Rig
from tests.chaos.test_power_cut import Volume, run
from tests.chaos.watched import Healthy, healthy, p99_alone, report
from tests.integration.blip.peer import hello, until

REPEATS: Final = int(os.environ.get("BRAIDMQ_EXHAUSTIONS", "1"))
ATTACK_S: Final = 0.8
SPARE_DESCRIPTORS: Final = 12
STRANGERS: Final = 60
SPARE_MEMORY_BYTES: Final = 400 * 1024 * 1024
FULL_BYTES: Final = 16 * 1024 * 1024
BULK: Final = 20
BULK_BYTES: Final = 60_000

YEAR_US: Final = 365 * 24 * 3600 * 1_000_000

CLOCK: Final = """
import os
from braidmq.server.engine import clock
_real = clock.SystemTime.wall_us
def _wrong(self):
    with open(os.environ["WRONG_CLOCK"]) as step:
        return _real(self) + int(step.read())
clock.SystemTime.wall_us = _wrong
"""
"""Makes the system's clock of a broker as wrong as a file says."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180 + 60 * REPEATS)]

Attack = Callable[[Rig], Awaitable[None]]


@contextmanager
def rig_at(
    directory: Path, data_dir: Path | None = None, settings: dict[str, str] | None = None
) -> Iterator[Rig]:
    wrong = directory / "wrong_clock"
    wrong.write_text("0")
    rig = Rig(
        directory,
        seed=1,
        data_dir=data_dir,
        settings={"WRONG_CLOCK": str(wrong), **(settings or {})},
        http="127.0.0.1:0",
        prelude=CLOCK,
    )
    try:
        yield rig
    finally:
        rig.close()


async def survived(rig: Rig, name: str, attack: Attack) -> None:
    """Attack the broker while its clients work; judge the ledger after a kill."""
    for _ in range(REPEATS):
        rig.start()
        url = f"vibe://dev-key@127.0.0.1:{rig.daemon.vibe_port}"
        alone_ms = await p99_alone(url) if REPEATS > 1 else 0.0
        tasks = await rig.live(0.3)
        async with healthy(url, count_min=20) as client:
            await attack(rig)
            await going_on(rig, client)
        report(name, alone_ms, client)
        assert rig.daemon.is_alive(), rig.daemon.last_words()
        assert "Traceback" not in rig.daemon.last_words()
        rig.daemon.kill()
        await rig.rest(tasks)
        if attack is set_clock:
            await attack(rig)
    violations = await rig.drain_and_judge(1 if REPEATS == 1 else 2)
    sys.stderr.write(f"{name}: {summarize(rig.ledger)}\n")

    assert [] == violations
    assert summarize(rig.ledger).confirmed > 0


async def going_on(rig: Rig, client: Healthy) -> None:
    """Wait until publishes are confirmed again, without help."""
    before = client.sent
    try:
        await until(lambda: client.sent > before + 3 or not rig.daemon.is_alive())
    except TimeoutError:
        raise AssertionError(f"publishes stopped: {rig.daemon.last_words()}") from None
    assert rig.daemon.is_alive(), rig.daemon.last_words()


# Descriptors: strangers hold and renew sockets on every TCP listener of a broker that has few.


def descriptors_of(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def address_space_of(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    return pages * resource.getpagesize()


async def take_descriptors(rig: Rig) -> None:
    pid = rig.daemon.pid
    there = descriptors_of(pid)
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (there + SPARE_DESCRIPTORS, limits[1]))
    held: list[socket.socket] = []
    loop = asyncio.get_running_loop()
    end = loop.time() + ATTACK_S
    try:
        while loop.time() < end:
            for port in (rig.daemon.port, rig.daemon.vibe_port, rig.daemon.http_port):
                held += knock(port, STRANGERS // 3)
            await asyncio.sleep(0.05)
            for stranger in held[: len(held) - STRANGERS]:
                stranger.close()
            del held[: max(0, len(held) - STRANGERS)]
    finally:
        for stranger in held:
            stranger.close()
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


def knock(port: int, count: int) -> list[socket.socket]:
    """Connect, say half of something, and stay."""
    strangers = []
    for _ in range(count):
        stranger = socket.socket()
        stranger.setblocking(False)
        with suppress(BlockingIOError):
            stranger.connect(("127.0.0.1", port))
        with suppress(OSError):
            stranger.send(hello()[:5])
        strangers.append(stranger)
    return strangers


def test_strangers_who_take_every_descriptor_end_nothing(tmp_path: Path) -> None:
    """EMFILE in a snapshot, an index or an accept is tried again; nothing confirmed is lost."""
    with rig_at(tmp_path) as rig:
        asyncio.run(survived(rig, "no descriptors", take_descriptors))


# Memory: frames that are begun and never finished, in an address space with little room.


async def take_memory(rig: Rig) -> None:
    pid = rig.daemon.pid
    room = address_space_of(pid) + SPARE_MEMORY_BYTES
    limits = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (room, limits[1]))
    head = (0x00FFFFF0).to_bytes(4, "big") + b"\x00\x01\x14"
    writers = []
    with suppress(OSError):
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", rig.daemon.vibe_port)
            writer.write(head + bytes(15 * 1024 * 1024))
            writers.append(writer)
    await asyncio.sleep(ATTACK_S)
    for writer in writers:
        writer.transport.abort()
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, limits)


@pytest.mark.campaign
def test_unfinished_frames_do_not_take_the_memory_of_others(tmp_path: Path) -> None:
    """They count towards the budget, so that an address space of its size suffices."""
    settings = {"BRAIDMQ_LIMITS__MAX_MEMORY_BYTES": str(64 * 1024 * 1024)}
    settings["BRAIDMQ_VIBE__MAX_MESSAGE_BYTES"] = str(16 * 1024 * 1024)
    with rig_at(tmp_path, settings=settings) as rig:
        asyncio.run(survived(rig, "no memory", take_memory))


# Space: a disk that is filled by another program, while publishers try on.


@contextmanager
def small_disk(directory: Path) -> Iterator[Path]:
    """Mount a small disk, or skip the test."""
    if os.geteuid():
        pytest.skip("a small disk needs root")
    place = directory / "small"
    place.mkdir()
    try:
        run("mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(place))
    except subprocess.CalledProcessError as error:
        pytest.skip(f"a small disk needs a mount: {error.stderr.decode().strip()}")
    try:
        yield place
    finally:
        run("umount", str(place))


async def take_space(rig: Rig) -> None:
    """Fill the disk, and give nothing back: retention must make the room."""
    assert rig.data_dir is not None
    # For no consumer: retention may delete it as soon as it is old enough.
    async with braidmq.connect(f"blip://dev-key@127.0.0.1:{rig.daemon.port}") as client:
        for _ in range(BULK):
            await client.publish("bulk", bytes(BULK_BYTES))
    ballast = rig.data_dir.parent / "ballast"
    with ballast.open("ab", buffering=0) as file:
        with suppress(OSError):
            while True:
                file.write(bytes(64 * 1024))
        with suppress(OSError):
            while True:
                file.write(bytes(4096))
    await asyncio.sleep(ATTACK_S)
    if REPEATS > 1 and rig.rng.random() < 0.5:
        ballast.unlink()


def test_a_full_disk_empties_while_publishers_try_on(tmp_path: Path) -> None:
    """Consumers drain, retention deletes, publishing resumes; nobody removes the ballast."""
    # Long enough that the bulk is there when the disk is full, however slow the machine is.
    settings = {"BRAIDMQ_WAL__RETENTION_HOURS": "0.001"}
    with small_disk(tmp_path) as place, rig_at(tmp_path, place / "data", settings) as rig:
        asyncio.run(survived(rig, "a full disk", take_space))


# A frozen disk: every write waits, for longer than any of them should take.


async def freeze(rig: Rig) -> None:
    assert rig.data_dir is not None
    place = str(rig.data_dir.parent)
    run("fsfreeze", "--freeze", place)
    try:
        await asyncio.sleep(ATTACK_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", rig.daemon.http_port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.readexactly(12), 5)).endswith(b"200")
        writer.close()
    finally:
        run("fsfreeze", "--unfreeze", place)


@pytest.mark.campaign
@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_a_frozen_disk_is_waited_for(tmp_path: Path, file_system: str) -> None:
    """Nothing is confirmed meanwhile, health answers, and it goes on when the disk does."""
    with (
        Volume.at(tmp_path, file_system) as volume,
        rig_at(tmp_path, volume.path / "data") as rig,
    ):
        asyncio.run(survived(rig, f"a frozen {file_system}", freeze))


# Files: each of the data directory is missing, empty, or swapped with another of its kind.


def damages(data_dir: Path) -> Iterator[tuple[str, Callable[[], None]]]:
    """Return what can be done to the files that are there, each with its name."""
    for folder in ("wal", "snapshot"):
        files = sorted((data_dir / folder).glob("*"))
        for file in files:
            yield f"missing {file.suffix or file.name}", file.unlink
            yield f"empty {file.suffix or file.name}", partial(empty, file)
        for suffix in (".wal", ".idx", ".snap"):
            same = [file for file in files if file.suffix == suffix]
            if len(same) > 1:
                yield f"swapped {suffix}", partial(swap, same[0], same[-1])


def empty(file: Path) -> None:
    file.write_bytes(b"")


def swap(one: Path, other: Path) -> None:
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


async def fill(rig: Rig) -> None:
    rig.start()
    tasks = await rig.live(2.2)
    rig.daemon.kill()
    await rig.rest(tasks)


async def judge_damage(rig: Rig, name: str) -> str:
    """Start on damaged files: refused, or everything is there."""
    try:
        rig.start()
    except AssertionError:
        assert "damaged" in rig.daemon.last_words(), (name, rig.daemon.last_words())
        return "refused"
    await rig.drain()
    rig.daemon.kill()
    assert [] == rig.verdict(), name
    return "whole"


@pytest.mark.campaign
def test_a_broker_never_starts_without_what_its_files_held(tmp_path: Path) -> None:
    """A missing or foreign file is damage, or it is made again; never a silent loss."""
    outcomes: dict[str, set[str]] = {}
    with rig_at(tmp_path) as rig:
        data, kept = tmp_path / "data", tmp_path / "kept"
        asyncio.run(fill(rig))
        shutil.copytree(data, kept)
        told = rig.ledger
        every = list(damages(data))
        for name, damage in every:
            shutil.rmtree(data)
            shutil.copytree(kept, data)
            damage()
            rig.ledger = rig.scene.ledger = told.fork()
            outcomes.setdefault(name, set()).add(asyncio.run(judge_damage(rig, name)))
        rig.ledger = told
    sys.stderr.write(f"\nfiles: {outcomes}\n")

    assert outcomes


# Time: the system's clock is set while the broker runs, and before it starts.


async def set_clock(rig: Rig) -> None:
    wrong = rig.directory / "wrong_clock"
    step_us = rig.rng.choice((10 * YEAR_US, -10 * YEAR_US, 3_600_000_000, -3_600_000_000))
    wrong.write_text(str(int(wrong.read_text()) + step_us))
    await asyncio.sleep(ATTACK_S)


def test_steps_of_the_clock_lose_nothing(tmp_path: Path) -> None:
    """Messages with a time to live outlast every step, and every kill after one."""
    settings = {"BRAIDMQ_DELIVERY__MESSAGE_TTL_MS": "3600000"}
    with rig_at(tmp_path, settings=settings) as rig:
        # It is wrong again when the broker starts to be drained, in another way.
        asyncio.run(survived(rig, "a wrong clock", set_clock))
        if REPEATS > 1:
            (tmp_path / "wrong_clock").write_text(str(20 * YEAR_US))
            asyncio.run(survived(rig, "a wrong clock at the start", set_clock))
