"""The built wheel works in an environment without the source tree.

This proves that the wheel holds everything the program needs of its own (modules, the page's
files, the command, `py.typed`), that nothing comes from the source tree by accident, and that
the declared dependencies suffice. It does not prove that those can be downloaded: tests do not
use the network, so they come from the environment that runs the tests, but only the declared
ones and their own dependencies.
"""

import json
import subprocess
import sys
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from braidmq.base.extras import how_to_get
from tests.packaging import wheels
from tests.packaging.wheels import ROOT, SECONDS_MAX, clean_environment

START_S_MAX: Final = 60
IMPORT_ALL: Final = """
import importlib, json, pkgutil, braidmq

count, lacking = 0, {}
for module in pkgutil.walk_packages(braidmq.__path__, "braidmq.", onerror=lambda name: None):
    try:
        importlib.import_module(module.name)
    except ModuleNotFoundError as error:
        lacking[module.name] = error.name.partition(".")[0]
    else:
        count += 1
print(json.dumps([count, lacking]))
"""
READ: Final = """
import importlib.util, sys
import braidmq.sync
from braidmq import columnar

blip, flight = sys.argv[1:]
print("pyspark" if importlib.util.find_spec("pyspark") else "no pyspark")
with braidmq.sync.connect(f"blip://dev-key@{blip}") as client:
    client.publish_many("orders", [b"1", b"2"])
far = columnar.open_log(endpoint=f"grpc://{flight}", api_key="dev-key")
for log in (columnar.open_log("data"), far):
    values = [batch["value"].to_pylist() for batch in log.batches(topics=["orders"])]
    print([value.decode() for some in values for value in some])
"""
SEND: Final = """
import sys
import braidmq.sync

blip, vibe, qumbed = sys.argv[1:]
for url in (f"blip://dev-key@{blip}", f"vibe://dev-key@{vibe}"):
    with braidmq.sync.connect(url) as client, client.subscribe("orders") as messages:
        client.publish("orders", b"1")
        for message in messages.fetch(max=1, timeout=10):
            with message.process():
                print(message.payload.decode())
try:
    braidmq.sync.connect(f"qumbed://dev-key@{qumbed}")
except ImportError as error:
    print(error)
"""
MIB: Final = 1024 * 1024
SIZES_MIB: Final = {"": 30, "qumbed": 75, "server": 100, "columnar": 300, "spark": 1100}
"""What the packages of each extra take at most, without bytecode."""

NEVER: Final = {
    "": {
        "aioquic",
        "argon2-cffi",
        "cryptography",
        "pyarrow",
        "starlette",
        "uvicorn",
        "zeroconf",
    },
    "qumbed": {"argon2-cffi", "pyarrow", "starlette", "uvicorn"},
    "server": {"numpy", "pyarrow", "pyspark"},
    "columnar": {"aioquic", "argon2-cffi", "pyspark", "uvicorn"},
    "spark": {"aioquic", "argon2-cffi", "uvicorn"},
}
EXTRA_PACKAGES: Final = ("numpy", "opentelemetry", "py4j", "pyarrow", "pyspark")
NEED_AN_EXTRA: Final = (
    "braidmq.cli.demo.spark",
    "braidmq.columnar",
    "braidmq.server.flight",
    "braidmq.server.sink",
    "braidmq.daemon.tracing",
    "braidmq.spark",
)

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our wheel, built once for all tests."""
    return wheels.build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("empty") / "venv", "server")


def installed(wheel: Path, place: Path, *extras: str) -> Path:
    """Install the wheel into an empty environment; return the directory of its programs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    programs = place / "bin"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(programs / "python")),
            *("install", "--no-deps", "--no-index", "--quiet", str(wheel)),
        ],
        check=True,
        env=clean_environment(),
        timeout=SECONDS_MAX,
    )
    wheels.link_dependencies(place, wheel, *extras)
    return programs


