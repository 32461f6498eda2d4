"""The page on containers, followed with this machine's container engine, if it has one.

Docker, or podman under Docker's name. Images, containers and volumes have unique names and are
removed at the end; ports are free ones. The build needs the network and a few minutes, so it
only runs in campaigns. The tests that need no engine always run.
"""

import json
import os
import re
import shutil
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.docs.pages import free_ports
from tests.docs.test_snippets import ROOT, read
from tests.docs.told import commands_in

PAGE: Final = "docs/howto/container.md"
BUILD_S_MAX: Final = 1800
SECONDS_MAX: Final = 120
PORTS: Final = ("5555", "2925", "6121", "9100", "3000", "9090")
COMPOSE: Final = "docker compose "


class Engine:
    """Docker or podman, and the names and ports of this run."""

    def __init__(self, place: Path, programs: Path) -> None:
        self.name = f"braidmq-{uuid.uuid4().hex[:12]}"
        self.place = place
        self.ports = dict(zip(PORTS, map(str, free_ports(len(PORTS))), strict=True))
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "PATH": path}

    def here(self, text: str) -> str:
        """Return *text* with this run's names and ports."""
        text = re.sub(r"(?<=[ ])braidmq(?=\s|$)", self.name, text)
        text = re.sub(r"\bbraidmq-(config|data):", rf"{self.name}-\1:", text)
        return re.sub(r"127\.0\.0\.1:(\d+)", lambda m: f"127.0.0.1:{self.ports[m[1]]}", text)

    def attempt(self, line: str) -> subprocess.CompletedProcess[str]:
        """Run *line* in the directory of the Dockerfile, whatever its exit code."""
        return subprocess.run(
            ["sh", "-euc", line],
            capture_output=True,
            check=False,
            cwd=self.place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=BUILD_S_MAX,
        )

    def run(self, line: str) -> str:
        """Run *line*, assert that it succeeds, and return its output."""
        done = self.attempt(line)
        assert 0 == done.returncode, (line, done.stdout, done.stderr)
        return done.stdout

    def get(self, port: str, path: str) -> str:
        """Return the content at *path* once the server answers with success."""
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            with suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                url = f"http://127.0.0.1:{self.ports[port]}{path}"
                with urllib.request.urlopen(url, timeout=5) as answer:
                    return str(answer.read().decode())
            assert time.monotonic() < deadline, (port, path)
            time.sleep(0.1)  # it changes in another process


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that has our base image, in a copy of the build context."""
    programs = tmp_path_factory.mktemp("bin")
    engine = Engine(tmp_path_factory.mktemp("source") / "braidmq", programs)
    copy_build_context(engine)
    if engine.attempt("docker info").returncode:
        podman = shutil.which("podman")
        if podman is None:
            pytest.skip("there is no container engine: neither Docker's daemon nor podman")
        (programs / "docker").write_text(f'#!/bin/sh\nexec {podman} "$@"\n', "utf-8")
        (programs / "docker").chmod(0o755)
        if engine.attempt("docker info").returncode:
            pytest.skip("podman does not work here")
    (version,) = re.findall(r"^ARG PYTHON=(\S+)$", read("Dockerfile"), re.MULTILINE)
    base = f"python:{version}-slim"
    pull(engine, base)
    try:
        yield engine
    finally:
        engine.attempt(f"docker rm --force --volumes {engine.name}")
        engine.attempt(f"docker volume rm {engine.name}-config {engine.name}-data")
        engine.attempt(f"docker rmi --force {engine.name}")


def copy_build_context(engine: Engine) -> None:
    """Copy the files that .dockerignore allows, and compose.yaml with this run's names."""
    engine.place.mkdir()
    allowed = re.findall(r"^!(.+)$", read(".dockerignore"), re.MULTILINE)
    unwanted = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__")
    for name in (*allowed, "Dockerfile", ".dockerignore"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, engine.place / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, engine.place)
    text = re.sub(
        r"^((?:name|    image): )braidmq$",
        rf"\1{engine.name}",
        read("compose.yaml"),
        flags=re.MULTILINE,
    )
    text = re.sub(r'"127\.0\.0\.1:(\d+)', lambda m: f'"127.0.0.1:{engine.ports[m[1]]}', text)
    (engine.place / "compose.yaml").write_text(text, "utf-8")


