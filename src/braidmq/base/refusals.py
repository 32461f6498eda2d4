"""The texts of refusals by a limit: what was refused, by which limit, and who may raise it.

A bound of a format ("a topic has at most 65535 bytes") is not among them: it is part of what a
name or a frame is, and its text is that of the room that reads it. docs/limits.md lists both.
"""

from typing import Final

OPERATOR: Final = "whoever runs the broker may raise it"
"""The configuration file is the operator's; a key with `admin` cannot change it."""

FOR_GOOD: Final = "no setting raises it"

TOO_MANY_CONNECTIONS: Final = (
    "too many connections of this principal: the last places of limits.connections are for "
    f"others; {OPERATOR}"
)
"""Every way in says this to a principal that would keep the others out."""


def by_setting(what: str, setting: str, value: int) -> str:
    """Return the text of a refusal by a setting, whose name is that of the file."""
    return f"{what}: {setting} is {value}; {OPERATOR}"


def by_bound(what: str, bound: int, unit: str) -> str:
    """Return the text of a refusal by a bound that is the same for every broker."""
    return f"{what}: at most {bound} {unit}; {FOR_GOOD}"