@pytest.fixture(scope="module")
def light(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment without any extra."""
    return installed(wheel, tmp_path_factory.mktemp("light") / "venv")


@contextmanager
def serving(programs: Path, directory: Path, flight: str = "off") -> Iterator[dict[str, str]]:
    ready = directory / "ready.json"
    addresses = [f"--{name}=127.0.0.1:0" for name in ("blip", "vibe", "qumbed", "http")]
    words = ["serve", "--dev", f"--flight={flight}", *addresses, "--ready-file", str(ready)]
    with subprocess.Popen(
        [programs / "braidmq", *words],
        cwd=directory,
        env=clean_environment(),
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            deadline = time.monotonic() + START_S_MAX
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)  # another process writes it
            yield json.loads(ready.read_text("utf-8"))
            process.terminate()
            assert 0 == process.wait(SECONDS_MAX)
        finally:
            process.kill()


def get(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own broker
        return answer.status, answer.read()


def test_the_wheel_holds_what_the_program_needs_and_no_more(wheel: Path) -> None:
    """Every module, the page's files and the typing marker; no tests, no benchmarks."""
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    package = ROOT / "src" / "braidmq"
    wanted = {
        path.relative_to(ROOT / "src").as_posix()
        for path in package.rglob("*")
        if path.is_file() and (path.suffix == ".py" or "static" in path.parts)
    }

    assert "braidmq/py.typed" in names
    assert {name for name in wanted if "/static/" in name}
    assert set() == wanted - names
    assert {"braidmq", "pyspark_braidmq"} == {
        name.split("/")[0].split("-")[0] for name in names
    }


def test_every_module_can_be_imported_with_its_declared_dependencies(
    environment: Path, tmp_path: Path
) -> None:
    """Except for modules that need an extra, or OpenTelemetry."""
    found = subprocess.check_output(
        [environment / "python", "-c", IMPORT_ALL],
        cwd=tmp_path,
        env=clean_environment(),
        text=True,
        timeout=SECONDS_MAX,
    )
    count, lacking = json.loads(found)

    assert count > 100
    assert set(EXTRA_PACKAGES) == set(lacking.values())
    assert [] == [name for name in lacking if not name.startswith(NEED_AN_EXTRA)]


@pytest.mark.parametrize("extra", NEVER)
def test_an_extra_brings_what_it_is_for_and_no_more(wheel: Path, extra: str) -> None:
    """By name and by size, with everything that its packages bring along."""
    found = wheels.needed(wheel, extra)
    names = {one.name.lower() for one in found}

    assert set() == names & NEVER[extra]
    assert wheels.size_bytes(found) / MIB < SIZES_MIB[extra]


def test_the_client_alone_talks_to_a_broker(
    light: Path, environment: Path, tmp_path: Path
) -> None:
    """Over Blip and Vibe; what it lacks it says in one line, like the program does."""
    with serving(environment, tmp_path) as addresses:
        places = [addresses[strand] for strand in ("blip", "vibe", "qumbed")]
        found = subprocess.check_output(
            [light / "python", "-c", SEND, *places],
            cwd=tmp_path,
            env=clean_environment(),
            text=True,
            timeout=SECONDS_MAX,
        )
    one, two, qumbed = found.splitlines()
    run = subprocess.run(
        [light / "braidmq", "serve", "--dev"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )

    assert ("1", "1") == (one, two)
    assert qumbed.endswith(": make run, or pip install 'braidmq[qumbed]'")
    assert (2, "") == (run.returncode, run.stdout)
    told = "error: braidmq serve needs structlog: make run, or pip install 'braidmq[server]'\n"
    assert told == run.stderr


def test_the_command_for_an_extra_works_where_the_wheel_is_installed(
    wheel: Path, light: Path, tmp_path: Path
) -> None:
    """pip takes the installed package as it is, and finds the rest on its index."""
    for one in wheels.needed(wheel, "server"):
        wheels.pack(one, tmp_path)
    told = how_to_get("server").partition(", or pip install ")[2].strip("'")
    pip = [sys.executable, "-m", "pip", "--python", str(light / "python"), "install"]
    planned = subprocess.check_output(
        [*pip, "--dry-run", "--no-index", "--find-links", str(tmp_path), told],
        env=clean_environment(),
        text=True,
        timeout=SECONDS_MAX,
    )

    (line,) = [line for line in planned.splitlines() if line.startswith("Would install ")]
    assert {"aioquic", "argon2-cffi", "structlog", "uvicorn"} <= {
        name.rpartition("-")[0] for name in line.split()[2:]
    }
    assert " braidmq-" not in line


def test_the_log_can_be_read_as_arrow_without_spark(wheel: Path, tmp_path: Path) -> None:
    """With the extras `columnar` and `server`: from the files, and over Flight."""
    programs = installed(wheel, tmp_path / "venv", "server", "columnar")
    with serving(programs, tmp_path, "127.0.0.1:0") as addresses:
        found = subprocess.check_output(
            [programs / "python", "-c", READ, addresses["blip"], addresses["flight"]],
            cwd=tmp_path,
            env=clean_environment(),
            text=True,
            timeout=SECONDS_MAX,
        )

    assert "no pyspark\n['1', '2']\n['1', '2']\n" == found


def test_the_installed_program_comes_from_the_wheel(environment: Path, tmp_path: Path) -> None:
    """Not from the source tree, which is not on its path."""
    code = "import braidmq, braidmq.admin; print(braidmq.__file__)"
    found = subprocess.check_output(
        [environment / "python", "-c", code], cwd=tmp_path, env=clean_environment(), text=True
    )

    assert environment.parent in Path(found).parents


def test_the_installed_program_works(environment: Path, tmp_path: Path) -> None:
    """It serves, publishes, delivers a message and shows the dashboard."""
    with serving(environment, tmp_path) as addresses:
        url = f"blip://dev-key@{addresses['blip']}"
        web = f"http://{addresses['http']}"
        run = {
            "cwd": tmp_path,
            "env": clean_environment(),
            "timeout": SECONDS_MAX,
            "text": True,
        }
        reader = subprocess.Popen(
            [environment / "braidmq", "subscribe", "orders", "--count", "2", "--url", url],
            cwd=tmp_path,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        listing = [
            environment / "braidmq",
            "topics",
            "--json",
            "--url",
            f"http://dev-key@{addresses['http']}",
        ]
        while not any(
            row["subscriptions"]
            for row in json.loads(subprocess.check_output(listing, **run))  # type: ignore[call-overload]  # one dict for all
        ):
            assert reader.poll() is None
        sent = [
            environment / "braidmq",
            "publish",
            "orders",
            "hello",
            "--count",
            "2",
            "--url",
            url,
        ]
        printed = subprocess.check_output(sent, **run)  # type: ignore[call-overload]  # as above
        received, _ = reader.communicate(timeout=SECONDS_MAX)

        assert ("published 2 to orders\n", "hello\nhello\n") == (printed, received)
        assert 200 == get(f"{web}/healthz")[0]
        assert 200 == get(f"{web}/readyz")[0]
        status, page = get(f"{web}/")
        assert (200, True) == (status, b"<html" in page.lower())
        for path in (ROOT / "src/braidmq/admin/static").rglob("*"):
            name = path.relative_to(ROOT / "src/braidmq/admin/static").as_posix()
            if path.is_file() and name != "index.html":
                assert (200, path.read_bytes()) == get(f"{web}/static/{name}"), name
