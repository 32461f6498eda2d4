"""The help of every command, as a terminal of 80 columns shows it."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from braidmq.cli.main import app

COLUMNS = 80


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:  # noqa: ANN401 - typer's own click
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


ALL = dict(commands(typer.main.get_command(app)))


@pytest.fixture(params=ALL, ids=" ".join)
def path(request: pytest.FixtureRequest) -> tuple[str, ...]:
    found: tuple[str, ...] = request.param
    return found


def help_of(path: tuple[str, ...]) -> str:
    return CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": str(COLUMNS)}).output


def test_nothing_in_a_help_is_cut(path: tuple[str, ...]) -> None:
    """Neither names of options nor what a command does, and no line is too long."""
    lines = help_of(path).splitlines()

    assert [] == [line for line in lines if len(line) > COLUMNS or "\u2026" in line]
    assert [] == [line for line in lines[1:] if line.endswith("...")]
    for parameter in ALL[path].params:
        if not getattr(parameter, "hidden", False):
            for name in parameter.opts if parameter.param_type_name == "option" else ():
                assert any(name in line.split() or f"{name}," in line for line in lines), name


def test_every_command_and_option_is_explained(path: tuple[str, ...]) -> None:
    """By a sentence of its own."""
    command = ALL[path]

    assert (command.help or "").strip().split("\n")[0].endswith((".", ")")), path
    unexplained = [
        parameter.name
        for parameter in command.params
        if not getattr(parameter, "hidden", False) and not parameter.help
    ]
    assert [] == unexplained


@pytest.mark.parametrize(
    ("path", "old"),
    [
        (("keys", "new"), "--name"),
        (("keygen",), "--out"),
        (("wal", "verify"), "--data-dir"),
        (("wal", "repair"), "--data-dir"),
        (("wal", "dump"), "--data-dir"),
    ],
)
def test_an_old_option_works_and_is_not_shown(path: tuple[str, ...], old: str) -> None:
    """An argument has taken its place."""
    assert [True] == [p.hidden for p in ALL[path].params if old in p.opts]
    assert old not in help_of(path)
