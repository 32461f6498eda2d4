"""The pages on systemd and on upgrades, followed line by line on an isolated machine.

Its systemd is real: it starts the unit as its user, in its sandbox, and keeps a journal. Only
the network is missing: pip finds the wheels of all dependencies on the disk.
"""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.docs.machine import HOME, SECONDS_MAX, Machine, started
from tests.docs.test_snippets import ROOT, read
from tests.docs.told import commands_in
from tests.packaging import wheels

SYSTEMD: Final = "docs/howto/systemd.md"
UPGRADE: Final = "docs/howto/upgrade.md"
PROGRAM: Final = "/opt/braidmq/bin/braidmq"
PIP: Final = "[global]\nno-index = true\nfind-links = /srv/wheels\n"
READY: Final = '"event": "ready"'
ENDED: Final = "Main process exited"
PROBE: Final = (
    "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9100/readyz').status)"
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with the repository's files, wheels of two versions and the dependencies."""
    with started(tmp_path_factory.mktemp("machine")) as machine:
        ours = (
            f"import ensurepip, sys; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"
        )
        if machine.attempt(f'python3 -c "{ours}"').returncode:
            pytest.skip("the wheels do not fit the python3 of this machine, or it has no venv")
        home = machine.root / HOME.lstrip("/")
        shutil.copytree(ROOT / "ops", home / "ops")
        (home / "dist").mkdir()
        old = wheels.build(tmp_path_factory.mktemp("build"))
        shutil.copy(old, home / "dist")
        wheels.renumber(old, home / "dist", new_version())
        place = machine.root / "srv/wheels"
        place.mkdir(parents=True)
        for needed in wheels.needed(old, "server"):
            wheels.pack(needed, place)
        (machine.root / "etc/pip.conf").write_text(PIP, "utf-8")
        yield machine


@pytest.fixture(scope="module")
def key(machine: Machine) -> str:
    """Follow the page on systemd, and return the key that it creates."""
    output = {line: follow(machine, line) for block in commands_in(SYSTEMD) for line in block}
    (shown,) = [text for line, text in output.items() if " keys new " in line]
    (key,) = re.findall(r"^#   (\S+)$", shown, re.MULTILINE)
    return str(key)


def new_version() -> str:
    """Return the version that the page on upgrades installs."""
    (found,) = re.findall(r"braidmq-([\d.]+)-\*\.whl", read(UPGRADE))
    return str(found)


def follow(machine: Machine, line: str) -> str:
    """Run a line, and do what the page says about it."""
    if line.endswith(" -f"):
        return until_ready(machine, line)
    output = machine.run(line)
    if " keys new " in line:
        (place,) = re.findall(r"block that was printed at the end of `/(\S+)`", read(SYSTEMD))
        with (machine.root / place).open("a", encoding="utf-8") as file:
            file.write(output)
    return output


def until_ready(machine: Machine, line: str) -> str:
    """Follow a journal until the broker is ready."""
    with subprocess.Popen(machine.command(line), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for entry in process.stdout:
                assert ENDED not in entry
                if READY in entry:
                    return entry
        finally:
            process.kill()
    pytest.fail(f"{line!r} ended early")


def wait_for_the_ready_file(machine: Machine) -> None:
    """Wait for the ready file that the page names."""
    (place,) = re.findall(r"ready file is `/(\S+)`", read(SYSTEMD))
    deadline = time.monotonic() + SECONDS_MAX
    while not (machine.root / place).exists():
        assert "active" == machine.run("systemctl is-active braidmq").strip()
        assert time.monotonic() < deadline
        time.sleep(0.05)  # it changes in another process


def edit(machine: Machine, command: str, *lines: str) -> None:
    """Run the command with a terminal and an editor that inserts *lines*."""
    text = "\n".join(["[Service]", *lines, ""])
    (machine.root / "srv/lines").write_text(text, "utf-8")
    machine.run(f"SYSTEMD_EDITOR='sed -i -e 2r/srv/lines' script -qec '{command}' /dev/null")


def wait_until_it_fails(machine: Machine) -> None:
    """Wait until systemd has seen the broker exit."""
    deadline = time.monotonic() + SECONDS_MAX
    state = "systemctl show -P SubState braidmq"
    while machine.run(state).strip() not in {"auto-restart", "failed"}:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # it changes in another process


def test_the_page_ends_with_a_ready_broker(machine: Machine, key: str) -> None:
    """Enabled at boot, with its log, ready file and key where the page says."""
    links = machine.root / "etc/systemd/system/multi-user.target.wants"
    url = f"http://{key}@127.0.0.1:9100"

    wait_for_the_ready_file(machine)
    assert "active\nenabled\n" == machine.run(
        "systemctl is-active braidmq; systemctl is-enabled braidmq"
    )
    assert ["braidmq.service"] == [path.name for path in links.iterdir()]
    assert "200\n" == machine.run(f'python3 -c "{PROBE}"')
    machine.run(f"{PROGRAM} topics --url {url}")
    (log,) = re.findall(r"The log is in `(\S+)`", read(SYSTEMD))
    assert "braidmq braidmq 700\n" == machine.run(f"stat -c '%U %G %a' {log}")
    assert "wal" in machine.run(f"ls {log}").split()


@pytest.mark.usefixtures("key")
def test_the_unit_drops_all_privileges(machine: Machine) -> None:
    """According to the kernel: no capabilities, no way to gain any, filtered system calls."""
    status = machine.run('cat "/proc/$(systemctl show -P MainPID braidmq)/status"')
    found = dict(
        re.findall(r"^(CapEff|CapBnd|NoNewPrivs|Seccomp):\s+(\S+)$", status, re.MULTILINE)
    )

    assert {"CapEff": 16 * "0", "CapBnd": 16 * "0", "NoNewPrivs": "1", "Seccomp": "2"} == found


@pytest.mark.usefixtures("key")
def test_systemd_accepts_the_unit(machine: Machine) -> None:
    """As installed; its security analysis works as the page says."""
    verified = machine.attempt("systemd-analyze verify --man=no braidmq.service")
    (command,) = re.findall(r"`(systemd-analyze [^`]+)`", read(SYSTEMD))

    assert (0, "", "") == (verified.returncode, verified.stdout, verified.stderr)
    assert "OK" in machine.run(f"{command} --no-pager").splitlines()[-1]


def test_the_command_on_the_operations_page_is_the_units() -> None:
    """So the tests above run it."""
    pattern = r"^ExecStart=/opt/braidmq/bin/(.*)$"
    (start,) = re.findall(pattern, read("ops/braidmq.service"), re.MULTILINE)

    assert [start] == commands_in("docs/operations.md")[0]


@pytest.mark.usefixtures("key")
def test_a_port_below_1024_needs_the_documented_settings(machine: Machine) -> None:
    """The broker fails without the two settings, and starts with them."""
    ((ambient, capability),) = re.findall(r"needs `(\w+=)(\w+)`", read(SYSTEMD))
    (bounding,) = re.findall(r"the same in `(\w+=)`", read(SYSTEMD))
    (command,) = re.findall(r"`(systemctl edit [^`]+)`", read(SYSTEMD))
    port = "Environment=BRAIDMQ_HTTP__PORT=80"
    try:
        edit(machine, command, port)
        machine.run("systemctl restart braidmq")
        wait_until_it_fails(machine)
        edit(machine, command, port, f"{ambient}{capability}", f"{bounding}{capability}")
        machine.run("systemctl restart braidmq")
        wait_for_the_ready_file(machine)
        assert "200\n" == machine.run(f'python3 -c "{PROBE.replace("9100", "80")}"')
    finally:
        # systemd counts starts as well, and would refuse the sixth.
        machine.run("systemctl revert braidmq; systemctl reset-failed braidmq")
        machine.run("systemctl restart braidmq")


def test_an_upgrade_keeps_the_messages(machine: Machine, key: str) -> None:
    """Stopped, upgraded and started as the page says."""
    url = f"vibe://{key}@127.0.0.1:2925"
    new = new_version()
    wait_for_the_ready_file(machine)
    machine.run(f"{PROGRAM} publish orders 4711 --url {url}")
    before = machine.run(f"{PROGRAM} --version")
    for block in commands_in(UPGRADE):
        for line in block:
            machine.run(line)
    wait_for_the_ready_file(machine)

    assert f"braidmq {new}\n" == machine.run(f"{PROGRAM} --version") != before
    assert "4711\n" == machine.run(f"{PROGRAM} subscribe orders --count 1 --url {url}")
