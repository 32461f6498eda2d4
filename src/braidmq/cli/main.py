"""The command line: which commands there are, and how every one of them ends.

A command either works or ends in one plain line `error: …` on stderr with the exit code of
its error, never in a traceback. What the commands do is in the modules beside this one,
and they import what they need when they run: completion and --help are felt at every call.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
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
from braidmq.cli import completion
from braidmq.cli.api import TRUST_HINT
from braidmq.cli.bench import bench
from braidmq.cli.broker import config, discover, doctor, keygen, keys, serve, wal
from braidmq.cli.data import dead_letters, messages, queues, top, topics
from braidmq.cli.demo import demo
from braidmq.cli.pipeline import pipelines

EXIT_INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells say it."""

ERROR_CHARS_MAX: Final = 2_000
"""An error is one line that a person reads."""

_KEY_PLACE: Final = "the key is given in --url or BRAIDMQ_URL"
_OTHER_PORT: Final = (
    "is it the port of that strand? by default blip's is 5555, vibe's 2925, qumbed's 6121"
)
_UNTRUSTED: Final = "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: "
_FAILED: Final = {
    os.strerror(errno.ECONNREFUSED): "`braidmq serve --dev` starts a broker",
    os.strerror(errno.ECONNRESET): _OTHER_PORT,
    "the broker broke the protocol": _OTHER_PORT,
    "the broker closed it": _OTHER_PORT,
    "no answer within": _OTHER_PORT,
    "QUIC handshake failed: nothing listens there": (
        "`braidmq serve --dev` starts a broker, with Qumbed on UDP port 6121"
    ),
    "no host has that name": "is it spelled right in --url or BRAIDMQ_URL?",
    f"{_UNTRUSTED}self-signed": TRUST_HINT,
    f"{_UNTRUSTED}unable to": TRUST_HINT,  # find, or verify by, whoever has issued it
    "its certificate is not trusted": (
        "`publish` and `subscribe` take --ca-file FILE too, or --insecure for a trial"
    ),
}
"""What to do when there is no connection, by how the reason begins."""

_NOT_ALLOWED: Final = frozenset({403, "AUTH_FAILED", "UNAUTHORIZED"})
"""How Blip, Vibe and Qumbed refuse what a key may not do."""

_RIGHTS: Final = {"PublishRefused": "publish", "SubscriptionRefused": "subscribe"}

_USER_OF_URL = re.compile(r"(?<=://)(?!KEY@)[^/\s'\"]*@")  # not in `must be blip://KEY@HOST`

app = typer.Typer(
    name="braidmq",
    help="One durable message broker for three wire protocols.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(serve.serve)
app.command("publish")(messages.publish)
app.command("subscribe")(messages.subscribe)
app.command("topics")(topics.topics)
app.command("top")(top.top)
app.command("discover")(discover.discover)
app.command("doctor")(doctor.doctor)
app.command("bench")(bench.bench)
app.command("demo")(demo.demo)
app.command("keygen")(keygen.keygen)
app.command("completion")(completion.completion)
app.add_typer(queues.app, name="queue")
app.add_typer(dead_letters.app, name="dlq")
app.add_typer(keys.app, name="keys")
app.add_typer(config.app, name="config")
app.add_typer(wal.app, name="wal")
app.add_typer(pipelines.app, name="pipeline")


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Run the command line of this process, and exit."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are told on stderr."""
    command = typer.main.get_command(app)
    try:
        result = command.main(list(arguments), prog_name="braidmq", standalone_mode=False)
        sys.stdout.flush()
    except BraidError as error:
        return _told(_with_hint(str(error), _hint(error)), error.exit_code)
    except BrokenPipeError:
        # Whoever read us has gone; nothing more can be said to it, at exit neither.
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
    """Return what to do about an error that does not say so itself."""
    if isinstance(error, AddressInUseError):
        return f"--{error.strand} HOST:PORT chooses another, --{error.strand} off none"
    if isinstance(error, DataDirInUseError):
        return "stop it first, or choose another with --data-dir"
    # By their names: the client library is not loaded for commands that do without.
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
    # The parser's usage errors have this method in every version of the library, whatever
    # module their classes live in.
    format_message = getattr(error, "format_message", None)
    if format_message is not None:
        message = str(format_message())
        # `braidmq` alone prints its help, and has no message besides.
        return _told(_with_help(message, error), EXIT_USAGE) if message.strip() else EXIT_USAGE
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{Path(frame.filename).name}:{frame.lineno}"
    return _told(f"internal error: {type(error).__name__}: {error} ({place})", 1)


def _with_help(message: str, error: Exception) -> str:
    context = getattr(error, "ctx", None)
    place = getattr(context, "command_path", "braidmq")
    ended = message.rstrip()
    if ended.endswith("?"):  # it has a hint of its own
        return ended
    return _with_hint(ended.rstrip("."), f"see `{place} --help`")


def _with_hint(message: str, hint: str | None) -> str:
    return message if hint is None else f"{message}; {hint}"


def _told(message: str, exit_code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


def one_line(message: str) -> str:
    """Return *message* as one printable line, with no API key in it."""
    from braidmq.daemon.logs import MASK, escaped

    without_key = _USER_OF_URL.sub(f"{MASK}@", " ".join(message.split()))
    return escaped(without_key, chars_max=ERROR_CHARS_MAX)
