"""Authorization: who may do what, decided in one place for every strand and interface.

A pattern is a name in which `*` matches any run of characters, also an empty one; nothing else
is special, and case counts. That holds for users' grants as well: VibeMQ ignores case there,
but a queue's name is case-sensitive here, and a permission must not reach further than the name
it was written for. The default is no permission.

                   an API key                              a user
    publish        a `publish` pattern                     a grant of it
    subscribe      a `subscribe` pattern                   a grant of it
    queue info     admin, or a pattern of either kind      a grant of it
    list queues    admin, or a pattern of either kind      any grant for the name
    create, delete and purge a queue
                   admin                                   a grant of it
    name another queue for dead letters
                   admin, and a `publish` pattern          grants of create and of publish
    replay dead letters
                   admin, and a `publish` pattern for      never
                   where each letter came from
    admin          admin                                   never

A declaration is judged for every name that it leads to, and once: the queue of its dead
letters must be one that the declarer could have created and could publish to itself, because
letters go there in its name and lift the limits of what is there. The default, `dlq.` and the
queue's name, belongs to the queue and needs nothing more. A declaration stands when its
declarer loses the permission, as the queue itself does: to stop dead letters then would be to
lose messages.

All sessions of a user or key share one principal, and a change to it takes effect at once,
everywhere: Vibe compares its version at every command and delivery; on Blip and Qumbed the
connections are told (`Connection.permissions_changed`), so that nothing is compared for each
message. A Blip subscription outlives its connections and the broker, and is judged again when a
connection uses it for the first time.
"""

from collections.abc import Set as AbstractSet
from typing import Final

from braidmq.broker.quotas import Quotas

PUBLISH: Final = "publish"
SUBSCRIBE: Final = "subscribe"
ADMIN: Final = "admin"
CREATE_QUEUE: Final = "create_queue"
DELETE_QUEUE: Final = "delete_queue"
PURGE_QUEUE: Final = "purge_queue"
QUEUE_INFO: Final = "queue_info"
LIST_QUEUES: Final = "list_queues"

GRANTABLE: Final = (
    PUBLISH,
    SUBSCRIBE,
    CREATE_QUEUE,
    DELETE_QUEUE,
    PURGE_QUEUE,
    QUEUE_INFO,
    LIST_QUEUES,
)
"""What a grant can hold, in the order of the protocol's numbers; administration is not one."""

PATTERN_CHARS_MAX: Final = 256
"""As long as the longest queue name; a longer pattern is refused when it is granted."""


class Grant:
    """What a user may do with the queues that one pattern matches; it never changes."""

    def __init__(self, pattern: str, operations: AbstractSet[str]) -> None:
        assert is_pattern(pattern)
        assert operations
        assert operations <= set(GRANTABLE)
        self.pattern: str = pattern
        self.operations: frozenset[str] = frozenset(operations)


class Principal:
    """The authenticated caller: a name, and the patterns of what it may do.

    API keys have `publish`, `subscribe` and `admin`; users have `grants`, and are `gone` once
    they are deleted. Both have `quotas`: how much of what is shared they may hold.
    """

    def __init__(
        self,
        name: str,
        *,
        publish: list[str],
        subscribe: list[str],
        admin: bool = False,
        grants: list[Grant] | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self.name: str = name
        self.publish: list[str] = publish
        self.subscribe: list[str] = subscribe
        self.admin: bool = admin
        self.grants: list[Grant] = [] if grants is None else grants
        self.quotas: Quotas = Quotas() if quotas is None else quotas
        self.gone: bool = False
        self.version: int = 0  # grows with every change: decisions for an older one are void


def authorize(principal: Principal, operation: str, name: str) -> bool:
    """Say whether *principal* may do *operation* on the topic or queue called *name*."""
    if principal.gone:
        return False
    if operation == PUBLISH:
        return _any_matches(principal.publish, name) or _is_granted(principal, PUBLISH, name)
    if operation == SUBSCRIBE:
        return _any_matches(principal.subscribe, name) or _is_granted(
            principal, SUBSCRIBE, name
        )
    if operation == ADMIN:
        return principal.admin
    if operation == QUEUE_INFO:
        return _sees(principal, name) or _is_granted(principal, QUEUE_INFO, name)
    if operation == LIST_QUEUES:
        return _sees(principal, name) or _has_any_grant(principal, name)
    assert operation in {CREATE_QUEUE, DELETE_QUEUE, PURGE_QUEUE}, operation
    return principal.admin or _is_granted(principal, operation, name)


def lacks_for_letters(principal: Principal, name: str) -> str:
    """Return what *principal* lacks to have dead letters sent to the queue *name*, or ""."""
    for operation in (CREATE_QUEUE, PUBLISH):
        if not authorize(principal, operation, name):
            return operation
    return ""


def is_pattern(pattern: str) -> bool:
    """Say whether *pattern* may be granted: 1 to `PATTERN_CHARS_MAX` characters, any at all."""
    return 1 <= len(pattern) <= PATTERN_CHARS_MAX


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
    # The leftmost fit of each middle part leaves the most room for the next ones.
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


def _sees(principal: Principal, name: str) -> bool:
    return (
        principal.admin
        or _any_matches(principal.publish, name)
        or _any_matches(principal.subscribe, name)
    )


def _is_granted(principal: Principal, operation: str, name: str) -> bool:
    return any(
        operation in grant.operations and matches(grant.pattern, name)
        for grant in principal.grants
    )


def _has_any_grant(principal: Principal, name: str) -> bool:
    return any(matches(grant.pattern, name) for grant in principal.grants)
