"""Parse the values of options: text in, a checked value out.

Each parser takes the name and the text of an option, and raises OptionError with the fix if the
text cannot be used. `options` knows what each option is for, and which go together.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.base.limits import TOPIC_BYTES_MAX
from braidmq.broker.cursors import NAME_BYTES_MAX
from braidmq.columnar.decoding.unsealing import public_key_problem
from braidmq.wire.qumbed.boxes import UnusableKeyError, parse_key

LATEST: Final = -1
EARLIEST: Final = -2
"""The numbers that the JSON of Spark's Kafka source uses; ids are never negative."""

Position = int | dict[str, int]
"""An id, EARLIEST or LATEST, for all topics or for each named topic."""

OFFSET_MAX: Final = 2**63 - 1
_DIGITS_MAX: Final = len(str(OFFSET_MAX))
VALUE_CHARS_MAX: Final = 64
PORT_MAX: Final = 65_535
ONLY_PARTITION: Final = "0"
HIDDEN: Final = "***"

SCHEMA_FIX: Final = "name a built-in schema, or the .json file of a flat one"
KEY_FILE_FIX: Final = "name a key file as `braidmq keygen` writes it"
_POSITION_FIX: Final = 'give earliest, latest, a number, or {"topic": {"0": number}}'
_ADDRESS: Final = re.compile(
    r"grpc(\+tls)?://(\[[0-9A-Fa-f:.%\w]+\]|[^\s/:@\[\]]+):(\d{1,5})/?"
)
_SECRET_WORDS: Final = ("key", "password", "secret", "token")


class OptionError(ConfigError):
    """An option cannot be used; the text says which, why, and what to do."""

    def __init__(self, option: str, value: str, problem: str, fix: str) -> None:
        shown = value if len(value) <= VALUE_CHARS_MAX else value[: VALUE_CHARS_MAX - 1] + "…"
        super().__init__(f"option {option}", f"{shown!r} {problem}; {fix}")
        self.option = option


@contextmanager
def refused_as(option: str, value: str, fix: str) -> Iterator[None]:
    """Turn a ConfigError into the error of the option that caused it.

    Raises:
        OptionError: In place of any other ConfigError.
    """
    try:
        yield
    except OptionError:
        raise
    except ConfigError as error:
        raise OptionError(option, value, f"cannot be used: {error.problem}", fix) from None


def unsaid(option: str, value: str) -> str:
    """Return a value as an error may show it; secrets are masked, because errors get logged."""
    secret = any(word in option.lower() for word in _SECRET_WORDS)
    return HIDDEN if secret and value else value


def directory(option: str, text: str) -> Path:
    """Return an absolute path, which means the same in every process."""
    return _local(option, text, "name a directory that driver and executors share")


def key_file(option: str, text: str) -> Path:
    """Return the path of a private key's file; an error masks a text that is itself a key."""
    with suppress(UnusableKeyError):
        parse_key(text.strip())
        raise OptionError(option, HIDDEN, "is a key, and not the file of one", KEY_FILE_FIX)
    return _local(option, text, KEY_FILE_FIX)


def _local(option: str, text: str, fix: str) -> Path:
    if not text or "://" in text:
        raise OptionError(option, text, "is not a local path", fix)
    # Only the driver parses options; workers may run in another directory.
    return Path(text).absolute()


def address(option: str, text: str) -> str:
    """Return a broker's Flight address."""
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or not 0 < int(found[3]) <= PORT_MAX:
        fix = "give grpc://host:port, or grpc+tls://host:port"
        raise OptionError(option, text, "is not the address of a Flight endpoint", fix)
    return text.strip().rstrip("/")


