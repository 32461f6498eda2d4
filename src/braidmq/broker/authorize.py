"""Who may do what: one decision, asked by every strand and every path.

A pattern is a name in which `*` matches any run of characters, also an empty one; nothing else
is special, and case counts. No permission is the default.
"""

from typing import Final

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
ADMIN: Final = "admin"


class Principal:
    """Who is asking: a name, and the patterns of what it may do."""

    def __init__(
        self, name: str, *, publish: list[str], subscribe: list[str], admin: bool = False
    ) -> None:
        self.name: str = name
        self.publish: list[str] = publish
        self.subscribe: list[str] = subscribe
        self.admin: bool = admin


def authorize(principal: Principal, operation: str, name: str) -> bool:
    """Say whether *principal* may do *operation* on the topic or queue called *name*."""
    if operation == PUBLISH:
        return _any_matches(principal.publish, name)
    if operation == SUBSCRIBE:
        return _any_matches(principal.subscribe, name)
    assert operation == ADMIN, operation
    return principal.admin


def matches(pattern: str, name: str) -> bool:
    """Say whether *pattern* matches the whole of *name*."""
    parts = pattern.split("*")
    if len(parts) == 1:
        return pattern == name
    first = parts[0]
    last = parts[-1]
    if len(name) < len(first) + len(last):
        return False
    if not name.startswith(first) or not name.endswith(last):
        return False
    # The leftmost fit of each middle part leaves the most room for the ones behind it.
    at = len(first)
    end = len(name) - len(last)
    for part in parts[1:-1]:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True


def _any_matches(patterns: list[str], name: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns)
