r"""`subscribe --format`: a template for each message, such as `{id} {topic} {payload}`.

    {topic} {payload} {id} {qos} {attempt} {timestamp} {size} {headers} {sender} {schema}
    {header.NAME}     one header
    {{ }} \t \n \\    braces, a tab, a line break, a backslash
    json              the same as --json

What a message holds is text of other users: what is not printable in it is escaped, in a pipe
as well, so that a message cannot look like two.
"""

import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from braidmq.base.errors import ConfigError
from braidmq.base.printable import printable

if TYPE_CHECKING:  # the client library is not needed to print --help
    from braidmq.client import Message

JSON: Final = "json"

_HEADER: Final = "header."
_PIECE: Final = re.compile(r"\{\{|\}\}|\\.|\{([^{}]*)\}|[{}]|[^{}\\]+|\\")
_ESCAPES: Final = {"{{": "{", "}}": "}", r"\t": "\t", r"\n": "\n", r"\\": "\\"}

_FIELDS: Final[dict[str, Callable[["Message"], object]]] = {
    "topic": lambda message: message.topic,
    "payload": lambda message: message.payload.decode("utf-8", "backslashreplace"),
    "id": lambda message: message.id,
    "qos": lambda message: message.qos,
    "attempt": lambda message: message.attempt,
    "timestamp": lambda message: message.timestamp and message.timestamp.isoformat(),
    "size": lambda message: len(message.payload),
    "headers": lambda message: json.dumps(dict(message.headers), ensure_ascii=False),
    "sender": lambda message: message.sender and message.sender.hex(),
    "schema": lambda message: message.schema,
}

Piece = str | Callable[["Message"], object]


def parse(template: str) -> list[Piece]:
    """Return the pieces of a template: text, and what makes text of a message.

    Raises:
        ConfigError: It has a field that messages do not have, or a single brace.
    """
    pieces: list[Piece] = []
    for found in _PIECE.finditer(template):
        text, name = found[0], found[1]
        if name is not None:
            pieces.append(_field(name))
        elif text in {"{", "}"}:
            raise ConfigError("--format", f"has a single {text}; write {2 * text} for a brace")
        else:
            pieces.append(_ESCAPES.get(text, text))
    return pieces


def shown(pieces: list[Piece], message: "Message") -> str:
    """Return a message as the template has it; a field that it lacks is empty."""
    return "".join(
        piece if isinstance(piece, str) else _text(piece(message)) for piece in pieces
    )


def _field(name: str) -> Callable[["Message"], object]:
    if name.startswith(_HEADER):
        header = name.removeprefix(_HEADER)
        return lambda message: message.headers.get(header)
    if name in _FIELDS:
        return _FIELDS[name]
    known = ", ".join([*_FIELDS, f"{_HEADER}NAME"])
    raise ConfigError("--format", f"there is no field {name!r}; the fields are {known}")


def _text(value: object) -> str:
    return "" if value is None else printable(str(value))
