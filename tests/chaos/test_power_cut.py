"""Power cuts on real ext4 and xfs file systems, which lose whatever was not synced.

The data directory is on a loop mount, the ledger outside it. FS_IOC_SHUTDOWN without a journal
flush stops the file system under the running broker; after the next mount only synced data is
there. This does not model a drive's own cache or torn sectors; the simulation does. Clients of
all strands work meanwhile, queues and Qumbed's followers among them. It needs root, loop
devices and the file system's mkfs. BRAIDMQ_CUTS sets the number of cuts.
"""

import asyncio
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from braidmq.testing.ledger import Violation, summarize
from tests.chaos.mixed_rig import MixedRig
from tests.chaos.rig import Rig

FS_IOC_SHUTDOWN: Final = 0x8004587D
WITHOUT_FLUSH: Final = struct.pack("I", 2)
IMAGE_BYTES: Final = 320 * 1024 * 1024
"""Sparse. mkfs.xfs refuses a smaller one, and a sink leaves 64 MiB free."""

MKFS: Final = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}
CUTS: Final = int(os.environ.get("BRAIDMQ_CUTS", "8"))
CONTROL_CUTS_MAX: Final = 5
AFTERLIFE_S: Final = 0.05
"""How long the broker runs on after the cut: what it still confirms must be durable too."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300 + CUTS * 10)]


class Volume:
    """A file system in a file, whose power can be cut."""

    def __init__(self, directory: Path, file_system: str) -> None:
        self._image = directory / "disk.img"
        self.path = directory / "volume"
        self.path.mkdir()
        with self._image.open("wb") as image:
            image.truncate(IMAGE_BYTES)
        run(*MKFS[file_system], str(self._image))
        self.mount()

    @classmethod
    @contextmanager
    def at(cls, directory: Path, file_system: str) -> Iterator["Volume"]:
        """Make a file system, or skip the test; it is gone when the block ends."""
        mkfs = MKFS[file_system][0]
        if os.geteuid() or not Path("/dev/loop-control").exists() or not shutil.which(mkfs):
            pytest.skip(f"a file system of its own needs root, loop devices and {mkfs}")
        try:
            made = cls(directory, file_system)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"it needs a loop mount: {error.stderr.decode().strip()}")
        try:
            yield made
        finally:
            made.unmount()

    def mount(self) -> None:
        run("mount", "-o", "loop", str(self._image), str(self.path))

    def unmount(self) -> None:
        run("umount", str(self.path))

    def cut_power(self) -> None:
        """Drop everything that was not synced."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.ioctl(handle, FS_IOC_SHUTDOWN, WITHOUT_FLUSH)
        finally:
            os.close(handle)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(params=["ext4", "xfs"])
def volume(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Volume]:
    with Volume.at(tmp_path, request.param) as made:
        yield made


async def cut(rig: Rig, volume: Volume, seconds: float) -> None:
    """Let the broker run for a while, then cut the power of its disk."""
    rig.start()
    tasks = await rig.live(seconds)
    volume.cut_power()
    await asyncio.wait(tasks, timeout=AFTERLIFE_S)
    rig.daemon.kill()
    await rig.rest(tasks)
    volume.unmount()
    volume.mount()


async def cut_repeatedly(rig: Rig, volume: Volume) -> list[Violation]:
    for _ in range(CUTS):
        await cut(rig, volume, rig.rng.uniform(0.1, 1.2))
    return await rig.drain_and_judge()


@pytest.mark.parametrize(
    "make", [Rig, pytest.param(MixedRig, marks=pytest.mark.campaign)], ids=["blip", "all"]
)
def test_a_power_cut_loses_nothing_that_was_confirmed(
    tmp_path: Path, volume: Volume, make: type[Rig]
) -> None:
    """With the default fsync policy every confirmed publish and acknowledgement survives.

    With all strands, so does the place of every follower that was away.
    """
    rig = make(tmp_path, seed=1, data_dir=volume.path / "data")
    try:
        violations = asyncio.run(cut_repeatedly(rig, volume))
    finally:
        rig.close()
    summary = summarize(rig.ledger)
    sys.stderr.write(f"\n{CUTS} power cuts: {summary}\n")

    assert [] == violations
    assert summary.confirmed > 100


async def loses_something(rig: Rig, volume: Volume) -> bool:
    await cut(rig, volume, 1.0)
    try:
        return bool(await rig.drain_and_judge())
    except AssertionError:
        return True  # the broker did not even start, and says why


def test_without_fsync_the_rig_detects_the_loss(tmp_path: Path, volume: Volume) -> None:
    """The control: the same cut with `fsync = none` loses confirmed messages."""
    losses = 0
    for number in range(CONTROL_CUTS_MAX):
        directory = tmp_path / str(number)
        directory.mkdir()
        settings = {"BRAIDMQ_WAL__FSYNC": "none", "BRAIDMQ_WAL__SNAPSHOT_INTERVAL_S": "3600"}
        data_dir = volume.path / str(number)
        rig = Rig(directory, seed=number, data_dir=data_dir, settings=settings)
        try:
            losses += asyncio.run(loses_something(rig, volume))
        finally:
            rig.close()
        if losses:
            break

    assert losses > 0
