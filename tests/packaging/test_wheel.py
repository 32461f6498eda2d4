"""The built wheel, installed into an environment that has nothing else of ours, serves.

What this proves: the wheel holds everything that the program needs of itself (modules, the
page's files, the command, `py.typed`), nothing is found in the source tree by accident, and
what the wheel asks for is enough. What it does not: that its dependencies can be fetched. They
are taken from the environment that runs the tests, because tests do not use the network; but
only those that the wheel asks for, and those that they ask for.
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

from tests.packaging import wheels
from tests.packaging.wheels import ROOT, SECONDS_MAX, without_ours

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
OF_AN_EXTRA: Final = ("numpy", "opentelemetry", "py4j", "pyarrow", "pyspark")
WITH_AN_EXTRA: Final = (
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
    """Built once for all of them."""
    return wheels.build(tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(wheel, tmp_path_factory.mktemp("empty") / "venv")


def installed(wheel: Path, place: Path, extra: str = "") -> Path:
    """Return the programs of an empty environment into which the wheel was installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    programs = place / "bin"
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--python", str(programs / "python")),
            *("install", "--no-deps", "--no-index", "--quiet", str(wheel)),
        ],
        check=True,
        env=without_ours(),
        timeout=SECONDS_MAX,
    )
    wheels.furnish(place, wheel, extra)
    return programs


@contextmanager
def serving(programs: Path, directory: Path, flight: str = "off") -> Iterator[dict[str, str]]:
    ready = directory / "ready.json"
    addresses = [f"--{name}=127.0.0.1:0" for name in ("blip", "vibe", "qumbed", "http")]
    words = ["serve", "--dev", f"--flight={flight}", *addresses, "--ready-file", str(ready)]
    with subprocess.Popen(
        [programs / "braidmq", *words],
        cwd=directory,
        env=without_ours(),
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            deadline = time.monotonic() + START_S_MAX
            while not ready.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)  # the condition is in another process
            yield json.loads(ready.read_text("utf-8"))
            process.terminate()
            assert 0 == process.wait(SECONDS_MAX)
        finally:
            process.kill()


def get(url: str) -> tuple[int, bytes]:
    with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - our own broker
        return answer.status, answer.read()


def test_it_holds_what_the_program_needs_and_no_more(wheel: Path) -> None:
    """Every module, the page's files, the marker for type checkers; no tests, no benchmarks."""
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


def test_every_module_can_be_imported_with_what_it_asks_for(
    environment: Path, tmp_path: Path
) -> None:
    """But for those that need an extra, or what traces are made with."""
    found = subprocess.check_output(
        [environment / "python", "-c", IMPORT_ALL],
        cwd=tmp_path,
        env=without_ours(),
        text=True,
        timeout=SECONDS_MAX,
    )
    count, lacking = json.loads(found)

    assert count > 100
    assert set(OF_AN_EXTRA) == set(lacking.values())
    assert [] == [name for name in lacking if not name.startswith(WITH_AN_EXTRA)]


def test_the_log_is_read_as_arrow_without_spark(wheel: Path, tmp_path: Path) -> None:
    """With the extra `columnar`: from the files, and over Flight."""
    programs = installed(wheel, tmp_path / "venv", "columnar")
    with serving(programs, tmp_path, "127.0.0.1:0") as addresses:
        found = subprocess.check_output(
            [programs / "python", "-c", READ, addresses["blip"], addresses["flight"]],
            cwd=tmp_path,
            env=without_ours(),
            text=True,
            timeout=SECONDS_MAX,
        )

    assert "no pyspark\n['1', '2']\n['1', '2']\n" == found


def test_the_installed_program_is_the_wheels(environment: Path, tmp_path: Path) -> None:
    """Not the source tree's, which is on nobody's way here."""
    code = "import braidmq, braidmq.admin; print(braidmq.__file__)"
    found = subprocess.check_output(
        [environment / "python", "-c", code], cwd=tmp_path, env=without_ours(), text=True
    )

    assert environment.parent in Path(found).parents


def test_it_serves_publishes_and_shows(environment: Path, tmp_path: Path) -> None:
    """From nothing to a message that was sent, kept and received, and a page that shows it."""
    with serving(environment, tmp_path) as addresses:
        url = f"blip://dev-key@{addresses['blip']}"
        web = f"http://{addresses['http']}"
        run = {"cwd": tmp_path, "env": without_ours(), "timeout": SECONDS_MAX, "text": True}
        reader = subprocess.Popen(
            [environment / "braidmq", "subscribe", "orders", "--count", "2", "--url", url],
            cwd=tmp_path,
            env=without_ours(),
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
        said = subprocess.check_output(sent, **run)  # type: ignore[call-overload]  # as above
        received, _ = reader.communicate(timeout=SECONDS_MAX)

        assert ("published 2 to orders\n", "hello\nhello\n") == (said, received)
        assert 200 == get(f"{web}/healthz")[0]
        assert 200 == get(f"{web}/readyz")[0]
        status, page = get(f"{web}/")
        assert (200, True) == (status, b"<html" in page.lower())
        for path in (ROOT / "src/braidmq/admin/static").rglob("*"):
            name = path.relative_to(ROOT / "src/braidmq/admin/static").as_posix()
            if path.is_file() and name != "index.html":
                assert (200, path.read_bytes()) == get(f"{web}/static/{name}"), name
