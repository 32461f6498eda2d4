"""The command line: how commands begin and end."""

import socket
from importlib.metadata import version

import pytest
import typer

from braidmq.base.errors import DamagedLogError
from braidmq.cli import main as command_line
from braidmq.cli.main import main, one_line
from tests.unit.cli.serving import other_server

KEY = "bk_" + 43 * "k"


def failing_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    app = typer.Typer()

    @app.command("fail")
    def fail() -> None:
        raise error

    @app.command("other")
    def other() -> None:
        """Make the application a group of two."""

    monkeypatch.setattr(command_line, "app", app)


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing else is printed."""
    assert 0 == main(["--version"])
    assert f"braidmq {version('braidmq')}\n" == capsys.readouterr().out


USAGE_ERRORS = {
    "--nope": "error: No such option: --nope; see `braidmq --help`\n",
    "nope": "error: No such command 'nope'; see `braidmq --help`\n",
    "publish": "error: Missing argument 'TOPIC'; see `braidmq publish --help`\n",
    "queue crate": "error: No such command 'crate'. Did you mean 'create'?\n",
    "publish t --qos 2": "qos",
}


@pytest.mark.parametrize(("arguments", "line"), USAGE_ERRORS.items())
def test_a_usage_error_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: str, line: str
) -> None:
    """Plain, without frames or colours, and with a hint where to look."""
    assert 2 == main(arguments.split())
    captured = capsys.readouterr()
    assert "" == captured.out
    assert captured.err.startswith("error: ")
    assert 1 == captured.err.count("\n")
    assert line in captured.err


def test_an_error_of_ours_ends_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error's own text, as one line."""
    error = DamagedLogError("a.wal", offset=1, first_id=2, last_id=3, reason="bad\nsum")
    failing_command(monkeypatch, error)

    assert 65 == main(["fail"])
    assert capsys.readouterr().err.startswith(
        "error: damaged log: a.wal at offset 1, ids 2 to 3: bad sum"
    )


OTHER_ERRORS: dict[str, tuple[BaseException, int, str]] = {
    "os": (
        FileNotFoundError(2, "No such file or directory", "x"),
        74,
        "error: x: No such file or directory\n",
    ),
    "os without a file": (OSError("odd"), 74, "error: odd\n"),
    "a bug of ours": (
        RuntimeError("a\nb"),
        1,
        "error: internal error: RuntimeError: a b (test_main.py:",
    ),
    "interrupted": (KeyboardInterrupt(), 130, ""),
    "an exit code": (typer.Exit(7), 7, ""),
}


@pytest.mark.parametrize("case", OTHER_ERRORS)
def test_no_error_ends_in_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    """Whatever was raised becomes one line, or none if there is nothing to say."""
    error, exit_code, line = OTHER_ERRORS[case]
    failing_command(monkeypatch, error)

    assert exit_code == main(["fail"])
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert bool(line) == printed.count("\n")


LEAKS = [
    f"no such option: {KEY}",
    f"cannot use blip://{KEY}@host:1/x",
    "cannot use 'http://short@host:1'",
    f"{1990 * 'x'} {KEY}",
]


@pytest.mark.parametrize("message", LEAKS)
def test_no_error_line_holds_a_key(message: str) -> None:
    """Not as an argument, not in a URL, not cut in half."""
    line = one_line(message)

    assert "kkkk" not in line
    assert "short" not in line
    assert "********" in line or line.endswith("…")


def test_the_form_of_an_address_is_shown_unchanged() -> None:
    """The placeholder for a key is not a key."""
    assert "must be blip://KEY@HOST:PORT" == one_line("must be blip://KEY@HOST:PORT")


def test_a_failed_connection_is_reported_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With the system's reason, and a hint that fits it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        assert 1 == main(["publish", "t", "x", "--url", f"blip://k@127.0.0.1:{port}"])
        refused = capsys.readouterr().err
    with other_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as http_port:
        assert 1 == main(["publish", "t", "x", "--url", f"blip://k@127.0.0.1:{http_port}"])

    start = f"error: cannot connect to 127.0.0.1:{port}: Connection refused; "
    assert f"{start}`braidmq serve --dev` starts a broker\n" == refused
    defaults = "the defaults are blip 5555, vibe 2925, qumbed 6121"
    hint = f"; check the port; {defaults}\n"
    assert capsys.readouterr().err.endswith(hint)


def test_a_broker_that_hangs_up_gives_a_hint_about_the_port(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As Blip does when it gets a frame of Vibe's."""
    with other_server() as port:
        assert 1 == main(["publish", "t", "1", "--url", f"vibe://k@127.0.0.1:{port}"])

    start = f"error: cannot connect to 127.0.0.1:{port}: the broker closed it; "
    assert capsys.readouterr().err.startswith(f"{start}check the port; ")


def test_an_address_of_no_strand_is_exit_2() -> None:
    """A wrong address is a usage error."""
    assert 2 == main(["publish", "t", "x", "--url", "ftp://dev-key@127.0.0.1:1"])


def test_an_error_line_cannot_move_the_cursor() -> None:
    """Control characters are shown as text."""
    assert "a b \\x1b[2J" == one_line("a\n b\t\x1b[2J")
