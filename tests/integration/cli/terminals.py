"""A real terminal for a command: what it writes to one, it writes for a person."""

import os
import pty
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl

from tests.integration.cli.brokers import BRAIDMQ

SECONDS_MAX = 60
ROWS, COLUMNS = 40, 120


def on_terminal(
    words: Sequence[str],
    *,
    until: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Run `braidmq` on a terminal; return its exit code and everything it wrote.

    With *until*, Ctrl-C is pressed as soon as it says so of what was written.
    """
    ours, its = pty.openpty()
    ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    surroundings = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
    surroundings.pop("NO_COLOR" if "NO_COLOR" not in (environment or {}) else "", None)
    process = subprocess.Popen(
        [*BRAIDMQ, *words], stdin=its, stdout=its, stderr=its, env=surroundings
    )
    os.close(its)
    try:
        written = _read(ours, process, until)
        return process.wait(SECONDS_MAX), written
    finally:
        os.close(ours)
        if process.poll() is None:
            process.kill()
            process.wait()


def _read(
    ours: int, process: "subprocess.Popen[bytes]", until: Callable[[str], bool] | None
) -> str:
    written = b""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        try:
            piece = os.read(ours, 65_536)
        except OSError:  # the last one who could write has gone
            break
        if not piece:
            break
        written += piece
        if until is not None and until(written.decode("utf-8", "replace")):
            process.send_signal(signal.SIGINT)
            until = None
    return written.decode("utf-8", "replace")
