"""The pictures of README and site, made from a real run: `make pictures`.

    python -m docs.draw                    all of them, in docs/pictures, in about three minutes
    python -m docs.draw --short --out DIR  the same from a shorter session, to see that it works

The dashboard is photographed in the system's Chromium, light and dark, while clients on all
three strands are at work. The terminal is a bash in a pseudo-terminal in which a broker is
started, killed and started again. Brokers get free ports and a temporary directory; in the
recording the ports are shown as those of `make run`.
"""

import argparse
import json
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import braidmq.sync
from docs.recording import Line, drawn, record

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / "docs" / "pictures"
SIZE: Final = {"width": 1280, "height": 800}
BYTES_MAX: Final = 150 * 1000
"""Of one picture; a repository is no place for large files."""

_SECONDS_MAX: Final = 60
_PROGRAM: Final = (
    f'exec {shlex.quote(sys.executable)} -c "from braidmq.cli.main import run; run()" "$@"'
)
_USUAL: Final = {"blip": 5555, "vibe": 2925, "qumbed": 6121, "http": 9100, "flight": 8815}
_LAST: Final = "kill $!; wait"
_TITLE: Final = "Three jobs are published, the broker is killed, and all three are delivered"


def main() -> None:
    """Make all pictures."""
    parser = argparse.ArgumentParser(description="Make the pictures of README and site.")
    parser.add_argument("--out", type=Path, default=PLACE, help="directory to write to")
    parser.add_argument("--short", action="store_true", help="run for a moment only")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        made = [
            draw_terminal(options.out, Path(directory), pause_s=0.0 if options.short else 0.9)
        ]
    with tempfile.TemporaryDirectory() as directory:
        made += photograph(options.out, Path(directory), seconds=1 if options.short else 118)
    for path in made:
        print(f"{path}: {path.stat().st_size:,} bytes")
    if large := [path.name for path in made if path.stat().st_size >= BYTES_MAX]:
        sys.exit(f"too large for the repository: {', '.join(large)}")


# The terminal.


def draw_terminal(out: Path, directory: Path, *, pause_s: float) -> Path:
    """Record the session, and write its SVG."""
    ports = dict(zip(_USUAL, _free_ports(len(_USUAL)), strict=True))
    program = directory / "bin" / "braidmq"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{_PROGRAM}\n", "utf-8")
    program.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not _is_setting(name)}
    environment = {
        **kept,
        **{f"BRAIDMQ_{name.upper()}__PORT": str(port) for name, port in ports.items()},
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
    }
    try:
        lines = record(_session(ports), directory, environment, pause_s=pause_s, last=_LAST)
    finally:
        _kill_what_is_left(directory / "data" / "run.json")
    usual = [Line(line.at, _as_usual(line.text, ports), line.is_typed) for line in lines]
    path = out / "terminal.svg"
    path.write_text(drawn(usual, _TITLE), "utf-8")
    return path


def _kill_what_is_left(run_file: Path) -> None:
    """End the broker of a session that broke off; a complete one has stopped it."""
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(json.loads(run_file.read_text("utf-8"))["pid"], signal.SIGKILL)


def _is_setting(name: str) -> bool:
    return name.startswith("BRAIDMQ_") and name != "BRAIDMQ_PURE"


def _session(ports: dict[str, int]) -> list[tuple[str, Callable[[], None]]]:
    def ready() -> None:
        _wait_until_ready(ports["http"])

    def at_once() -> None:
        pass

    serve = "braidmq serve --dev 2> serve.log &"
    return [
        (serve, ready),
        (f"export BRAIDMQ_URL=vibe://dev-key@127.0.0.1:{ports['vibe']}", at_once),
        ("braidmq publish jobs '{\"order\": 42}' --count 3  # now it is on disk", at_once),
        ("kill -9 $!; wait", at_once),
        (serve, ready),
        ("braidmq subscribe jobs --count 3", at_once),
    ]


def _as_usual(text: str, ports: dict[str, int]) -> str:
    for name, port in ports.items():
        text = text.replace(f":{port}", f":{_USUAL[name]}")
    return text


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + _SECONDS_MAX
    while time.monotonic() < deadline:
        with (
            suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5),
        ):
            return
        time.sleep(0.05)  # it starts in another process
    raise TimeoutError("the broker did not become ready")


# The dashboard.


