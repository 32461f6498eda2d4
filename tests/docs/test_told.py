"""Every command in a `text` block is run by a test; other `text` blocks are pictures.

A page with commands in `text` blocks needs more than a directory and a broker. RUN_BY names
the module that follows it; a page in neither table fails here.
"""

import re
import subprocess
from typing import Final

import pytest

from tests.docs.test_snippets import BIN, ROOT, blocks, read
from tests.docs.told import commands, commands_in

RUN_BY: Final = {
    "CONTRIBUTING.md": "tests/docs/test_told.py",  # make's targets
    "docs/benchmarks.md": "tests/bench/test_page.py",
    "docs/howto/container.md": "tests/docs/test_container.py",
    "docs/howto/systemd.md": "tests/docs/test_machine.py",
    "docs/howto/upgrade.md": "tests/docs/test_machine.py",
    "docs/howto/wheel.md": "tests/packaging/test_make_wheel.py",
    "docs/operations.md": "tests/docs/test_machine.py",  # the unit has the same command
    "docs/reference/command-line.md": "tests/docs/test_site.py",  # generated from the program
    "docs/start.md": "tests/docs/test_told.py",
}
PICTURES: Final = {
    "ARCHITECTURE.md": "packages and their connections",
    "README.md": "the path of a message",
    "docs/configuration.md": "a users file",
    "docs/delivery.md": "the states of a message",
    "docs/index.md": "tables of contents",
    "docs/log_format.md": "bytes",
    "docs/protocols/blip.md": "bytes and states",
    "docs/protocols/qumbed.md": "bytes",
    "docs/protocols/vibe.md": "bytes",
    "docs/tables.md": "file names",
}
OTHERS: Final = {
    "$",
    "#",
    "apt",
    "apt-get",
    "brew",
    "curl",
    "cd",
    "cp",
    "export",
    "git",
    "podman",
    "sudo",
}
"""Other words that a command may start with."""


def text_blocks() -> dict[str, list[str]]:
    """Return the lines of blocks that are not run directly, by document."""
    found: dict[str, list[str]] = {}
    for block in blocks():
        if block.label in {"", "text"}:
            found.setdefault(block.document, []).extend(commands(block.text))
    return found


def programs() -> set[str]:
    """Return the words that start a command on some page."""
    run = [line for block in blocks("sh") for line in commands(block.text)]
    run += [
        line for page in RUN_BY for line in text_blocks()[page] if page.startswith("docs/howto")
    ]
    words = {line.split()[0] for line in run if not line.startswith((" ", "#"))}
    return OTHERS | {word for word in words if re.fullmatch(r"[\w./-]+", word)}


def test_every_page_with_text_blocks_is_in_a_table() -> None:
    """In exactly one; a page without such blocks is in none."""
    assert set() == RUN_BY.keys() & PICTURES.keys()
    assert text_blocks().keys() == RUN_BY.keys() | PICTURES.keys()


@pytest.mark.parametrize("document", PICTURES)
def test_pictures_contain_no_commands(document: str) -> None:
    """None of their lines starts with a word that starts a shell command."""
    known = programs()
    assert {"braidmq", "docker", "systemctl", "make", "python3", "curl"} <= known

    assert [] == [line for line in text_blocks()[document] if line.split()[0] in known]


@pytest.mark.parametrize("document", RUN_BY)
def test_the_module_that_runs_a_page_names_it(document: str) -> None:
    """So its commands come from the page."""
    assert document.removeprefix("docs/") in read(RUN_BY[document])


def test_make_run_matches_the_start_page() -> None:
    """The tests of the page start their broker with that command."""
    (recipe,) = re.findall(
        r"^run: .*\n(?:\t.*\n)*\t@\$\(BIN\)/(.*)$", read("Makefile"), re.MULTILINE
    )

    assert [recipe] == commands_in("docs/start.md")[0]


def test_the_activated_environment_has_the_program() -> None:
    """Activated as the start page says."""
    (line,) = commands_in("docs/start.md")[1]
    script = f"{line.replace('.venv/bin', str(BIN))}\ncommand -v braidmq"
    found = subprocess.check_output(["sh", "-euc", script], cwd=ROOT, text=True)

    assert f"{BIN}/braidmq\n" == found


def test_the_make_targets_for_contributors_exist() -> None:
    """Running this test already requires `make setup`."""
    lines = [line for line in commands_in("CONTRIBUTING.md", "")[0] if line.startswith("make ")]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))

    assert {"setup", "run", "check", "test"} == {line.split()[1] for line in lines} <= targets
