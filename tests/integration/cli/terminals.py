"""Run a command on a real terminal, where it writes for people."""

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

    With *until*, send Ctrl-C as soon as it returns true for the output so far.
    """
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    variables = {**os.environ, "TERM": "xterm-256color", **(environment or {})}
    variables.pop("NO_COLOR" if "NO_COLOR" not in (environment or {}) else "", None)
    process = subprocess.Popen(
        [*BRAIDMQ, *words], stdin=theirs, stdout=theirs, stderr=theirs, env=variables
    )
    os.close(theirs)
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
        except OSError:  # the last writer has closed it
            break
        if not piece:
            break
        written += piece
        if until is not None and until(written.decode("utf-8", "replace")):
            process.send_signal(signal.SIGINT)
            until = None
    return written.decode("utf-8", "replace")
