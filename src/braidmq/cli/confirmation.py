"""Confirmation: before something is gone for good, its name is typed once more."""

import sys
from typing import Annotated, Final

import typer

from braidmq.base.errors import EXIT_USAGE, BraidError
from braidmq.cli.tables import printable

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for the name again.")]

ANSWER_CHARS_MAX: Final = 65_536
"""Longer than any name; a pipe may hold anything."""


class NotConfirmedError(BraidError):
    """The name that was typed is not the one that was asked for."""

    exit_code = EXIT_USAGE


def confirm(what: str, name: str, *, yes: bool) -> None:
    """Have *name* typed before *what* is done to it.

    Raises:
        NotConfirmedError: Something else was typed, or nothing.
    """
    if yes:
        return
    print(f"{what} {printable(name)}: type its name to go on: ", end="", file=sys.stderr)
    sys.stderr.flush()
    typed = sys.stdin.readline(ANSWER_CHARS_MAX)
    if not typed.endswith("\n"):
        print(file=sys.stderr)  # the end of the input leaves the cursor behind the question
    if typed.removesuffix("\n") != name:
        raise NotConfirmedError("not confirmed, nothing was changed; --yes does not ask")
