"""Options that several commands share, as one dataclass."""

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from braidmq.cli.option_groups import grouped


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where."""

    room: Annotated[str, typer.Option(help="Which room.")]
    shelf: Annotated[int, typer.Option("--shelf", "-s", min=1)] = 1


def command_line() -> tuple[typer.Typer, list[tuple[object, ...]]]:
    """Return an application of two commands with the same group, and what they receive."""
    app = typer.Typer()
    given: list[tuple[object, ...]] = []

    @app.command("put")
    @grouped
    def put(*, what: str = "a book", place: Place) -> None:
        """Put it there."""
        given.append((what, place))

    @app.command("look")
    @grouped
    def look(*, place: Place) -> None:
        given.append((place,))

    return app, given


def test_the_fields_of_a_group_are_options() -> None:
    """With their types and defaults, beside the command's own."""
    app, given = command_line()
    runner = CliRunner()
    for arguments in ("put --what x --room r", "put --room r -s 3", "look --room r"):
        assert 0 == runner.invoke(app, arguments.split()).exit_code

    assert [
        ("x", Place(room="r", shelf=1)),
        ("a book", Place(room="r", shelf=3)),
        (Place(room="r", shelf=1),),
    ] == given


def test_a_value_that_a_field_does_not_allow_is_refused() -> None:
    """By the group's rules, in every command that has it."""
    app, given = command_line()
    runner = CliRunner()
    codes = [
        runner.invoke(app, arguments.split()).exit_code
        for arguments in ("look", "put --room r --shelf 0", "look --room r --what x")
    ]

    assert [2, 2, 2] == codes
    assert [] == given


def test_help_is_from_the_command_and_from_the_group() -> None:
    """The one describes the command, the other its options."""
    app, _ = command_line()
    shown = CliRunner().invoke(app, ["put", "--help"]).output

    assert "Put it there." in shown
    assert "Which room." in shown