def api_key(option: str, text: str) -> str:
    """Return an API key that can be sent in a header; errors mask it."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        problem = "is not an API key" if text else "is missing"
        fix = "give a key as `braidmq keys new` prints it"
        raise OptionError(option, unsaid(option, text), problem, fix)
    return text


def name(option: str, text: str) -> str:
    """Return the name of a cursor or of a sink."""
    if not text.strip() or not text.isprintable() or len(text.encode()) > NAME_BYTES_MAX:
        fix = f"give a printable name of at most {NAME_BYTES_MAX} bytes"
        raise OptionError(option, text, "is not a name", fix)
    return text


def topic(option: str, text: str) -> str:
    """Return the name of a topic."""
    if not 0 < len(text.encode("utf-8", "replace")) <= TOPIC_BYTES_MAX:
        fix = f"give a name of at most {TOPIC_BYTES_MAX} bytes"
        raise OptionError(option, text, "is not a topic", fix)
    return text


def topics(option: str, text: str) -> tuple[str, ...]:
    """Return names of topics, each once."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",")))
    if not all(names):
        raise OptionError(option, text, "names no topic", "give names, with commas between")
    return names


def pattern(option: str, text: str) -> str:
    """Return a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        problem = f"is not a regular expression ({error})"
        raise OptionError(option, text, problem, "it must match whole topic names") from None
    return text


def position(option: str, text: str) -> Position:
    """Return the position to start or end at, for all topics or for each."""
    word = text.strip().lower()
    if word in {"earliest", "latest"}:
        return EARLIEST if word == "earliest" else LATEST
    if _is_whole(word) and int(word) <= OFFSET_MAX:
        return int(word)
    try:
        found = msgspec.json.decode(text, type=dict[str, dict[str, int]])
    except (ValueError, RecursionError):
        raise OptionError(option, text, "is not an offset", _POSITION_FIX) from None
    for topic_name, partitions in found.items():
        if list(partitions) != [ONLY_PARTITION]:
            problem = f"names a partition other than 0 for the topic {topic_name!r}"
            raise OptionError(option, text, problem, "a topic has one partition, 0")
        if not EARLIEST <= partitions[ONLY_PARTITION] <= OFFSET_MAX:
            raise OptionError(option, text, "has an invalid offset", _POSITION_FIX)
    if not found:
        raise OptionError(option, text, "names no topic", _POSITION_FIX)
    return {topic_name: numbers[ONLY_PARTITION] for topic_name, numbers in found.items()}


def milliseconds(option: str, text: str) -> int:
    """Return a time in microseconds since 1970."""
    return _number(option, text, 0, "milliseconds since 1970") * 1000


def count(option: str, text: str) -> int:
    """Return a number of at least 1."""
    return _number(option, text, 1, "a number of at least 1")


def _number(option: str, text: str, least: int, wanted: str) -> int:
    word = text.strip()
    if not (_is_whole(word) and least <= int(word) <= OFFSET_MAX // 1000):
        raise OptionError(option, text, "cannot be used", f"give {wanted}")
    return int(word)


def _is_whole(word: str) -> bool:
    # The length is checked because Python refuses to convert thousands of digits.
    return word.isascii() and word.isdigit() and len(word) <= _DIGITS_MAX


def flag(option: str, text: str) -> bool:
    """Return true or false."""
    word = text.strip().lower()
    if word not in {"true", "false"}:
        raise OptionError(option, text, "is neither true nor false", "give one of them")
    return word == "true"


def schema_id(option: str, text: str) -> str:
    """Return the id of a schema, or the absolute path of its file."""
    if not text:
        raise OptionError(option, text, "names no schema", SCHEMA_FIX)
    return str(Path(text).absolute()) if text.endswith(".json") else text


def public_keys(option: str, text: str) -> tuple[bytes, ...]:
    """Return public keys; errors mask them, because one of them may be a secret."""
    keys = []
    for number, word in enumerate(text.split(","), 1):
        try:
            keys.append(parse_key(word.strip()))
            problem = public_key_problem(keys[-1])
        except UnusableKeyError as error:
            problem = str(error)
        if problem:
            shown = f"has a key, number {number}, that {problem}"
            fix = "give public keys as `braidmq keygen` prints them, with commas between"
            raise OptionError(option, unsaid(option, text), shown, fix)
    return tuple(keys)
