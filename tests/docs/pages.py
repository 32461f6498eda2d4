"""Pages that tests follow from their first block to their last, like a reader.

Each page gets an empty directory and its own ports. `python` and `sh` blocks run one after the
other, a `toml` block becomes `braidmq.toml`, and a `sh` block that starts with `# one terminal`
is a broker that runs until the page ends. `make run` is replaced by the command that it runs;
other lines with make are left out.
"""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from tests.docs.test_snippets import BACKGROUND, BIN, ROOT, Block, blocks

FOLLOWED: Final = (
    "docs/howto/backup.md",
    "docs/howto/dead-letters.md",
    "docs/howto/keys.md",
    "docs/howto/tls.md",
    "docs/tutorials/service.md",
)
WITH_SPARK: Final = ("docs/start.md", "docs/tutorials/sensors.md")
"""Followed with a Spark session, in `tests/integration/spark/test_documents.py`."""

USUAL_PORTS: Final = ("5555", "2925", "6121", "9100")
SECONDS_MAX: Final = 100


class Reader:
    """Follows a page in one directory."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory = directory
        self._stack = stack
        self._ports = dict(
            zip(USUAL_PORTS, map(str, free_ports(len(USUAL_PORTS))), strict=True)
        )
        self._is_tls = False
        self._broker: subprocess.Popen[str] | None = None
        paths = [str(BIN), os.environ["PATH"]]
        kept = {k: v for k, v in os.environ.items() if not k.startswith("BRAIDMQ_")}
        if "BRAIDMQ_PURE" in os.environ:
            kept["BRAIDMQ_PURE"] = os.environ["BRAIDMQ_PURE"]
        sources = os.pathsep.join(filter(None, [str(ROOT / "src"), kept.get("PYTHONPATH")]))
        http = f"http://dev-key@127.0.0.1:{self._ports['9100']}"
        self.environment = {
            **kept,
            "PATH": os.pathsep.join(paths),
            "PYTHONPATH": sources,
            "READER_HTTP": http,
        }

    def follow(self, block: Block) -> None:
        """Run a block, and assert that it succeeds."""
        text = self._here(block.text)
        if block.label == "toml":
            self._is_tls = "tls_cert" in text
            (self._directory / "braidmq.toml").write_text(text, "utf-8")
        elif text.startswith(BACKGROUND):
            self._serve(text)
        elif block.label == "python":
            self._run([sys.executable, "-W", "error", "-c", text], block)
        else:
            self.type(typed(text, self._urls()), block)

    def type(self, script: str, block: Block) -> None:
        """Run a block in a shell."""
        self._run(["bash", "-euo", "pipefail", "-c", script], block)

    def _here(self, text: str) -> str:
        for usual, own in self._ports.items():
            text = re.sub(rf"(?<=[:= ]){usual}\b", own, text)
        return text

    def _urls(self) -> tuple[str, str]:
        return (
            f"blip://dev-key@127.0.0.1:{self._ports['5555']}",
            self.environment["READER_HTTP"],
        )

    def _serve(self, text: str) -> None:
        script = typed(text.replace("make run", "braidmq serve --dev"), self._urls())
        if "--config" not in script:
            listeners = zip(
                ("blip", "vibe", "qumbed", "http"), self._ports.values(), strict=True
            )
            flags = " ".join(f"--{name}=127.0.0.1:{port}" for name, port in listeners)
            script = script.replace("serve --dev", f"serve --dev --flight=off {flags}")
        log = self._stack.enter_context((self._directory / "broker.log").open("w"))
        self._broker = subprocess.Popen(
            ["bash", "-euc", f"exec {script.splitlines()[-1]}"],
            cwd=self._directory,
            env=self.environment,
            stderr=log,
            text=True,
        )
        self._stack.callback(self._stop)
        self._wait_until_ready()

    def _stop(self) -> None:
        assert self._broker is not None
        with suppress(ProcessLookupError):
            self._broker.send_signal(signal.SIGKILL)
        self._broker.wait()

    def _wait_until_ready(self) -> None:
        scheme = "https" if self._is_tls else "http"
        url = f"{scheme}://127.0.0.1:{self._ports['9100']}/readyz"
        deadline = time.monotonic() + SECONDS_MAX
        while True:
            assert self._broker is not None
            log = (self._directory / "broker.log").read_text("utf-8")
            assert self._broker.poll() is None, log
            assert time.monotonic() < deadline, log
            with suppress(urllib.error.URLError, ConnectionError):
                context = _trusting(self._directory) if self._is_tls else None
                with urllib.request.urlopen(url, timeout=5, context=context):  # noqa: S310 - our own broker
                    return
            time.sleep(0.05)  # it starts in another process

    def _run(self, command: list[str], block: Block) -> None:
        done = subprocess.run(
            command,
            capture_output=True,
            check=False,
            cwd=self._directory,
            env=self.environment,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert 0 == done.returncode, (block.name, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (block.name, done.stderr)


BUSY: Final = 8
"""Factor by which the pauses of a page are stretched, as other tests run in parallel."""


def typed(text: str, urls: tuple[str, str]) -> str:
    """Return a block as a script in which commands without an address use this run's broker."""
    lines = [line for line in text.splitlines() if not line.startswith("make ")]
    blip, http = urls
    shell = f"""
braidmq() {{
    url={http}
    case " $* " in
        *" publish "*|*" subscribe "*) url={blip} ;;
    esac
    case " $* " in
        *" --url "*|*" bench "*) command braidmq "$@" ;;
        *) BRAIDMQ_URL=${{BRAIDMQ_URL:-$url}} command braidmq "$@" ;;
    esac
}}
sleep() {{ command sleep $(printf "$1 %.0s" {{1..{BUSY}}}); }}
"""
    if any("serve" in line for line in lines):
        return "\n".join(lines)
    return shell + "\n".join(lines)


def _trusting(directory: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=directory / "cert.pem")


def free_ports(count: int) -> list[int]:
    """Return free ports on loopback."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def followed(document: str) -> list[Block]:
    """Return the blocks of a page that a reader would run or save."""
    found = [block for block in blocks() if block.document == document]
    return [block for block in found if block.label in {"python", "sh", "toml"}]
