"""No command is only told: a `text` block is a picture, or somebody runs what is in it.

A page with commands in `text` blocks needs more than a directory and a broker to be followed.
The table says where that is done; a page in neither table fails here.
"""

import re
import subprocess
from typing import Final

import pytest

from tests.docs.test_snippets import BIN, ROOT, blocks, read
from tests.docs.told import commands, told

RUN_BY: Final = {
    "CONTRIBUTING.md": "tests/docs/test_told.py",  # make's targets, as far as they end
    "docs/benchmarks.md": "tests/bench/test_page.py",
    "docs/howto/container.md": "tests/docs/test_container.py",
    "docs/howto/systemd.md": "tests/docs/test_machine.py",
    "docs/howto/upgrade.md": "tests/docs/test_machine.py",
    "docs/howto/wheel.md": "tests/packaging/test_make_wheel.py",
    "docs/operations.md": "tests/docs/test_machine.py",  # by the unit, which says the same
    "docs/reference/command-line.md": "tests/docs/test_site.py",  # forms, made by the program
    "docs/start.md": "tests/docs/test_told.py",
}
PICTURES: Final = {
    "ARCHITECTURE.md": "rooms and ways",
    "README.md": "the way of a message",
    "docs/configuration.md": "a file of users",
    "docs/delivery.md": "the states of a message",
    "docs/index.md": "tables of contents",
    "docs/log_format.md": "bytes",
    "docs/protocols/blip.md": "bytes and states",
    "docs/protocols/qumbed.md": "bytes",
    "docs/protocols/vibe.md": "bytes",
    "docs/tables.md": "names of files",
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
"""What a command could begin with, besides what one of ours begins with."""


def looked_at() -> dict[str, list[str]]:
    """Return the lines of blocks that are not run as they stand, by document."""
    found: dict[str, list[str]] = {}
    for block in blocks():
        if block.label in {"", "text"}:
            found.setdefault(block.document, []).extend(commands(block.text))
    return found


def programs() -> set[str]:
    """Return the words that begin a command in some page."""
    run = [line for block in blocks("sh") for line in commands(block.text)]
    run += [
        line for page in RUN_BY for line in looked_at()[page] if page.startswith("docs/howto")
    ]
    words = {line.split()[0] for line in run if not line.startswith((" ", "#"))}
    return OTHERS | {word for word in words if re.fullmatch(r"[\w./-]+", word)}


def test_every_block_that_is_not_run_is_in_a_table() -> None:
    """And in one only; a page that has lost its blocks leaves the table as well."""
    assert set() == RUN_BY.keys() & PICTURES.keys()
    assert looked_at().keys() == RUN_BY.keys() | PICTURES.keys()


@pytest.mark.parametrize("document", PICTURES)
def test_there_is_no_command_in_a_picture(document: str) -> None:
    """By its first word, which is none of those that a line for a shell begins with."""
    known = programs()
    assert {"braidmq", "docker", "systemctl", "make", "python3", "curl"} <= known

    assert [] == [line for line in looked_at()[document] if line.split()[0] in known]


@pytest.mark.parametrize("document", RUN_BY)
def test_who_runs_a_page_reads_it(document: str) -> None:
    """Its name is in that module, so its commands are the page's."""
    assert document.removeprefix("docs/") in read(RUN_BY[document])


def test_what_make_run_does_is_what_the_start_says() -> None:
    """The broker that the page is followed beside is started by that command."""
    (recipe,) = re.findall(r"^run: .*\n\t\$\(BIN\)/(.*)$", read("Makefile"), re.MULTILINE)

    assert [recipe] == told("docs/start.md")[0]


def test_the_environment_has_the_programs_at_hand() -> None:
    """Once it is activated as the page on the start says."""
    (line,) = told("docs/start.md")[1]
    script = f"{line.replace('.venv/bin', str(BIN))}\ncommand -v braidmq"
    found = subprocess.check_output(["sh", "-euc", script], cwd=ROOT, text=True)

    assert f"{BIN}/braidmq\n" == found


def test_what_contributors_are_told_to_make_can_be_made() -> None:
    """Each is a target; whoever runs this test has run `make setup`."""
    lines = [line for line in told("CONTRIBUTING.md", "")[0] if line.startswith("make ")]
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))

    assert {"setup", "run", "check", "test"} == {line.split()[1] for line in lines} <= targets
