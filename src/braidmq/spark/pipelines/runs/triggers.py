"""When micro-batches run: until everything is read, or at an interval."""

import re
from typing import Final, NamedTuple

from braidmq.base.errors import ConfigError

AVAILABLE_NOW: Final = "available-now"
_EVERY: Final = re.compile(r"(\d{1,6})(ms|s|m|h)")
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000}


class Trigger(NamedTuple):
    """The interval; None: read what there is now, then end."""

    every_ms: int | None = None


def parse_trigger(text: str) -> Trigger:
    """Return the trigger of an option: `available-now`, or `10s`, `500ms`, `5m`, `1h`.

    Raises:
        ConfigError: It is neither.
    """
    if text == AVAILABLE_NOW:
        return Trigger()
    found = _EVERY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise ConfigError(
            "--trigger", f"{text!r} is neither {AVAILABLE_NOW} nor an interval such as 10s"
        )
    return Trigger(int(found[1]) * _UNITS_MS[found[2]])
