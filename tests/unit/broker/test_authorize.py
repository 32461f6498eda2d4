"""Permissions: patterns and decisions, each against an independent oracle."""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.authorize import (
    ADMIN,
    CREATE_QUEUE,
    DELETE_QUEUE,
    GRANTABLE,
    LIST_QUEUES,
    PATTERN_CHARS_MAX,
    PUBLISH,
    PURGE_QUEUE,
    QUEUE_INFO,
    SUBSCRIBE,
    Grant,
    Principal,
    authorize,
    is_pattern,
    lacks_for_letters,
    matches,
)

OPERATIONS = (*GRANTABLE, ADMIN)
MANAGEMENT = (CREATE_QUEUE, DELETE_QUEUE, PURGE_QUEUE, ADMIN)
PATTERNS = ("*", "a", "A", "a*", "*a", "a*a", "**", ".")
NAMES = ("", *("".join(word) for size in (1, 2, 3) for word in product("aA.", repeat=size)))

names = st.text(alphabet="ab.", max_size=8)
patterns = st.text(alphabet="ab.**", max_size=8)
grants = st.dictionaries(
    patterns.filter(bool), st.sets(st.sampled_from(GRANTABLE), min_size=1), max_size=4
)


@cache
def matches_by_recursion(pattern: str, name: str) -> bool:
    """Match a pattern one character at a time."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return matches_by_recursion(pattern[1:], name) or (
            name != "" and matches_by_recursion(pattern, name[1:])
        )
    return name[:1] == pattern[0] and matches_by_recursion(pattern[1:], name[1:])


def key_may(principal: Principal, name: str) -> set[str]:
    """Return every operation that an API key may perform on a name."""
    may: set[str] = set()
    if any(matches_by_recursion(pattern, name) for pattern in principal.publish):
        may |= {PUBLISH, QUEUE_INFO, LIST_QUEUES}
    if any(matches_by_recursion(pattern, name) for pattern in principal.subscribe):
        may |= {SUBSCRIBE, QUEUE_INFO, LIST_QUEUES}
    if principal.admin:
        may |= {*MANAGEMENT, QUEUE_INFO, LIST_QUEUES}
    return may


def user_may(granted: Iterable[tuple[str, Iterable[str]]], name: str) -> set[str]:
    """Return every operation that a user may perform on a name."""
    may: set[str] = set()
    for pattern, operations in granted:
        if matches_by_recursion(pattern, name):
            may |= {*operations, LIST_QUEUES}
    return may


def decided(principal: Principal, name: str) -> set[str]:
    return {operation for operation in OPERATIONS if authorize(principal, operation, name)}


def user(granted: Iterable[tuple[str, Iterable[str]]]) -> Principal:
    given_ = [Grant(pattern, set(operations)) for pattern, operations in granted]
    return Principal("ada", publish=[], subscribe=[], grants=given_)


def keys() -> Iterator[Principal]:
    lists = [[], *([pattern] for pattern in PATTERNS), ["a", "A"]]
    for publish, subscribe, admin in product(lists, lists, (False, True)):
        yield Principal("key", publish=publish, subscribe=subscribe, admin=admin)


def matches_by_regex(pattern: str, name: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, name, re.DOTALL) is not None


@given(patterns, names)
def test_a_star_is_any_run_of_characters(pattern: str, name: str) -> None:
    """A pattern matches the same names as the equivalent regular expression."""
    assert matches_by_regex(pattern, name) == matches(pattern, name)


@given(st.text(max_size=6), st.text(max_size=6))
def test_nothing_but_the_star_is_special(pattern: str, name: str) -> None:
    """This holds for any characters, including newlines and brackets."""
    assert matches_by_regex(pattern, name) == matches(pattern, name)


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*", "", True),
        ("orders.*", "orders.", True),
        ("orders.*", "orders", False),
        ("orders.*", "Orders.eu", False),
        ("a*a", "a", False),
        ("a*b*c", "a-c-b", False),
        ("a*b*c", "a-c", False),
        ("*b*", "abc", True),
        ("a?c", "abc", False),
    ],
)
def test_patterns_by_example(pattern: str, name: str, *, expected: bool) -> None:
    """Case matters, a star may match nothing, and parts do not overlap."""
    assert expected == matches(pattern, name)


def test_a_star_in_a_name_is_only_a_character() -> None:
    """Names are matched and never match: a topic or a user called `*` opens nothing."""
    key = Principal("*", publish=["a"], subscribe=["b.*"])

    assert not authorize(key, PUBLISH, "*")
    assert not authorize(key, SUBSCRIBE, "*")
    assert not authorize(key, SUBSCRIBE, "*.*")
    assert authorize(key, SUBSCRIBE, "b.*")


def test_each_operation_has_its_own_patterns() -> None:
    """Permission to publish to a topic is no permission to subscribe to it."""
    principal = Principal("ada", publish=["x", "in.*"], subscribe=["out.*"])

    assert authorize(principal, PUBLISH, "in.eu")
    assert not authorize(principal, SUBSCRIBE, "in.eu")
    assert authorize(principal, SUBSCRIBE, "out.eu")
    assert not authorize(principal, PUBLISH, "out.eu")


def test_no_permission_is_the_default() -> None:
    """Without patterns nothing is allowed, administration included."""
    powerless = Principal("ada", publish=[], subscribe=[])

    assert [False, False, False] == [
        authorize(powerless, operation, "a") for operation in (PUBLISH, SUBSCRIBE, ADMIN)
    ]


def test_only_the_flag_makes_an_administrator() -> None:
    """Administration is a flag; no topic pattern grants it."""
    assert authorize(Principal("ops", publish=[], subscribe=[], admin=True), ADMIN, "")
    assert not authorize(Principal("ada", publish=["*"], subscribe=["*"]), ADMIN, "")


def test_an_unknown_operation_is_a_programming_error() -> None:
    """It fails an assertion rather than yielding a decision."""
    with pytest.raises(AssertionError):
        authorize(Principal("ada", publish=["*"], subscribe=["*"]), "delete", "a")


def test_every_key_against_every_name() -> None:
    """Every operation of every small API key on every short name matches the oracle."""
    wrong = [
        (key.publish, key.subscribe, key.admin, name)
        for key, name in product(keys(), NAMES)
        if key_may(key, name) != decided(key, name)
    ]

    assert [] == wrong


def test_every_single_grant_against_every_name() -> None:
    """Every operation of every small grant on every short name matches the oracle."""
    sets = [*combinations(GRANTABLE, 1), *combinations(GRANTABLE, 2), GRANTABLE]
    wrong = [
        (pattern, operations, name)
        for pattern, operations in product(PATTERNS, sets)
        for name in NAMES
        if user_may([(pattern, operations)], name)
        != decided(user([(pattern, operations)]), name)
    ]

    assert [] == wrong


@given(grants, names)
def test_grants_add_up(granted: dict[str, set[str]], name: str) -> None:
    """A user may do what any of its grants allows, and nothing more."""
    assert user_may(granted.items(), name) == decided(user(granted.items()), name)


@given(st.lists(patterns, max_size=3), st.lists(patterns, max_size=3), st.booleans(), names)
def test_the_patterns_of_a_key_add_up(
    publish: list[str],
    subscribe: list[str],
    admin: bool,
    name: str,
) -> None:
    """A key may do what any of its patterns allows, and nothing more."""
    key = Principal("key", publish=publish, subscribe=subscribe, admin=admin)

    assert key_may(key, name) == decided(key, name)


def test_grants_are_case_sensitive() -> None:
    """A grant for `orders` does not extend to `Orders`, which is another queue."""
    ada = user([("orders", GRANTABLE)])

    assert set(GRANTABLE) == decided(ada, "orders")
    assert set() == decided(ada, "Orders")


def test_a_deleted_user_may_do_nothing() -> None:
    """Not even an administrator with grants left: deletion revokes everything."""
    ghost = Principal("ghost", publish=["*"], subscribe=["*"], admin=True, grants=[])
    ghost.grants.append(Grant("*", set(GRANTABLE)))
    assert set(OPERATIONS) == decided(ghost, "a")
    ghost.gone = True

    assert set() == decided(ghost, "a")


def test_changed_grants_apply_to_open_sessions() -> None:
    """A session keeps the principal, not a copy of its permissions at connect time."""
    ada = user([("a", {PUBLISH})])
    seen_by_a_session = ada
    ada.grants = [Grant("b", {SUBSCRIBE})]

    assert set() == decided(seen_by_a_session, "a")
    assert {SUBSCRIBE, LIST_QUEUES} == decided(seen_by_a_session, "b")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", False),
        ("*", True),
        ("é" * PATTERN_CHARS_MAX, True),
        ("a" * (PATTERN_CHARS_MAX + 1), False),
    ],
)
def test_a_pattern_has_a_bounded_length(pattern: str, *, expected: bool) -> None:
    """The limit counts characters, not bytes; an empty pattern would match nothing."""
    assert expected == is_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "operations"),
    [("", {PUBLISH}), ("a" * 257, {PUBLISH}), ("a", set()), ("a", {ADMIN}), ("a", {"x"})],
)
def test_an_invalid_grant_is_a_programming_error(pattern: str, operations: set[str]) -> None:
    """Peers' requests are validated earlier; administration cannot be granted at all."""
    with pytest.raises(AssertionError):
        Grant(pattern, operations)


def test_a_queue_for_dead_letters_is_one_that_its_declarer_could_create_and_fill() -> None:
    """Either permission alone is not enough, for users as for keys."""
    everything = {CREATE_QUEUE, PUBLISH}
    users = [
        Principal("u", publish=[], subscribe=[], grants=[Grant("m.*", words)])
        for words in (everything, {CREATE_QUEUE}, {PUBLISH}, {SUBSCRIBE})
    ]
    keys = [
        Principal("k", publish=publish, subscribe=["*"], admin=admin)
        for publish, admin in ((["m.*"], True), ([], True), (["m.*"], False))
    ]
    lacking = [lacks_for_letters(one, "m.dead") for one in users + keys]

    assert ["", PUBLISH, CREATE_QUEUE, CREATE_QUEUE, "", PUBLISH, CREATE_QUEUE] == lacking
    assert {CREATE_QUEUE, PUBLISH} == {
        lacks_for_letters(one, "secret.q") for one in users + keys
    }