def photograph(out: Path, directory: Path, *, seconds: float) -> list[Path]:
    """Take pictures of the dashboard while clients are at work."""
    with _serving(directory) as facts, _at_work(facts), _browser() as browser:
        pages = {}
        for theme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=theme)
            page.goto(f"http://{facts['http']}/#/overview")
            page.locator(".chart").first.wait_for()
            pages[theme] = page
        time.sleep(seconds)  # the charts fill
        made = []
        for theme, page in pages.items():
            path = out / f"dashboard-{theme}.png"
            page.bring_to_front()
            page.screenshot(path=path)
            made.append(path)
        return made


@contextmanager
def _serving(directory: Path) -> Iterator[dict[str, Any]]:
    """Run a broker; its ready file says where it listens."""
    ready = directory / "ready.json"
    listeners = [f"--{name}=127.0.0.1:0" for name in ("blip", "vibe", "qumbed", "http")]
    command = ["sh", "-c", _PROGRAM, "braidmq", "serve", "--dev", "--flight=off", *listeners]
    places = ["--data-dir", str(directory / "data"), "--ready-file", str(ready)]
    with (directory / "serve.log").open("w") as log:
        broker = subprocess.Popen([*command, *places], stderr=log)  # noqa: S603 - our own broker
    try:
        deadline = time.monotonic() + _SECONDS_MAX
        while not ready.exists():
            if broker.poll() is not None or time.monotonic() > deadline:
                sys.exit((directory / "serve.log").read_text("utf-8"))
            time.sleep(0.05)  # it starts in another process
        yield json.loads(ready.read_text("utf-8"))
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()


@contextmanager
def _browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only this needs it

    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the pictures of the dashboard need chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield browser
        browser.close()


def _url(facts: dict[str, Any], strand: str) -> str:
    pin = f"?fingerprint={facts['qumbed_fingerprint']}" if strand == "qumbed" else ""
    return f"{strand}://dev-key@{facts[strand]}{pin}"


@contextmanager
def _at_work(facts: dict[str, Any]) -> Iterator[None]:
    """Publish and consume on all strands while the block runs."""
    enough = threading.Event()
    with braidmq.sync.connect(_url(facts, "vibe")) as client:
        client.declare_queue("jobs", max_attempts=2)
    work = (_sell, _measure, _do_jobs, _read_orders, _read_meters)
    threads = [threading.Thread(target=one, args=(facts, enough)) for one in work]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def _sell(facts: dict[str, Any], enough: threading.Event) -> None:
    """Publish orders over Blip, and jobs for them over Vibe, in waves."""
    with (
        braidmq.sync.connect(_url(facts, "blip")) as blip,
        braidmq.sync.connect(_url(facts, "vibe")) as vibe,
    ):
        number = 0
        while not enough.wait(0.1):
            many = round(16 + 9 * math.sin(time.monotonic() / 6))
            orders = [b'{"order": %d, "item": "tea"}' % (number + n) for n in range(many)]
            blip.publish_many("orders", orders)
            vibe.publish_many("jobs", orders[: many // 2])
            number += many


def _measure(facts: dict[str, Any], enough: threading.Event) -> None:
    with braidmq.sync.connect(_url(facts, "qumbed")) as client:
        while not enough.wait(0.1):
            many = round(6 + 3 * math.sin(time.monotonic() / 9))
            client.publish_many("meters/power", many * [b'{"meter": 17, "watts": 420}'])


def _do_jobs(facts: dict[str, Any], enough: threading.Event) -> None:
    """Acknowledge jobs; one in 500 cannot be done."""
    done = 0
    url = _url(facts, "vibe")
    with braidmq.sync.connect(url) as client, client.subscribe("jobs") as jobs:
        while not enough.is_set():
            for job in jobs.fetch(max=50, timeout=0.2):
                done += 1
                if done % 500 == 0:
                    job.nack(dead_letter=True)
                else:
                    job.ack()


def _read_orders(facts: dict[str, Any], enough: threading.Event) -> None:
    url = _url(facts, "blip")
    with braidmq.sync.connect(url) as client, client.subscribe("orders") as orders:
        while not enough.is_set():
            for order in orders.fetch(max=50, timeout=0.2):
                order.ack()


def _read_meters(facts: dict[str, Any], enough: threading.Event) -> None:
    url = _url(facts, "blip")
    with braidmq.sync.connect(url) as client, client.subscribe("meters/power") as readings:
        while not enough.is_set():
            for reading in readings.fetch(max=50, timeout=0.2):
                reading.ack()


if __name__ == "__main__":
    main()
