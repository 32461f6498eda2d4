"""The command line in its own process."""

import os
import signal
import subprocess
import sys

from tests.integration.cli.brokers import BRAIDMQ


def test_a_closed_pipe_is_not_an_error() -> None:
    """`braidmq … | head` ends silently."""
    process = subprocess.Popen(
        [*BRAIDMQ, "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.close()
    _, stderr = process.communicate(timeout=60)

    assert ("", True) == (stderr, process.returncode in {1, -signal.SIGPIPE})


def test_shell_completion_is_on() -> None:
    """The command answers a shell's request for completions."""
    request = {
        "_BRAIDMQ_COMPLETE": "complete_bash",
        "COMP_WORDS": "braidmq ke",
        "COMP_CWORD": "1",
    }
    out = subprocess.check_output(BRAIDMQ, text=True, env=os.environ | request)

    assert "keys" in out.split()
    assert "serve" not in out.split()


def test_help_does_not_import_heavy_modules() -> None:
    """Completion runs at every keystroke, so it must not import pydantic or the server."""
    code = (
        "import sys; from braidmq.cli.main import main; main(['--version']);"
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('pydantic', 'starlette',"
        " 'uvicorn', 'structlog', 'rich')"
        " or m.startswith(('braidmq.server', 'braidmq.daemon'))))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], text=True)

    assert "[]" == out.splitlines()[-1]
