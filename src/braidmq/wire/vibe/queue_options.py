"""Queue options of the Vibe strand: read from a CreateQueue, written into a QueueInfo.

    header                   JSON key                 value
    deliveryMode             mode, deliveryMode       one of MODES, or its number
    maxQueueSize             maxQueueSize             messages, 1 or more
    messageTtl               messageTtl               ms; in JSON also "[d.]hh:mm:ss[.f]"
    enableDeadLetterQueue    enableDeadLetterQueue    true or false
    deadLetterQueueName      deadLetterQueueName      a queue name
    overflowStrategy         overflowStrategy         one of STRATEGIES, or its number
    maxRetryAttempts         maxRetryAttempts         deliveries, 1 or more
    durable                  durable                  true or false

A header wins over the JSON payload; names of modes and strategies ignore case. This module
knows neither what the options do nor their defaults.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from braidmq.base.errors import BraidError
from braidmq.wire.vibe.frames import DIALECT_1_0
from braidmq.wire.vibe.messages import is_json, is_queue_name, read_decimal

MODES: Final = ("RoundRobin", "FanOutWithAck", "FanOutWithoutAck", "PriorityBased")
STRATEGIES: Final = ("DropOldest", "DropNewest", "BlockPublisher", "RedirectToDlq")

COUNT_MAX: Final = 2**31 - 1
"""Sizes and attempts are 32-bit integers to released clients."""

TTL_MS_MAX: Final = 922_337_203_685_477
"""The longest time span that released clients can hold."""

VALUE_CHARS_MAX: Final = 64
"""How much of a bad value an error text repeats."""

_DIGITS_MAX: Final = 16  # of an integer; more than any bound here has
_MS_PER_S: Final = 1000
_MS_PER_DAY: Final = 86_400_000
_TICKS_PER_MS: Final = 10_000  # seven decimals of a second

_TIME_OF_DAY: Final = r"([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])(?:\.([0-9]{1,7}))?"
_TIMESPAN: Final = re.compile(rf"(?:([0-9]{{1,8}})\.)?{_TIME_OF_DAY}")

TIMESPAN_PATTERN: Final = rf"^(?:[0-9]{{1,7}}\.)?{_TIME_OF_DAY}$"
"""Time spans as a pattern for JSON Schema, with few enough days to stay below TTL_MS_MAX."""

_SIXTY: Final = 60
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

assert 10**_DIGITS_MAX > TTL_MS_MAX > COUNT_MAX
assert 10**7 * _MS_PER_DAY < TTL_MS_MAX  # as TIMESPAN_PATTERN has it


class OptionError(BraidError):
    """A queue option has a value that cannot be used."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}")
        self.key = key
        self.problem = problem


@dataclass(slots=True)
class QueueOptions:
    """The options that a client gives for a queue; None for those it leaves out."""

    mode: int | None = None
    max_size: int | None = None
    ttl_ms: int | None = None
    dead_letters: bool | None = None
    dead_letter_name: str | None = None
    overflow: int | None = None
    max_attempts: int | None = None
    durable: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueFacts:
    """The content of a QueueInfo reply; None is no limit or no name, times are since 1970."""

    name: str
    waiting: int
    in_flight: int
    subscribers: int
    mode: int
    max_size: int | None
    created_us: int
    ttl_ms: int | None
    dead_letters: bool
    dead_letter_name: str | None
    overflow: int
    max_attempts: int
    durable: bool


def read_options(headers: dict[str, str], payload: bytes) -> QueueOptions:
    """Return the options that a CreateQueue gives.

    Raises:
        OptionError: A value is not valid; the text names key and value.
    """
    given = _read_object(payload)
    mode = _choice("deliveryMode", MODES, headers, given)
    if "deliveryMode" not in headers and given.get("mode") is not None:
        mode = _choice("mode", MODES, {}, given)
    ttl_ms = _ttl(headers, given)  # 0: no TTL, as if it were left out
    return QueueOptions(
        mode=mode,
        max_size=_count("maxQueueSize", headers, given),
        ttl_ms=ttl_ms or None,
        dead_letters=_flag("enableDeadLetterQueue", headers, given),
        dead_letter_name=_queue_name("deadLetterQueueName", headers, given),
        overflow=_choice("overflowStrategy", STRATEGIES, headers, given),
        max_attempts=_count("maxRetryAttempts", headers, given),
        durable=_flag("durable", headers, given),
    )


