"""A terminal in which `braidmq pipeline` runs in the Spark session that the tests share.

A real shell runs everything else. Each pipeline would start its own JVM, some ten seconds on
two cores; so here `braidmq` is a script that sends the arguments of a pipeline over a socket
to the test process, which calls the same `main` with them. Paths are relative to the working
directory of the JVM.
"""

import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Final

from braidmq.cli.main import main

SECONDS_MAX: Final = 300
WAIT_S: Final = 0.05
OURS: Final = "BRAIDMQ_"

_SCRIPT: Final = """#!{python}
import json, os, socket, sys
if sys.argv[1:2] != ["pipeline"]:
    os.execv({braidmq}, [{braidmq}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as client:
    client.connect({place})
    with client.makefile("rw") as line:
        print(json.dumps([sys.argv[1:], dict(os.environ)]), file=line, flush=True)
        code, output = json.loads(line.readline())
sys.stderr.write(output)
sys.exit(code)
"""


class Terminal:
    """Runs scripts in one directory with one environment."""

    def __init__(self, directory: Path, tools: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._place = tools / "socket"
        script = tools / "braidmq"
        braidmq = str(Path(sys.executable).with_name("braidmq"))
        script.write_text(
            _SCRIPT.format(
                python=sys.executable, braidmq=repr(braidmq), place=repr(str(self._place))
            )
        )
        script.chmod(0o755)
        path = os.pathsep.join([str(tools), environment["PATH"]])
        self._environment = {**environment, "PATH": path}

    def run(self, script: str) -> tuple[int, str]:
        """Run a bash script; return its exit code and its output."""
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self._place))
            server.listen()
            server.settimeout(WAIT_S)
            log = self._directory / "output.txt"
            with (
                log.open("w") as output,
                subprocess.Popen(
                    ["bash", "-euo", "pipefail", "-c", script],
                    cwd=self._directory,
                    env=self._environment,
                    stdout=output,
                    stderr=output,
                ) as process,
            ):
                try:
                    self._serve(server, process)
                finally:
                    process.kill()
            self._place.unlink()
            return process.returncode, log.read_text()

    @staticmethod
    def _serve(server: socket.socket, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        while process.poll() is None:
            assert time.monotonic() < deadline, process.args
            try:
                client, _ = server.accept()
            except TimeoutError:
                continue
            client.settimeout(None)
            with client, client.makefile("rw") as line:
                words, environment = json.loads(line.readline())
                print(json.dumps(_run(words, environment)), file=line, flush=True)


def _run(words: list[str], environment: dict[str, str]) -> tuple[int, str]:
    output = io.StringIO()
    with _variables(environment), redirect_stdout(output), redirect_stderr(output):
        code = main(words)
    return code, output.getvalue()


@contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set BraidMQ's environment variables as in the shell."""
    before = {name: value for name, value in os.environ.items() if name.startswith(OURS)}
    here = {name: value for name, value in wanted.items() if name.startswith(OURS)}
    try:
        for name in before:
            del os.environ[name]
        os.environ.update(here)
        yield
    finally:
        for name in here:
            os.environ.pop(name, None)
        os.environ.update(before)
