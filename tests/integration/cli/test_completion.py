"""Shell completion, as a shell requests it."""

import os
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.cli.main import main
from tests.integration.cli.brokers import BRAIDMQ, Broker, running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with running(tmp_path_factory.mktemp("completion")) as broker:
        for name in ("orders.eu", "orders.us", "other", "orders with a blank", "orders.$(x)"):
            assert 0 == main(["publish", name, "x", "--url", broker.url()])
        for name in ("jobs", "dlq.jobs"):
            assert 0 == main(["queue", "create", name, "--url", broker.http_url()])
        yield broker


def completions(words: str, url: str) -> list[str]:
    """Return the completions that bash gets after *words*."""
    request = {
        "_BRAIDMQ_COMPLETE": "complete_bash",
        "BRAIDMQ_URL": url,
        "COMP_WORDS": f"braidmq {words}",
        "COMP_CWORD": str(len(words.split())),
    }
    done = subprocess.run(
        BRAIDMQ, capture_output=True, check=True, env=os.environ | request, text=True
    )
    assert "" == done.stderr
    return sorted(done.stdout.split("\n")[:-1]) if done.stdout.strip() else []


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("publish ord", ["orders.eu", "orders.us"]),
        ("subscribe oth", ["other"]),
        ("queue info jo", ["jobs"]),
        ("dlq list dl", ["dlq.jobs"]),
        ("dlq replay j", []),
        ("publish nothing", []),
    ],
)
def test_names_come_from_the_broker(broker: Broker, words: str, offered: list[str]) -> None:
    """Except those that a shell would split or expand."""
    assert offered == completions(words, broker.http_url())


@pytest.mark.parametrize("url", ["http://k@127.0.0.1:1", "http://wrong@{http}", "nonsense"])
def test_without_a_broker_nothing_is_offered(broker: Broker, url: str) -> None:
    """And nothing is printed, because the user is in the middle of a line."""
    assert [] == completions("publish ord", url.format(http=broker.addresses["http"]))


def write_tool(directory: Path) -> None:
    """Write a `braidmq` for shells into *directory*."""
    tool = directory / "braidmq"
    tool.write_text(f'#!/bin/sh\nexec {shlex.join(BRAIDMQ)} "$@"\n')
    tool.chmod(0o755)


@pytest.mark.parametrize("shell", ["bash", "fish", "powershell", "zsh"])
def test_the_script_for_each_shell_is_printed(shell: str) -> None:
    """Whichever shell runs the command, if any: images and packages need it, too."""
    done = subprocess.run(
        [*BRAIDMQ, "completion", shell], capture_output=True, check=True, text=True
    )

    assert f"complete_{shell}" in done.stdout
    assert "_BRAIDMQ_COMPLETE" in done.stdout


def test_bash_completes_with_that_script(broker: Broker, tmp_path: Path) -> None:
    """Bash offers the names of the broker."""
    write_tool(tmp_path)
    script = """
eval "$(braidmq completion bash)"
COMP_WORDS=(braidmq publish ord) COMP_CWORD=2
_braidmq_completion braidmq ord publish
printf '%s\\n' "${COMPREPLY[@]}" | sort
"""
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"BRAIDMQ_URL": broker.http_url(), "PATH": path}
    done = subprocess.run(
        ["bash", "-euc", script], capture_output=True, check=True, env=environment, text=True
    )

    assert ["orders.eu", "orders.us"] == done.stdout.split()


def test_show_completion_detects_the_shell() -> None:
    """`--show-completion` prints the script for the shell that runs it."""
    script = f"{shlex.join(BRAIDMQ)} --show-completion; true"
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True)

    assert "complete_bash" in done.stdout


def test_install_completion_works_in_an_empty_home(tmp_path: Path) -> None:
    """It writes a file that the next bash reads, and says where."""
    home, tools = tmp_path / "home", tmp_path / "tools"
    home.mkdir()
    tools.mkdir()
    write_tool(tools)
    environment = os.environ | {
        "HOME": str(home),
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
    }
    # The command detects its parent process as the shell; `true` keeps bash from exec.
    installed = subprocess.run(
        ["bash", "-c", "braidmq --install-completion bash; code=$?; true; exit $code"],
        capture_output=True,
        check=False,
        env=environment,
        text=True,
    )
    script = """
COMP_WORDS=(braidmq publ) COMP_CWORD=1
$(complete -p braidmq | sed 's/.*-F //; s/ .*//') braidmq publ braidmq
printf '%s\\n' "${COMPREPLY[@]}"
"""
    # Without a terminal, an interactive bash complains on stderr.
    offered = subprocess.run(
        ["bash", "-ic", script], capture_output=True, check=True, env=environment, text=True
    )

    assert (0, "") == (installed.returncode, installed.stderr)
    assert str(home) in installed.stdout
    assert ["publish"] == offered.stdout.split()
