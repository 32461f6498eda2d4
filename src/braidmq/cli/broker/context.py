"""`braidmq context`: name brokers, and choose the one that commands talk to."""

import sys
from pathlib import Path
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

import typer
from typer import Argument, Option

from braidmq.base.errors import ConfigError
from braidmq.cli import contexts
from braidmq.cli.api import checked_url, is_http
from braidmq.cli.terminal import AsJson, print_done, print_rows

app = typer.Typer(
    help="Name brokers, and choose the one that commands talk to.", no_args_is_help=True
)

STDIN: Final = "-"
KEY_CHARS_MAX: Final = 4_096

_COLUMNS: Final = ("in use", "name", "url", "http")


def context_names(incomplete: str) -> list[str]:
    """Return contexts that begin with *incomplete*."""
    return [name for name in contexts.names() if name.startswith(incomplete)]


Name = Annotated[
    str,
    Argument(metavar="NAME", help="Name of the context.", autocompletion=context_names),
]


@app.command("add")
def add(
    name: Annotated[str, Argument(metavar="NAME", help="Name for the broker, as prod.")],
    url: Annotated[
        str,
        Argument(
            metavar="URL",
            help="Its address: blip://, vibe://, qumbed:// or http://KEY@HOST:PORT.",
        ),
    ],
    *,
    http: Annotated[
        str | None,
        Option(
            metavar="URL",
            help="Its HTTP address, if commands cannot find it: http://HOST:PORT.",
        ),
    ] = None,
    key_file: Annotated[
        str | None,
        Option(
            metavar="FILE",
            help="Read the API key from this file, or from standard input with -. The shell's "
            "history then does not have it.",
        ),
    ] = None,
    use: Annotated[bool, Option("--use", help="Use it from now on.")] = False,
    as_json: AsJson = False,
) -> None:
    """Name a broker. Its address and key are kept in a file that only you can read."""
    checked_url(url, "URL")
    if http is not None:
        checked_url(http, "--http")
        if not is_http(http):
            raise ConfigError("--http", "must be http://HOST:PORT or https://HOST:PORT")
    content = {"url": url if key_file is None else _with_key(url, _key_from(key_file))}
    if http is not None:
        content["http"] = http
    contexts.add(name, content)
    if use:
        contexts.use(name)
    shown = {key: contexts.masked(value) for key, value in content.items()}
    done = f"added context {name}: {shown['url']}"
    done += "; it is in use" if use else f"; `braidmq context use {name}` uses it"
    print_done({"name": name, **shown}, done, as_json=as_json)


@app.command("use")
def use(name: Name, *, as_json: AsJson = False) -> None:
    """Have commands talk to this broker, until another one is chosen."""
    contexts.use(name)
    url = contexts.masked(contexts.context_of(name).url)
    print_done({"name": name, "url": url}, f"using {name}: {url}", as_json=as_json)


@app.command("list")
def list_(*, as_json: AsJson = False) -> None:
    """List the contexts. Keys are not shown."""
    in_use = contexts.current()
    rows = []
    for name in contexts.names():
        try:
            place = contexts.context_of(name)
            url, http = contexts.masked(place.url), contexts.masked(place.http or "") or None
        except ConfigError as error:  # the others are listed all the same
            url, http = f"({error})", None
        rows.append({"in use": name == in_use, "name": name, "url": url, "http": http})
    print_rows(rows, _COLUMNS, as_json=as_json)
    if in_use not in contexts.names():
        print(f"the context in use, {in_use!r}, does not exist", file=sys.stderr)


@app.command("remove")
def remove(name: Name, *, as_json: AsJson = False) -> None:
    """Forget a broker, and its key."""
    was_in_use = contexts.remove(name)
    done = f"removed context {name}" + ("; dev is in use now" if was_in_use else "")
    print_done({"name": name, "was_in_use": was_in_use}, done, as_json=as_json)


def _key_from(file: str) -> str:
    if file == STDIN:
        text = sys.stdin.readline(KEY_CHARS_MAX)
    else:
        with Path(file).open(encoding="utf-8", errors="surrogateescape") as opened:
            text = opened.readline(KEY_CHARS_MAX)
    key = text.strip()
    if not (key and key.isascii() and key.isprintable()):
        raise ConfigError("--key-file", "its first line must be a key of printable ASCII")
    return key


def _with_key(url: str, key: str) -> str:
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    if user and not user.endswith(":"):  # vibe://USER:@HOST waits for its password
        raise ConfigError("--key-file", "the URL has a key already")
    return parts._replace(
        netloc=f"{user}{quote(key, safe='')}@{place if at else parts.netloc}"
    ).geturl()
