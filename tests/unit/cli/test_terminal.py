"""What commands print and ask: tables, JSON, confirmations."""

import io
import json
import sys

import pytest

from braidmq.cli.terminal import (
    NotConfirmedError,
    confirm,
    print_done,
    print_json,
    print_rows,
    styled,
)

ROWS: list[dict[str, object]] = [
    {"name": "a\tb\x1b[2J", "count": 3, "patterns": ["x.*", "y"], "on": True},
    {"name": "[red]c", "count": None, "on": False},
]
COLUMNS = ("name", "count", "patterns", "on")


def test_in_a_pipe_rows_are_tab_separated(capsys: pytest.CaptureFixture[str]) -> None:
    """One whole line each, to which names cannot add columns or lines."""
    print_rows(ROWS, COLUMNS, as_json=False)

    assert [
        "name\tcount\tpatterns\ton",
        "a\\tb\\x1b[2J\t3\tx.*, y\tyes",
        "[red]c\t\t\tno",
    ] == capsys.readouterr().out.splitlines()


def test_as_json_rows_are_exact(capsys: pytest.CaptureFixture[str]) -> None:
    """A program reads the values themselves, not their printable form."""
    print_rows(ROWS, COLUMNS, as_json=True)

    assert ROWS == json.loads(capsys.readouterr().out)


def test_on_a_terminal_rows_are_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names are neither markup nor escape sequences."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_rows(ROWS, COLUMNS, as_json=False)
    out = capsys.readouterr().out

    assert "\\x1b[2J" in out
    assert "[red]c" in out
    assert "\t" not in out


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """A line is a document; line breaks inside it are escaped."""
    print_json({"a": "x\ny ü"})

    assert '{"a": "x\\ny ü"}\n' == capsys.readouterr().out


@pytest.mark.parametrize(
    ("encoding", "errors", "text", "written"),
    [
        ("utf-8", "strict", "\u00fc \ud800", b'"\\u00fc \\ud800"\n'),
        ("utf-8", "surrogateescape", "\udc80", b'"\\udc80"\n'),
        ("latin-1", "strict", "\u2713", b'"\\u2713"\n'),
    ],
)
def test_json_is_valid_in_every_encoding(
    *, monkeypatch: pytest.MonkeyPatch, encoding: str, errors: str, text: str, written: bytes
) -> None:
    """What the output cannot encode, or would encode as other bytes, is escaped."""
    output = io.BytesIO()
    monkeypatch.setattr(
        sys, "stdout", io.TextIOWrapper(output, encoding=encoding, errors=errors)
    )
    print_json(text)
    sys.stdout.flush()

    assert written == output.getvalue()


def test_a_result_is_printed_in_words_or_as_json(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A person reads the one, a program the other."""
    for as_json in (False, True):
        print_done({"purged": 3}, "purged 3 messages", as_json=as_json)

    assert 'purged 3 messages\n{"purged": 3}\n' == capsys.readouterr().out


@pytest.mark.parametrize(("no_color", "has_colour"), [("", True), ("1", False)])
def test_colours_are_for_terminals_unless_switched_off(
    monkeypatch: pytest.MonkeyPatch, no_color: str, has_colour: bool
) -> None:
    """NO_COLOR switches them off, whatever it holds, unless it is empty."""
    monkeypatch.setenv("NO_COLOR", no_color)
    plain = styled("x", fg="red")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)

    assert ("x", has_colour) == (plain, "\x1b[" in styled("x", fg="red"))


def test_yes_skips_the_confirmation(capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts cannot type an answer."""
    confirm("delete queue", "orders", yes=True)

    assert ("", "") == capsys.readouterr()


@pytest.mark.parametrize("typed", ["orders\n", "orders"])
def test_the_typed_name_confirms(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str
) -> None:
    """The prompt is not on stdout, where the output of the command goes."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    confirm("delete queue", "orders", yes=False)
    out, err = capsys.readouterr()

    assert "" == out
    assert err.startswith("delete queue orders: type its name to confirm: ")


@pytest.mark.parametrize(
    "typed", ["", "\n", "y\n", "yes\n", "Orders\n", "orders \n", 99999 * "o"]
)
def test_anything_else_cancels_the_command(monkeypatch: pytest.MonkeyPatch, typed: str) -> None:
    """So does the end of the input, after which no answer can come."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    with pytest.raises(
        NotConfirmedError, match="nothing was changed; --yes skips the confirmation"
    ) as e:
        confirm("delete queue", "orders", yes=False)
    assert 2 == e.value.exit_code


def test_a_name_cannot_control_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other users choose the names."""
    monkeypatch.setattr("sys.stdin", io.StringIO("a\x1b[2J\n"))
    confirm("purge queue", "a\x1b[2J", yes=False)

    assert "\x1b" not in capsys.readouterr().err


WIDE: list[dict[str, object]] = [
    {"name": 60 * "n", "url": "blip://****@127.0.0.1:5555", "count": 1},
    {"name": "\u4e2d\u6587", "url": "", "count": 1_000},
]


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_is_never_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If it is too wide for the terminal, each row is a block of lines."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows(WIDE, ("name", "url", "count"), as_json=False)
    lines = capsys.readouterr().out.splitlines()

    narrow = [
        f"name   {60 * 'n'}",
        "url    blip://****@127.0.0.1:5555",
        "count  1",
        "",
        "name   \u4e2d\u6587",
        "url",
        "count  1000",
    ]
    wide = [
        f"name{58 * ' '}url{25 * ' '}count",
        f"{60 * 'n'}  blip://****@127.0.0.1:5555      1",
        f"\u4e2d\u6587{87 * ' '}1000",
    ]
    assert (narrow if columns == 80 else wide) == lines


def test_a_table_without_rows_is_its_head(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that one sees what would be listed."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    print_rows([], ("name", "count"), as_json=False)

    assert "name  count\n" == capsys.readouterr().out
