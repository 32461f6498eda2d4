"""Log lines: structured, to stderr, for a person on a terminal and as JSON otherwise.

Text from a peer cannot forge a line, move the cursor or fill the disk: it is escaped and cut.
Secrets are masked, whatever code logs them. Nothing on the path of a message logs.
"""

import logging
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Final, TextIO

import structlog

from braidmq.base.masking import MASK, TEXT_CHARS_MAX, escaped

EVENT_CHARS_MAX: Final = 1_024
"""Characters of a line's message; ours are short, a library's may quote a peer."""

NESTING_MAX: Final = 4
"""Depth of nested values; deeper ones are shown as text."""

SECRET_NAMES: Final = frozenset({"key", "token", "password", "payload", "secret"})
"""A field with this name, or ending in it (`api_key`), is masked."""

_OWN_FIELDS: Final = frozenset({"timestamp", "level"})

EventDict = MutableMapping[str, object]


def configure_logs(stream: TextIO | None = None, *, level: int = logging.INFO) -> None:
    """Send every log line, including those of libraries, to *stream* (default stderr)."""
    target = stream if stream is not None else sys.stderr
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        mask_secrets,
        escape_text,
    ]
    renderer: structlog.typing.Processor = (
        structlog.dev.ConsoleRenderer(colors=not os.environ.get("NO_COLOR"))
        if target.isatty()
        else structlog.processors.JSONRenderer(ensure_ascii=False)
    )
    handler = logging.StreamHandler(target)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )


def mask_secrets(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Mask the values of fields with a secret name, at any depth."""
    for name, value in event.items():
        event[name] = _masked(name, value, NESTING_MAX)
    return event


def escape_text(_logger: object, _method: str, event: EventDict) -> EventDict:
    """Make every value one safe, short line; only a traceback keeps its line breaks."""
    for name, value in event.items():
        if name in _OWN_FIELDS or name.startswith("_"):
            continue
        if name == "exception":
            event[name] = "\n".join(escaped(line) for line in str(value).split("\n"))
        else:
            chars_max = EVENT_CHARS_MAX if name == "event" else TEXT_CHARS_MAX
            event[name] = _escaped_inside(value, NESTING_MAX, chars_max)
    return event


def _masked(name: str, value: object, depth: int) -> object:
    if name.lower().rpartition("_")[2] in SECRET_NAMES:
        return MASK
    if isinstance(value, Mapping) and depth:
        return {key: _masked(str(key), inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [_masked("", inner, depth - 1) for inner in value]
    return value


def _escaped_inside(value: object, depth: int, chars_max: int) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping) and depth:
        return {
            escaped(str(name)): _escaped_inside(inner, depth - 1, chars_max)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple) and depth:
        return [_escaped_inside(inner, depth - 1, chars_max) for inner in value]
    return escaped(str(value), chars_max=chars_max)
