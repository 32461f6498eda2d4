"""The oracle of the permission matrix: what each principal may do, as `listener verb name`.

It shares no code with the broker: it knows the configuration as it was written, matches
patterns with regular expressions, and states each verb's rule by itself.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

NAMES: Final = ("a", "a.b", "ab", "secret.q", "dlq.a")
LETTERED: Final = tuple(name for name in NAMES if not name.startswith("dlq."))
"""Queues whose messages can die: letters do not die again."""

EVERY_NAME: Final = sorted({*NAMES, *(f"dlq.{name}" for name in LETTERED)})
"""All topics of the broker, each a queue with a message; a list may show no other."""

LEADS: Final = tuple(" to ".join(pair) for pair in itertools.permutations(NAMES, 2))
ABSENT: Final = "absent"
"""There is no such topic or queue: to be forbidden must not look different for it."""

NAMES_OF: Final = {
    "lead": LEADS,
    **dict.fromkeys(("letters", "replay", "replay_one"), LETTERED),
    **dict.fromkeys(("info", "topic", "message"), (*NAMES, ABSENT)),
}
"""What a verb is tried with, unless it is NAMES."""

BYSTANDER: Final = "bystander"
"""A user that the others try to administer."""

KEY_LISTENERS: Final = ("blip", "vibe", "qumbed", "http", "flight")
FOR_ADMINISTRATORS: Final = (
    "http reload",
    "http keys",
    "http verify",
    "http close",
    "http others_connections",
    "http others_clients",
    "http others_quotas",
    "http others_cursors",
    "http remove_cursor",
    "flight others_cursors",
    "flight move_cursor",
    "flight remove_cursor",
    "flight go_on",
    "vibe users",
)
ON_USERS: Final = ("create", "grant", "revoke", "permissions", "password", "delete")
ON_ONESELF: Final = ("permissions", "password")


class Who(NamedTuple):
    """A principal as it was configured: a key's patterns, or a user's grants."""

    name: str
    publish: tuple[str, ...] = ()
    subscribe: tuple[str, ...] = ()
    admin: bool = False
    grants: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def is_user(self) -> bool:
        return self.name.startswith("user")


def fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(
        re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name)
        for pattern in patterns
    )


def granted(who: Who, operation: str, name: str) -> bool:
    return any(operation in words and fits((pattern,), name) for pattern, words in who.grants)


def may_publish(who: Who, name: str) -> bool:
    return fits(who.publish, name) or granted(who, "Publish", name)


def may_subscribe(who: Who, name: str) -> bool:
    return fits(who.subscribe, name) or granted(who, "Subscribe", name)


def may_manage(who: Who, name: str, operation: str = "") -> bool:
    return who.admin or granted(who, operation, name)


def may_see(who: Who, name: str) -> bool:
    patterns = who.publish + who.subscribe
    return who.admin or fits(patterns, name) or granted(who, "GetQueueInfo", name)


def may_list(who: Who, name: str) -> bool:
    return may_see(who, name) or fits(tuple(pattern for pattern, _ in who.grants), name)


def may_lead(who: Who, name: str, letters: str) -> bool:
    """Say whether a declaration of *name* may have its dead letters sent to *letters*."""
    if not may_manage(who, name, "CreateQueue"):
        return False
    if name.startswith("dlq.") or letters == f"dlq.{name}":
        return True  # letters of letters there are none; the default is the queue's own
    return may_manage(who, letters, "CreateQueue") and may_publish(who, letters)


def expected(who: Who) -> set[str]:
    """Return everything that a principal may do."""
    found = {*_with_vibe_users(who)}
    if who.is_user:
        return found | {*_with_names(who, "vibe")}
    for listener in KEY_LISTENERS:
        found.update(_with_names(who, listener))
    if who.admin:
        found.update(FOR_ADMINISTRATORS)
    if who.admin or who.subscribe:
        found.add("flight open_cursor")
    return found | {*_over_http(who)} | {*_over_flight(who)}


def _with_names(who: Who, listener: str) -> Iterator[str]:
    """Yield what is the same over every listener that has the verb."""
    for name in NAMES:
        if may_publish(who, name):
            yield f"{listener} publish {name}"
        if may_subscribe(who, name):
            yield f"{listener} subscribe {name}"
    if listener in {"vibe", "http"}:
        for name in NAMES:
            if may_manage(who, name, "CreateQueue"):
                yield f"{listener} create {name}"
            if may_manage(who, name, "DeleteQueue"):
                yield f"{listener} delete {name}"
        for name in NAMES_OF["info"]:
            if may_see(who, name):
                yield f"{listener} info {name}"
        for lead in LEADS:
            if may_lead(who, *lead.split(" to ")):
                yield f"{listener} lead {lead}"
    for name in EVERY_NAME:
        if listener in {"vibe", "http", "qumbed"} and may_list(who, name):
            yield f"{listener} sees {name}"


def _with_vibe_users(who: Who) -> Iterator[str]:
    for verb in ON_USERS:
        if who.admin:
            yield f"vibe {verb}_user {BYSTANDER}"
        if who.admin or (who.is_user and verb in ON_ONESELF):
            yield f"vibe {verb}_user {who.name}"


def _over_http(who: Who) -> Iterator[str]:
    for name in NAMES_OF["topic"]:
        if may_see(who, name):
            yield f"http topic {name}"
        if may_subscribe(who, name):
            yield f"http message {name}"
    for name in NAMES:
        if who.admin:
            yield f"http purge {name}"
            yield f"http delete_topic {name}"
            yield f"http others_subscription {name}"
    for name in LETTERED:
        if who.admin or may_subscribe(who, f"dlq.{name}"):
            yield f"http letters {name}"
        if who.admin and may_publish(who, name):
            yield f"http replay {name}"
            yield f"http replay_one {name}"
    for name in EVERY_NAME:
        if may_list(who, name):
            yield f"http sees_queue {name}"
            if name.startswith("dlq."):
                yield f"http sees_letters {name}"


def _over_flight(who: Who) -> Iterator[str]:
    for name in NAMES:
        if may_subscribe(who, name):
            yield f"flight cut {name}"
            yield f"flight advance {name}"
        if who.admin:
            yield f"flight abort {name}"
        if who.admin and may_publish(who, name):
            yield f"flight commit {name}"
    for name in EVERY_NAME:
        if may_subscribe(who, name):
            yield f"flight sees {name}"
            yield f"flight sees_flight {name}"
            yield f"flight matches {name}"
            yield f"flight reads {name}"
