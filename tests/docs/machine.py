"""An isolated machine to follow a page on: the host's files and its own real systemd.

Writes go to memory, in an overlay above the host's root. Processes, mounts, network, host name
and control groups are separate, kernel settings are read-only, and everything ends with the
process that started it. It needs root, systemd's files, and a kernel that permits it.
"""

import os
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

TOOLS: Final = ("setpriv", "unshare", "nsenter", "pivot_root", "mount", "systemctl")
SYSTEMD: Final = Path("/usr/lib/systemd/systemd")
START_S_MAX: Final = 60
SECONDS_MAX: Final = 100
HOME: Final = "/srv/braidmq"
"""The directory of the repository on the machine."""

NAMESPACES: Final = ("--mount", "--pid", "--cgroup", "--uts", "--ipc", "--net")
# Capabilities that containers lack, too: modules, clocks, raw memory, kernel messages.
WITHOUT: Final = "-sys_module,-sys_time,-sys_rawio,-syslog,-mac_admin,-mac_override"
CLEAN: Final = {
    "HOME": "/root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
}

BOOT: Final = """
set -eu
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$BASE"
root=$BASE/root
mkdir "$BASE/upper" "$BASE/work" "$root"
mount -t overlay -o "lowerdir=/,upperdir=$BASE/upper,workdir=$BASE/work" overlay "$root"
mount -t proc proc "$root/proc"
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for device in null zero full random urandom tty; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mount -t tmpfs -o mode=1777 tmpfs "$root/tmp"
# As if nothing had been set up on it yet.
for place in etc/systemd/system etc/braidmq opt/braidmq var/lib/braidmq; do
    rm -rf "${root:?}/$place"
done
mkdir -p "$root/etc/systemd/system" "$root$PLACE"
: > "$root/etc/fstab"
chroot "$root" userdel braidmq 2> /dev/null || true
mkdir "$root/mnt/outside"
cd "$root"
pivot_root . mnt/outside
umount -l mnt/outside
exec setpriv --bounding-set "$WITHOUT" --inh-caps "$WITHOUT" \
    env -i container=other PATH="$PATH" \
    chroot . "$SYSTEMD" --unit=basic.target --show-status=no --log-target=journal
"""


class Machine:
    """A running machine."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.root = Path(f"/proc/{pid}/root")

    def command(self, line: str) -> list[str]:
        """Return the command that runs *line* there, as root, in the repository."""
        environment = [f"{name}={value}" for name, value in CLEAN.items()]
        shell = ["sh", "-euc", f"cd {HOME}\n{line}"]
        return ["nsenter", f"--target={self._pid}", "--all", "env", "-i", *environment, *shell]

    def attempt(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run *line* there, whatever its exit code."""
        return subprocess.run(
            self.command(line), capture_output=True, check=False, text=True, timeout=SECONDS_MAX
        )

    def run(self, line: str) -> str:
        """Run *line* there, assert that it succeeds, and return its output."""
        done = self.attempt(line)
        assert 0 == done.returncode, (line, done.stdout, done.stderr)
        return done.stdout


@contextmanager
def started(base: Path) -> Iterator[Machine]:
    """Start a machine whose files are below *base*, or skip the test and say why."""
    if os.geteuid() != 0:
        pytest.skip("only root can start an isolated machine")
    if missing := [name for name in (*TOOLS, str(SYSTEMD)) if shutil.which(name) is None]:
        pytest.skip(f"an isolated machine needs {', '.join(missing)}")
    group = _control_group()
    environment = {
        **CLEAN,
        "BASE": str(base),
        "PLACE": HOME,
        "SYSTEMD": str(SYSTEMD),
        "WITHOUT": WITHOUT,
    }
    joined = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    isolated = ["setpriv", "--pdeathsig=KILL", "unshare", *NAMESPACES, "--fork", "--kill-child"]
    log = base.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(
            ["sh", "-euc", joined, str(group), *isolated, "sh", "-c", BOOT],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield _booted(process, log)
    finally:
        process.kill()  # the kernel then kills everything that it has started
        process.wait()
        _remove(group)


def _control_group() -> Path:
    """Create a control group for the machine below our own."""
    mounts = [
        line.split() for line in Path("/proc/self/mounts").read_text("utf-8").splitlines()
    ]
    place = next((mount[1] for mount in mounts if mount[2] == "cgroup2"), None)
    if place is None:
        pytest.skip("an isolated machine needs control groups, version 2")
    groups = Path("/proc/self/cgroup").read_text("utf-8").splitlines()
    (own,) = [line[3:] for line in groups if line.startswith("0::")]
    group = Path(f"{place}{own}") / f"braidmq-{uuid.uuid4().hex}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"control groups cannot be created here: {error}")
    return group


def _booted(process: subprocess.Popen[bytes], log: Path) -> Machine:
    """Wait until systemd reports that it has started."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + START_S_MAX
    while process.poll() is None and time.monotonic() < deadline:
        for pid in children.read_text("utf-8").split():
            if _is_systemd(pid):
                machine = Machine(int(pid))
                state = machine.attempt("systemctl is-system-running").stdout.strip()
                if state in {"running", "degraded"}:
                    return machine
        time.sleep(0.05)  # systemd starts in another process
    pytest.skip(f"systemd does not start in namespaces here: {log.read_text('utf-8')}")


def _is_systemd(pid: str) -> bool:
    """Return whether *pid* is systemd already, so that its root is the machine's."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(bytes(SYSTEMD))
    return False


def _remove(group: Path) -> None:
    """Remove a control group once its last processes are gone."""
    deadline = time.monotonic() + START_S_MAX
    while "populated 1" in (group / "cgroup.events").read_text("utf-8"):
        assert time.monotonic() < deadline, group
        time.sleep(0.01)  # the kernel empties it
    for directory, _, _ in os.walk(group, topdown=False):
        Path(directory).rmdir()
