"""Confirmation: the user types a name again before it is deleted for good."""

import sys
from typing import Annotated, Final

import typer

from braidmq.base.errors import EXIT_USAGE, BraidError
from braidmq.cli.terminal import printable

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

ANSWER_CHARS_MAX: Final = 65_536
"""Longer than any name; stdin may be a pipe with anything in it."""


class NotConfirmedError(BraidError):
    """The user did not type the expected name."""

    exit_code = EXIT_USAGE


def confirm(what: str, name: str, *, yes: bool) -> None:
    """Ask the user to type *name* before *what* is done to it.

    Raises:
        NotConfirmedError: The user typed something else, or nothing.
    """
    if yes:
        return
    print(f"{what} {printable(name)}: type its name to confirm: ", end="", file=sys.stderr)
    sys.stderr.flush()
    typed = sys.stdin.readline(ANSWER_CHARS_MAX)
    if not typed.endswith("\n"):
        print(file=sys.stderr)  # at the end of input the cursor is still behind the prompt
    if typed.removesuffix("\n") != name:
        raise NotConfirmedError(
            "not confirmed, nothing was changed; --yes skips the confirmation"
        )
