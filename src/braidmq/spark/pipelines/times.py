"""Parse durations (`10m`), times (`2026-11-16T12:00:00Z`) and triggers as users write them.

A text that cannot be parsed is a ConfigError that names its option and how to write it.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from braidmq.base.errors import ConfigError

AVAILABLE_NOW: Final = "available-now"
_EVERY: Final = re.compile(r"(\d{1,6})(ms|s|m|h)")
_LENGTH: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_DIGITS_MAX: Final = len(str(_NUMBER_MAX))


class Trigger(NamedTuple):
    """When micro-batches run: at an interval; without one until everything is read."""

    every_ms: int | None = None


def parse_trigger(text: str) -> Trigger:
    """Return the trigger of an option: `available-now`, or `10s`, `500ms`, `5m`, `1h`."""
    if text == AVAILABLE_NOW:
        return Trigger()
    found = _EVERY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ConfigError(
            "--trigger", f"{text!r} is neither {AVAILABLE_NOW} nor an interval such as 10s"
        )
    return Trigger(int(found[1]) * _UNITS_MS[found[2]])


def length_ms(option: str, text: str) -> int:
    """Return how many milliseconds `500ms`, `30s`, `10m`, `2h` or `1d` are."""
    found = _LENGTH.fullmatch(text.strip())
    if found is None:
        raise ConfigError(option, f"{text!r} is not a duration; write it as 30s, 10m or 2h")
    return int(found[1]) * _UNITS_MS[found[2]]


def moment_ms(option: str, text: str) -> int:
    """Return a time in milliseconds since 1970: a number of them, or ISO 8601.

    Without a time zone it is UTC.
    """
    word = text.strip()
    is_number = word.isascii() and word.isdigit()
    # The length is checked because Python refuses to convert thousands of digits.
    if is_number and len(word) <= _DIGITS_MAX and int(word) <= _NUMBER_MAX:
        return int(word)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        problem = f"{text!r} is not a time; write it as 2026-11-16T12:00:00Z"
        raise ConfigError(option, problem) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    found = (moment - _EPOCH) // timedelta(milliseconds=1)
    if found < 0:
        raise ConfigError(option, f"{text!r} is before 1970")
    return found