def write_info(facts: QueueFacts, dialect: int) -> bytes:
    """Return a QueueInfo payload: names and ms in dialect 1.0, numbers and spans in 1.1."""
    in_words = dialect == DIALECT_1_0
    ttl: int | str | None = None
    if facts.ttl_ms:
        ttl = facts.ttl_ms if in_words else format_timespan(facts.ttl_ms)
    created_at = _EPOCH + timedelta(microseconds=facts.created_us)
    info = {
        "name": facts.name,
        "messageCount": facts.waiting,
        "inFlight": facts.in_flight,
        "subscriberCount": facts.subscribers,
        "deliveryMode": MODES[facts.mode] if in_words else facts.mode,
        "maxSize": facts.max_size or 0,
        "createdAt": created_at.isoformat().replace("+00:00", "Z"),
        "messageTtl": ttl,
        "enableDeadLetterQueue": facts.dead_letters,
        "deadLetterQueueName": facts.dead_letter_name or None,
        "overflowStrategy": STRATEGIES[facts.overflow] if in_words else facts.overflow,
        "maxRetryAttempts": facts.max_attempts,
        "durable": facts.durable,
    }
    return json.dumps(info, ensure_ascii=False, separators=(",", ":")).encode()


def format_timespan(ms: int) -> str:
    """Return *ms* as [d.]hh:mm:ss[.fffffff]; days and fraction only if they are not 0."""
    assert 0 <= ms <= TTL_MS_MAX
    days, ms_of_day = divmod(ms, _MS_PER_DAY)
    seconds_of_day, fraction_ms = divmod(ms_of_day, _MS_PER_S)
    minutes_of_day, seconds = divmod(seconds_of_day, _SIXTY)
    hours, minutes = divmod(minutes_of_day, _SIXTY)
    text = f"{hours:02}:{minutes:02}:{seconds:02}"
    if days:
        text = f"{days}.{text}"
    if fraction_ms:
        text = f"{text}.{fraction_ms * _TICKS_PER_MS:07}"
    return text


def parse_timespan(text: str) -> int:
    """Return the ms of `[d.]hh:mm:ss[.f]`, rounded up.

    Rounding down could turn a short TTL into 0, which means that messages never expire.

    Raises:
        ValueError: It has another form, or is longer than TTL_MS_MAX.
    """
    match = _TIMESPAN.fullmatch(text)
    if match is None:
        raise ValueError("not a time span")
    days, hours, minutes, seconds, fraction = match.groups("0")
    ticks = int(fraction.ljust(7, "0"))
    whole_s = (int(hours) * _SIXTY + int(minutes)) * _SIXTY + int(seconds)
    ms = int(days) * _MS_PER_DAY + whole_s * _MS_PER_S - -ticks // _TICKS_PER_MS
    if ms > TTL_MS_MAX:
        raise ValueError("too long")
    return ms


def _read_object(payload: bytes) -> dict[str, Any]:
    if not payload:
        return {}
    if not is_json(payload):
        raise OptionError("payload", "not JSON")
    # Floats stay text: no option takes one, and the error then shows it as the client wrote it.
    value = json.loads(payload.decode(), parse_float=str, parse_int=_read_integer)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise OptionError("payload", "not a JSON object")
    return value


def _read_integer(text: str) -> int | str:
    # Long ones stay text: converting them takes quadratic time, and no option takes one.
    return int(text) if len(text) <= _DIGITS_MAX else text


def _given(key: str, headers: dict[str, str], given: dict[str, Any]) -> tuple[Any, int]:
    """Return an option's value, None if it is left out, and the integer it is, else -1."""
    if key in headers:
        return headers[key], read_decimal(headers[key], _DIGITS_MAX)
    value = given.get(key)
    return value, value if type(value) is int else -1  # not isinstance: True is an int


def _choice(
    key: str, names: tuple[str, ...], headers: dict[str, str], given: dict[str, Any]
) -> int | None:
    value, number = _given(key, headers, given)
    if value is None:
        return None
    if 0 <= number < len(names):
        return number
    if isinstance(value, str):
        for index, name in enumerate(names):
            if name.lower() == value.lower():
                return index
    raise _bad(key, value, f"one of {', '.join(names)}")


def _count(key: str, headers: dict[str, str], given: dict[str, Any]) -> int | None:
    value, number = _given(key, headers, given)
    if value is None:
        return None
    if 1 <= number <= COUNT_MAX:
        return number
    raise _bad(key, value, f"an integer from 1 to {COUNT_MAX}")


def _ttl(headers: dict[str, str], given: dict[str, Any]) -> int | None:
    key = "messageTtl"
    value, number = _given(key, headers, given)
    if value is None:
        return None
    if 0 <= number <= TTL_MS_MAX:
        return number
    if key not in headers and isinstance(value, str):
        try:
            return parse_timespan(value)
        except ValueError:
            pass
    raise _bad(key, value, "a time to live")


def _flag(key: str, headers: dict[str, str], given: dict[str, Any]) -> bool | None:
    value = headers.get(key, given.get(key))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    raise _bad(key, value, "true or false")


def _queue_name(key: str, headers: dict[str, str], given: dict[str, Any]) -> str | None:
    value = headers.get(key, given.get(key))
    if value is None or value == "":
        return None
    if isinstance(value, str) and is_queue_name(value):
        return value
    raise _bad(key, value, "a queue name")


def _bad(key: str, value: object, wanted: str) -> OptionError:
    shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    shown = shown[:VALUE_CHARS_MAX].encode(errors="replace").decode()
    return OptionError(key, f"{shown} is not {wanted}")
