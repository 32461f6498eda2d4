"""The command line in a process of its own."""

import os
import signal
import subprocess
import sys

BRAIDMQ = [sys.executable, "-c", "from braidmq.cli.main import run; run()"]


def test_a_reader_that_leaves_is_no_error() -> None:
    """`braidmq … | head` ends without a word on stderr."""
    process = subprocess.Popen(
        [*BRAIDMQ, "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)

    assert ("", True) == (said, process.returncode in {1, -signal.SIGPIPE})


def test_shell_completion_is_on() -> None:
    """A shell that asks what may follow is told."""
    asked = {
        "_BRAIDMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": "braidmq ke",
        "COMP_CWORD": "1",
    }
    out = subprocess.check_output(BRAIDMQ, text=True, env=os.environ | asked)

    assert "keys" in out.split()
    assert "serve" not in out.split()


def test_help_does_not_wait_for_the_heavy_modules() -> None:
    """Completion and --help run at every keystroke: no pydantic, no server."""
    code = (
        "import sys; from braidmq.cli.main import main; main(['--version']);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pydantic', 'starlette',"
        " 'uvicorn', 'structlog', 'rich')"
        " or m.startswith(('braidmq.server', 'braidmq.daemon'))))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert "[]" == out.splitlines()[-1]
