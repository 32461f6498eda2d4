"""What commands print and ask: tables and JSON on stdout, and confirmations.

Tables are readable on a terminal, plain in a pipe, and exact with --json. A confirmation makes
the user type a name again before it is deleted for good.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from braidmq.base.errors import EXIT_USAGE, BraidError
from braidmq.base.printable import printable
from braidmq.cli.exact_json import json_text

Row = Mapping[str, object]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

ANSWER_CHARS_MAX: Final = 65_536
"""Longer than any name; stdin may be a pipe with anything in it."""


class NotConfirmedError(BraidError):
    """The user did not type the expected name."""

    exit_code = EXIT_USAGE


def print_rows(rows: Sequence[Row], columns: Sequence[str], *, as_json: bool) -> None:
    """Print *rows*: as a JSON list, as an aligned table, or tab-separated in a pipe."""
    if as_json:
        print_json(list(rows))
    elif sys.stdout.isatty():
        _print_table(rows, columns)
    else:
        print("\t".join(columns))
        for row in rows:
            print("\t".join(_cell(row.get(column)) for column in columns))


def print_json(value: object) -> None:
    """Print *value* as one JSON document on one line."""
    print(json_text(value, encoding=sys.stdout.encoding or "utf-8"))


def print_done(answer: Row, done: str, *, as_json: bool) -> None:
    """Print the result: the broker's *answer* as JSON, or *done* as text."""
    if as_json:
        print_json(answer)
    else:
        print(done)


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


def styled(text: str, *, fg: str | None = None, bold: bool = False, dim: bool = False) -> str:
    """Return the text with terminal styles; unchanged if stdout is not a terminal."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return typer.style(text, fg=fg, bold=bold or None, dim=dim or None)


def _cell(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else printable(str(value))


def _print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*(escape(_cell(row.get(column))) for column in columns))
    Console().print(table)
