"""What commands print and ask: tables and JSON on stdout, and confirmations.

Tables are readable on a terminal, plain in a pipe, and exact with --json. A confirmation makes
the user type a name again before it is deleted for good.
"""

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Final

import typer

from braidmq.base.errors import EXIT_USAGE, BraidError
from braidmq.base.printable import printable
from braidmq.cli.exact_json import json_text

Row = Mapping[str, object]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask to type the name again.")]

ANSWER_CHARS_MAX: Final = 65_536
"""Longer than any name; stdin may be a pipe with anything in it."""

_GAP: Final = "  "
_NUMBER: Final = re.compile(r"[0-9][0-9.,]*")


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
    """Print an aligned table; if it is wider than the terminal, a block of lines per row.

    Nothing is ever cut: what is left out of a name is what tells it from another.
    """
    table = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(map(_width, (column, *cells)))
        for column, cells in zip(columns, _turned(table, len(columns)), strict=True)
    ]
    if sum(widths) + len(_GAP) * (len(columns) - 1) > shutil.get_terminal_size().columns:
        _print_blocks(table, columns)
        return
    rights = [_are_numbers(cells) for cells in _turned(table, len(columns))]
    for number, line in enumerate((columns, *table)):
        cells = [
            " " * (width - _width(cell)) + cell
            if right
            else cell + " " * (width - _width(cell))
            for cell, width, right in zip(line, widths, rights, strict=True)
        ]
        text = _GAP.join(cells).rstrip()
        print(text if number else styled(text, bold=True))


def _print_blocks(table: Sequence[Sequence[str]], columns: Sequence[str]) -> None:
    longest = max(map(len, columns))
    for number, cells in enumerate(table):
        if number:
            print()
        for column, cell in zip(columns, cells, strict=True):
            print(f"{styled(column.ljust(longest), dim=True)}{_GAP}{cell}".rstrip())


def _turned(table: Sequence[Sequence[str]], count: int) -> list[list[str]]:
    return [[cells[at] for cells in table] for at in range(count)]


def _are_numbers(cells: Sequence[str]) -> bool:
    return any(cells) and all(not cell or _NUMBER.fullmatch(cell) for cell in cells)


def _width(text: str) -> int:
    """Return how many columns *text* takes: characters of East Asia take two."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)