def pull(engine: Engine, image: str) -> None:
    """Make sure that a third-party image is present, or skip the test."""
    if engine.attempt(f"docker image inspect {image}").returncode:
        pulled = engine.attempt(f"docker pull --quiet {image}")
        if pulled.returncode:
            pytest.skip(f"{image} is missing and cannot be pulled: {pulled.stderr.strip()}")


def lines(*, of_compose: bool) -> list[str]:
    """Return the page's commands in order."""
    found = [line for block in commands_in(PAGE) for line in block]
    return [line for line in found if line.startswith(COMPOSE) is of_compose]


@pytest.fixture(scope="module")
def built(engine: Engine) -> Engine:
    """The image, built with the page's first command."""
    engine.run(engine.here(lines(of_compose=False)[0]))
    return engine


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(2 * BUILD_S_MAX)
def test_the_image_runs(built: Engine) -> None:
    """Built, configured, started and inspected as the page says; SIGTERM ends it with 0."""
    for line in lines(of_compose=False)[1:]:
        built.run(built.here(line))
        if " -d " in line:
            assert {"status": "ready"} == json.loads(built.get("9100", "/readyz"))
    key = built.run(f"docker exec {built.name} cat /etc/braidmq/admin.key")
    url = f"blip://{key}@127.0.0.1:5555"
    printed = built.run(f"docker exec {built.name} braidmq publish orders hello --url {url}")
    user = built.run(f"docker exec {built.name} id -u")
    built.run(f"docker stop {built.name}")
    code = built.run(f"docker inspect --format '{{{{.State.ExitCode}}}}' {built.name}")

    assert "published 1 to orders\n" == printed
    assert "10001\n" == user
    assert re.search(rf"\b{user.strip()}\b", read(PAGE))
    assert "0\n" == code


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.timeout(2 * BUILD_S_MAX)
def test_compose_starts_the_services_in_the_table(built: Engine) -> None:
    """Every address answers, and Prometheus scrapes the broker with its own key."""
    if built.attempt("docker compose version").returncode:
        pytest.skip("`docker compose` is not installed")
    for service in compose()["services"].values():
        if service["image"] != "braidmq":
            pull(built, service["image"])
    try:
        output = {line: built.run(line) for line in lines(of_compose=True)}
        (key,) = [text for line, text in output.items() if line.endswith("admin.key")]
        url = f"http://{key}@127.0.0.1:9100"
        built.run(f"docker compose exec braidmq braidmq topics --url {url}")
        assert {"status": "ready"} == json.loads(built.get("9100", "/readyz"))
        built.get("3000", "/")
        wait_until_scraped(built)
    finally:
        built.attempt("docker compose down --volumes --remove-orphans")
        label = f"com.docker.compose.project={built.name}"
        built.attempt(f"docker image prune --force --filter label={label}")


def wait_until_scraped(engine: Engine) -> None:
    """Wait until Prometheus has scraped the broker."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        targets = json.loads(engine.get("9090", "/api/v1/targets"))["data"]["activeTargets"]
        health = [target["health"] for target in targets]
        if health == ["up"]:
            return
        assert health in ([], ["unknown"]), targets
        assert time.monotonic() < deadline
        time.sleep(0.2)  # it changes in another process


# Tests without an engine.


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(read("compose.yaml"))
    return found


def test_the_table_lists_the_ports_that_compose_opens() -> None:
    """All of them, under the same number inside and outside."""
    rows = re.findall(r"^\| (`.*?) \|", read(PAGE), re.MULTILINE)
    listed = {port for row in rows for port in re.findall(r":(\d+)`", row)}
    opened = [p for service in compose()["services"].values() for p in service.get("ports", [])]

    assert set(PORTS) == listed
    assert listed == {port.split(":")[1] for port in opened}
    assert [] == [p for p in opened if p.split(":")[1] != p.split(":")[2].partition("/")[0]]


def test_the_volumes_on_the_page_are_those_of_compose() -> None:
    """They hold the keys and the log."""
    named = re.findall(r"in the volume `(\w+)`", read(PAGE))

    assert {"config", "data"} == set(named) <= set(compose()["volumes"])


def test_third_party_images_have_a_version() -> None:
    """`latest` could be another program tomorrow."""
    images = {s["image"] for s in compose()["services"].values()} - {"braidmq"}

    assert len(images) == 2
    assert [] == [image for image in images if not re.search(r":v?\d+\.\d+\.\d+$", image)]
