"""The command line: its commands, and how each of them ends.

A command succeeds, or prints one line `error: …` on stderr and exits with the code of its
error; it never prints a traceback. The commands are in the modules beside this one. They import
what they need only when they run, because --help and completion would pay for it every time.
"""

import errno
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from braidmq.base.errors import (
    EXIT_IO_ERROR,
    EXIT_USAGE,
    AddressInUseError,
    BraidError,
    DataDirInUseError,
)
from braidmq.base.extras import MissingExtraError, extra_of
from braidmq.cli import completion
from braidmq.cli.api import TRUST_HINT
from braidmq.cli.bench import bench
from braidmq.cli.broker import config, discover, doctor, keygen, keys, reload, serve, wal
from braidmq.cli.command_list import CommandList
from braidmq.cli.data import dead_letters, messages, queues, top, topics
from braidmq.cli.demo import demo
from braidmq.cli.pipeline import pipelines

EXIT_INTERRUPTED: Final = 130
"""128 plus the number of SIGINT, by the convention of shells."""

ERROR_CHARS_MAX: Final = 2_000
"""Longer error lines are cut; a person reads them."""

_KEY_PLACE: Final = "pass the API key in --url or BRAIDMQ_URL"
_OTHER_PORT: Final = "check the port; the defaults are blip 5555, vibe 2925, qumbed 6121"
_UNTRUSTED: Final = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
_FAILED: Final = {
    os.strerror(errno.ECONNREFUSED): "`braidmq serve --dev` starts a broker",
    os.strerror(errno.ECONNRESET): _OTHER_PORT,
    "the broker broke the protocol": _OTHER_PORT,
    "the broker closed it": _OTHER_PORT,
    "no answer within": _OTHER_PORT,
    "QUIC handshake failed": (
        "`braidmq serve --dev` starts a broker, with Qumbed on UDP port 6121"
    ),
    "unknown host": "check the spelling in --url or BRAIDMQ_URL",
    f"{_UNTRUSTED}self-signed": TRUST_HINT,
    f"{_UNTRUSTED}unable to": TRUST_HINT,  # "to get issuer", "to verify the first"
    "its certificate is not trusted": (
        "`publish` and `subscribe` also take --ca-file FILE, or --insecure to try it out"
    ),
}
"""What to do about a failed connection, by the beginning of its reason."""

_NOT_ALLOWED: Final = frozenset({403, "AUTH_FAILED", "UNAUTHORIZED"})
"""How Blip, Vibe and Qumbed say that a key lacks a permission."""

_RIGHTS: Final = {"PublishRefused": "publish", "SubscriptionRefused": "subscribe"}

_USER_OF_URL = re.compile(r"(?<=://)(?!KEY@)[^/\s'\"]*@")  # not in `must be blip://KEY@HOST`

app = typer.Typer(
    name="braidmq",
    cls=CommandList,
    help="One durable message broker for three wire protocols.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # drawing boxes took a third of the time of --help
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("publish")(messages.publish)
app.command("subscribe")(messages.subscribe)
app.command("topics")(top.topics)
app.command("top")(top.top)
app.command("reload")(reload.reload)
app.command("discover")(discover.discover)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)
app.command("keygen")(keygen.keygen)
app.command("completion")(completion.completion)
app.add_typer(queues.app, name="queue", cls=CommandList)
app.add_typer(topics.app, name="topic", cls=CommandList)
app.add_typer(dead_letters.app, name="dlq", cls=CommandList)
app.add_typer(keys.app, name="keys", cls=CommandList)
app.add_typer(config.app, name="config", cls=CommandList)
app.add_typer(wal.app, name="wal", cls=CommandList)
app.add_typer(pipelines.app, name="pipeline", cls=CommandList)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"braidmq {version('braidmq')}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """One durable message broker for three wire protocols."""


def run() -> None:
    """Run the command that this process was started with, and exit."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; print errors on stderr."""
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name="braidmq", standalone_mode=False)
        sys.stdout.flush()
    except BraidError as error:
        return _told(_with_hint(str(error), _hint(error)), error.exit_code)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            return _told_about_other(error)
        missing = MissingExtraError("this command", str(error.name), extra)
        return _told(str(missing), missing.exit_code)
    except BrokenPipeError:
        # The reader of our output has gone. Flushing at exit would fail again, so stdout is
        # pointed at the null device.
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - until exit
        return EXIT_IO_ERROR
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        return _told(f"{place}{error.strerror or error}", EXIT_IO_ERROR)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the last line of defence before a traceback
        return _told_about_other(error)
    return result if isinstance(result, int) else 0


def _hint(error: BraidError) -> str | None:
    """Return what to do about *error*, unless its own text says so."""
    if isinstance(error, AddressInUseError):
        return f"choose another with --{error.strand} HOST:PORT, or pass --{error.strand} off"
    if isinstance(error, DataDirInUseError):
        return "stop that broker, or choose another directory with --data-dir"
    # Compared by name: importing the client library would slow down commands without it.
    kind = type(error).__name__
    if kind == "AuthenticationFailed":
        return _KEY_PLACE
    if kind == "ConnectionFailed":
        reason = str(getattr(error, "reason", ""))
        return next((hint for begin, hint in _FAILED.items() if reason.startswith(begin)), None)
    if kind in _RIGHTS and getattr(error, "code", None) in _NOT_ALLOWED:
        topic = getattr(error, "topic", "")
        return f'the key needs {_RIGHTS[kind]} = ["{topic}"], or a pattern that matches it'
    return None


def _told_about_other(error: Exception) -> int:
    # Usage errors of the parser are known by this method; their module differs between
    # versions of the library.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        message = str(format_message())
        # `braidmq` without a command prints its help, and raises an empty message.
        return _told(_with_help(message, error), EXIT_USAGE) if message.strip() else EXIT_USAGE
    import traceback

    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return _told(f"internal error: {type(error).__name__}: {error} ({place})", 1)


def _with_help(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)
    place = getattr(context, "command_path", "braidmq")
    ended = message.rstrip()
    if ended.endswith("?"):  # "did you mean …?" is a hint already
        return ended
    return _with_hint(ended.rstrip("."), f"see `{place} --help`")


def _with_hint(message: str, hint: str | None) -> str:
    return message if hint is None else f"{message}; {hint}"


def _told(message: str, exit_code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


def one_line(message: str) -> str:
    """Return *message* as one printable line, with API keys masked."""
    from braidmq.base.masking import MASK, escaped

    without_key = _USER_OF_URL.sub(f"{MASK}@", " ".join(message.split()))
    return escaped(without_key, chars_max=ERROR_CHARS_MAX)
