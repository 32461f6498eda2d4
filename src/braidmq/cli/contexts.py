"""Contexts: brokers that a user has named, and which of them commands talk to.

    $XDG_CONFIG_HOME/braidmq/        ~/.config/braidmq/ if that is not set
        context                      the name of the context in use
        contexts/NAME.json           {"url": "blip://KEY@HOST:PORT", "http": "http://HOST:PORT"}

The files hold API keys, so only their owner may read them. The context `dev` is the broker of
`braidmq serve --dev`; it has no file, and is in use until another one is.
"""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from braidmq.base.errors import ConfigError
from braidmq.base.printable import printable

DEV: Final = "dev"
DEV_URL: Final = "blip://dev-key@127.0.0.1:5555"
DEV_HTTP: Final = "http://127.0.0.1:9100"

NAME_CHARS_MAX: Final = 64
FILE_BYTES_MAX: Final = 65_536
"""A longer file is not a context."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PRIVATE: Final = 0o600
_PRIVATE_DIRECTORY: Final = 0o700
_OTHERS: Final = 0o077
_KEY: Final = re.compile(r"(?<=://)[^/?#]*@")


@dataclass(frozen=True, slots=True)
class Place:
    """The address that commands were given, and what said so."""

    url: str
    http: str | None = None
    """The HTTP address of the same broker, where a context has one."""
    said_by: str = "--url"
    """The option, the variable or the context, for errors."""


def place_of(url: str | None) -> Place:
    """Return where the broker is.

    The first of these that is given: --url (*url*), BRAIDMQ_URL, BRAIDMQ_CONTEXT, the context
    in use, the development broker.

    Raises:
        ConfigError: There is no such context, or its file cannot be used.
    """
    return named_place(url) or context_of(current())


def named_place(url: str | None) -> Place | None:
    """Return the broker that --url or the environment names; None if neither does.

    Raises:
        ConfigError: As `place_of`.
    """
    if url:
        return Place(url)
    if said := os.environ.get("BRAIDMQ_URL"):
        return Place(said, said_by="BRAIDMQ_URL")
    if name := os.environ.get("BRAIDMQ_CONTEXT"):
        return context_of(name, said_by="BRAIDMQ_CONTEXT")
    return None


def context_of(name: str, said_by: str = "context") -> Place:
    """Return the broker that a context names.

    Raises:
        ConfigError: There is no such context, or its file cannot be used.
    """
    if name == DEV:
        return Place(DEV_URL, DEV_HTTP, "context dev")
    path = _path_of(checked_name(name, said_by))
    try:
        text = _read_private(path)
        told = json.loads(text)
        url, http = told["url"], told.get("http")
        if isinstance(url, str) and isinstance(http, str | None):
            return Place(url, http, f"context {name}")
    except FileNotFoundError:
        problem = f"there is no context {name}; `braidmq context list` lists the existing ones"
        raise ConfigError(said_by, problem) from None
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    raise ConfigError(f"context {name}", f"{path} is not a context; remove it and add it again")


def current() -> str:
    """Return the name of the context in use."""
    try:
        return (_home() / "context").read_text("utf-8").strip() or DEV
    except (FileNotFoundError, NotADirectoryError):
        return DEV
    except UnicodeDecodeError:
        problem = f"{_home() / 'context'} is not text; `braidmq context use dev` replaces it"
        raise ConfigError("context", problem) from None


def names() -> list[str]:
    """Return the names of all contexts, `dev` first."""
    found = sorted(path.stem for path in _home().glob("contexts/*.json"))
    return [DEV, *(name for name in found if name != DEV and _NAME.fullmatch(name))]


def add(name: str, content: Mapping[str, str]) -> None:
    """Write a new context.

    Raises:
        ConfigError: The name is not valid, or taken.
    """
    if checked_name(name) == DEV or _path_of(name).exists():
        told = (
            "is built in" if name == DEV else f"exists; `braidmq context remove {name}` first"
        )
        raise ConfigError("NAME", f"the context {name} {told}")
    _write_private(_path_of(name), json.dumps(content, indent=2) + "\n")


def use(name: str) -> None:
    """Make *name* the context in use.

    Raises:
        ConfigError: There is no such context, or its file cannot be used.
    """
    context_of(name, "NAME")
    _write_private(_home() / "context", f"{name}\n")


def remove(name: str) -> bool:
    """Remove a context; return whether it was in use, so that `dev` is now.

    Raises:
        ConfigError: There is no such context.
    """
    if checked_name(name) == DEV:
        raise ConfigError("NAME", "the context dev is built in")
    try:
        _path_of(name).unlink()
    except FileNotFoundError:
        problem = f"there is no context {name}; `braidmq context list` lists the existing ones"
        raise ConfigError("NAME", problem) from None
    was_in_use = current() == name
    if was_in_use:
        (_home() / "context").unlink()
    return was_in_use


def masked(url: str) -> str:
    """Return an address without its key."""
    return printable(_KEY.sub("****@", url))


def checked_name(name: str, said_by: str = "NAME") -> str:
    """Return *name*, which becomes that of a file.

    Raises:
        ConfigError: It is not valid.
    """
    if len(name) <= NAME_CHARS_MAX and _NAME.fullmatch(name):
        return name
    form = f"1 to {NAME_CHARS_MAX} letters, digits, hyphens, underscores and dots"
    raise ConfigError(said_by, f"the name of a context has {form}, no dot first")


def _home() -> Path:
    given = os.environ.get("XDG_CONFIG_HOME", "")
    # The specification of these directories says to ignore one that is not absolute.
    base = Path(given) if given.startswith("/") else Path("~/.config").expanduser()
    return base / "braidmq"


def _path_of(name: str) -> Path:
    return _home() / "contexts" / f"{name}.json"


def _read_private(path: Path) -> str:
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_mode & _OTHERS:
            problem = f"other users may read {path}, which holds a key; `chmod 600` it"
            raise ConfigError("context", problem)
        return file.read(FILE_BYTES_MAX).decode("utf-8")


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read; whoever reads it sees all of it or the old."""
    _home().mkdir(mode=_PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    path.parent.mkdir(mode=_PRIVATE_DIRECTORY, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, _PRIVATE), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
