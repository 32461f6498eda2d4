"""Users: passwords, principals and changes; real hashes, made cheap."""

import asyncio
import errno
import json
import logging
import queue
from collections.abc import Callable, Iterator
from random import Random

import pytest
import structlog
from argon2 import Type, extract_parameters

from braidmq.broker.authorize import GRANTABLE, PUBLISH, SUBSCRIBE, Principal, authorize
from braidmq.server.access import users as module
from braidmq.server.access.users import (
    GRANTS_MAX,
    HASH_MEMORY_KIB,
    PASSWORD_CHARS_MAX,
    USERS_FILE,
    WORKERS,
    Account,
    Result,
    User,
    Users,
    is_password,
    is_user_name,
)
from braidmq.testing.disk import FakeDisk
from tests.unit.server.access.users_by_hand import (
    HASH,
    NOW_S,
    WAIT_S,
    Counting,
    Desk,
    OutOfMemory,
    user_record,
    users_file,
)


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


@pytest.fixture
def gated() -> Iterator[Desk]:
    desk = Desk()
    desk.hasher.gate.clear()
    yield desk
    desk.close()


def test_a_user_comes_in_with_its_password_only(desk: Desk) -> None:
    """The right password gives the one principal; a wrong one, or another's name, nobody."""
    assert Result.DONE == desk.create("ada", "countess")
    assert Result.DONE == desk.create("Ada", "other")

    assert desk.found("ada") is desk.check("ada", "countess")
    assert "ada" == desk.found("ada").name
    assert desk.check("ada", "Countess") is None
    assert desk.check("Ada", "countess") is None
    assert desk.check("nobody", "countess") is None
    assert desk.check("ada", "") is None


def test_a_new_user_may_do_nothing(desk: Desk) -> None:
    """No permission is the default, and nobody is born an administrator."""
    desk.create("ada")

    assert not any(authorize(desk.found("ada"), word, "a") for word in (*GRANTABLE, "admin"))


def test_an_unknown_user_costs_what_a_wrong_password_costs(desk: Desk) -> None:
    """One verification of the same kind of hash each, so that time tells no names."""
    desk.create("ada")
    desk.check("ada", "wrong")
    desk.check("nobody", "wrong")
    desk.check("billing", "wrong")

    known, unknown, key = (str(asked) for asked in desk.hasher.asked)
    assert extract_parameters(known) == extract_parameters(unknown)
    assert unknown == key
    assert known != unknown


def test_the_parameters_are_those_that_are_recommended() -> None:
    """Without another hasher it is argon2id with 19 MiB and two passes, and it works."""
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    disk = FakeDisk()
    users = Users(disk, reserved=(), now_us=lambda: 0, post=calls.put)
    answers: list[Result] = []
    users.create("ada", "countess", answers.append)
    while not answers:
        calls.get(timeout=WAIT_S)()
    users.stop()
    users.close()
    found = extract_parameters(json.loads(disk.content(USERS_FILE))["users"][0]["hash"])

    assert (Type.ID, 19 * 1024, 2, 1) == (
        found.type,
        found.memory_cost,
        found.time_cost,
        found.parallelism,
    )
    assert found.memory_cost == HASH_MEMORY_KIB


def test_a_name_is_given_once(desk: Desk) -> None:
    """A second user of the name is refused before its password is hashed."""
    desk.create("ada")
    hashed = desk.hasher.hashed

    assert Result.EXISTS == desk.create("ada")
    assert hashed == desk.hasher.hashed


def test_two_who_want_a_name_at_once_do_not_both_get_it(desk: Desk) -> None:
    """What was free when hashing began is looked at again when it is done."""
    answers: list[Result] = []
    desk.users.create("ada", "first", answers.append)
    desk.users.create("ada", "second", answers.append)
    desk.until(answers, 2)

    assert {Result.DONE, Result.EXISTS} == set(answers)
    assert [Account("ada", NOW_S)] == desk.users.accounts()


def test_the_names_of_api_keys_are_taken(desk: Desk) -> None:
    """A user can neither take the name of a key nor delete the key behind it."""
    assert Result.EXISTS == desk.create("billing")
    assert Result.FORBIDDEN == desk.delete("billing")
    assert Result.NOT_FOUND == desk.change("billing", "secret")
    assert Result.NOT_FOUND == desk.grant("billing", "*", PUBLISH)
    assert desk.users.find("billing") is None
    assert [] == desk.users.accounts()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a", True),
        ("Ada.Lovelace_1-b", True),
        ("a" * 64, True),
        ("a" * 65, False),
        ("", False),
        ("a b", False),
        ("ada\n", False),
        ("аda", False),  # noqa: RUF001 - the first letter is Cyrillic
        ("a/b", False),
        ("a*", False),
    ],
)
def test_names_by_example(name: str, *, expected: bool) -> None:
    """One to 64 letters, digits, dashes, underscores and dots; no line ends, no twins."""
    assert expected == is_user_name(name)


def test_passwords_have_a_length() -> None:
    """Anything from one character on is a password, up to a bound."""
    lengths = (0, 1, PASSWORD_CHARS_MAX, PASSWORD_CHARS_MAX + 1)

    assert [False, True, True, False] == [is_password("x" * length) for length in lengths]


@pytest.mark.parametrize("password", ["\0", "\ud800", "пароль", " ", "x" * 1024])
def test_any_character_may_be_in_a_password(desk: Desk, password: str) -> None:
    """Also half of a surrogate pair, which has no UTF-8."""
    assert Result.DONE == desk.create("ada", password)

    assert desk.check("ada", password) is not None
    assert desk.check("ada", password + "x") is None


def test_a_changed_password_replaces_the_old_one(desk: Desk) -> None:
    """The principal stays, and with it whoever is signed in."""
    desk.create("ada", "old")
    before = desk.found("ada")
    assert Result.DONE == desk.change("ada", "new")

    assert desk.check("ada", "old") is None
    assert before is desk.check("ada", "new")
    assert Result.NOT_FOUND == desk.change("nobody", "new")


def test_a_deleted_user_is_gone_at_once(desk: Desk) -> None:
    """Sessions that are open lose everything with the deletion, not with their connection."""
    desk.create("ada", "countess")
    desk.grant("ada", "*", *GRANTABLE)
    session = desk.found("ada")
    assert authorize(session, PUBLISH, "a")
    assert Result.DONE == desk.delete("ada")

    assert session.gone
    assert not any(authorize(session, word, "a") for word in GRANTABLE)
    assert desk.users.find("ada") is None
    assert desk.check("ada", "countess") is None
    assert Result.NOT_FOUND == desk.delete("ada")


def test_whoever_has_a_name_again_is_somebody_else(desk: Desk) -> None:
    """Sessions of the deleted user do not wake up when its name is given again."""
    desk.create("ada")
    desk.grant("ada", "*", PUBLISH)
    old = desk.found("ada")
    desk.delete("ada")
    desk.create("ada")
    desk.grant("ada", "*", PUBLISH)

    assert old is not desk.found("ada")
    assert not authorize(old, PUBLISH, "a")
    assert authorize(desk.found("ada"), PUBLISH, "a")


def test_a_password_that_is_changed_for_a_deleted_user_is_not_its_successors(
    desk: Desk,
) -> None:
    """A change that waited while the name changed hands goes nowhere."""
    desk.create("ada", "old")
    answers: list[Result] = []
    hashes = desk.hasher.hashed
    desk.users.change_password("ada", "stolen", answers.append)
    hashed = desk.calls.get(timeout=WAIT_S)  # the hash is there; its turn comes last
    desk.delete("ada")
    desk.create("ada", "successor")
    hashed()

    desk.until(answers)
    assert [Result.NOT_FOUND] == answers
    assert desk.check("ada", "stolen") is None
    assert desk.check("ada", "successor") is not None
    assert hashes + 2 == desk.hasher.hashed


def test_a_check_that_a_change_has_overtaken_fails(desk: Desk) -> None:
    """A password that was right when the check began, and is not any more, is wrong."""
    desk.create("ada", "old")
    answers: list[Principal | None] = []
    desk.users.check("ada", "old", answers.append)
    checked = desk.calls.get(timeout=WAIT_S)
    desk.change("ada", "new")
    checked()

    assert [None] == answers


def test_a_check_that_a_deletion_has_overtaken_fails(desk: Desk) -> None:
    """Nobody comes in as a user that is no longer there."""
    desk.create("ada", "old")
    answers: list[Principal | None] = []
    desk.users.check("ada", "old", answers.append)
    checked = desk.calls.get(timeout=WAIT_S)
    desk.delete("ada")
    checked()

    assert [None] == answers


def test_a_grant_replaces_what_the_pattern_had(desk: Desk) -> None:
    """One pattern has one set of operations; open sessions see the new one."""
    desk.create("ada")
    session = desk.found("ada")
    desk.grant("ada", "b.*", PUBLISH)
    desk.grant("ada", "a.*", PUBLISH)
    assert Result.DONE == desk.grant("ada", "a.*", SUBSCRIBE)

    assert {"a.*": {SUBSCRIBE}, "b.*": {PUBLISH}} == desk.shown("ada")
    assert not authorize(session, PUBLISH, "a.x")
    assert authorize(session, SUBSCRIBE, "a.x")
    assert Result.NOT_FOUND == desk.grant("nobody", "a.*", PUBLISH)


def test_a_grant_is_taken_back_by_its_pattern(desk: Desk) -> None:
    """The pattern is a word here, not a rule: `*` does not take back everything."""
    desk.create("ada")
    session = desk.found("ada")
    desk.grant("ada", "a.*", PUBLISH)
    assert Result.DONE == desk.revoke("ada", "*")
    assert authorize(session, PUBLISH, "a.x")
    assert Result.DONE == desk.revoke("ada", "a.*")

    assert not authorize(session, PUBLISH, "a.x")
    assert [] == desk.users.permissions("ada")


def test_taking_back_nothing_is_done_without_writing(desk: Desk) -> None:
    """It is so already, on the disk as well."""
    desk.create("ada")
    operations = desk.disk.operations

    assert Result.DONE == desk.revoke("ada", "a")
    assert Result.DONE == desk.revoke("nobody", "a")
    assert operations == desk.disk.operations


def test_a_user_has_so_many_grants_and_no_more() -> None:
    """A full one can still be changed and taken back."""
    disk = FakeDisk()
    disk.put(
        USERS_FILE,
        users_file(user_record("ada", {f"q{n}": [PUBLISH] for n in range(GRANTS_MAX)})),
    )
    desk = Desk(disk)

    assert Result.FULL == desk.grant("ada", "one-more", PUBLISH)
    assert Result.DONE == desk.grant("ada", "q0", SUBSCRIBE)
    assert Result.DONE == desk.revoke("ada", "q1")
    assert Result.DONE == desk.grant("ada", "one-more", PUBLISH)
    assert GRANTS_MAX == len(desk.users.permissions("ada"))
    desk.close()


def test_there_are_so_many_users_and_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is judged before anything is hashed."""
    monkeypatch.setattr(module, "USERS_MAX", 2)
    results = [desk.create(name) for name in ("a", "b", "c")]

    assert [Result.DONE, Result.DONE, Result.FULL] == results


def test_too_many_checks_are_refused(gated: Desk) -> None:
    """Those that run and those that wait have their answers; one more is not begun."""
    answers: list[Principal | None] = []
    results: list[Result] = []
    limit = 2 + 64
    taken = [gated.users.check("ada", "x", answers.append) for _ in range(limit + 1)]
    gated.users.create("ada", "x", results.append)
    gated.users.delete("bob", results.append)
    gated.until(results, 2)

    assert [True] * limit + [False] == taken
    assert [Result.BUSY, Result.BUSY] == results
    gated.hasher.gate.set()
    gated.until(answers, limit)
    assert limit == len(gated.hasher.asked)
    assert Result.DONE == gated.create("ada", "x")
    assert gated.check("ada", "x") is not None


def test_every_job_gives_its_place_back() -> None:
    """More changes and checks than may wait at once, one after the other, all have answers."""
    desk = Desk()
    desk.disk.fail("rename", errno.EIO, nth=3)
    for number in range(2 + 64):
        assert desk.create(f"u{number}") in {Result.DONE, Result.NOT_SAVED}
        assert Result.NOT_FOUND == desk.delete("nobody")
        assert desk.check("nobody", "x") is None
    desk.close()


def test_changes_that_come_together_are_all_made(desk: Desk) -> None:
    """Each is made on what the one before it has left."""
    desk.create("ada")
    answers: list[Result] = []
    for number in range(10):
        desk.users.grant("ada", f"q{number}", {PUBLISH}, answers.append)
    desk.users.revoke("ada", "q3", answers.append)
    desk.until(answers, 11)

    assert 11 * [Result.DONE] == answers
    assert {f"q{n}" for n in range(10) if n != 3} == set(desk.shown("ada"))
    again = Desk(desk.disk.crash(Random(1)))
    assert desk.shown("ada") == again.shown("ada")
    again.close()


def test_no_memory_for_a_hash_is_an_answer_too() -> None:
    """Nobody comes in, nothing is changed, and the log says why without a secret."""
    desk = Desk(hasher=OutOfMemory())
    with structlog.testing.capture_logs() as lines:
        assert desk.check("ada", "countess") is None
        assert Result.NOT_SAVED == desk.create("ada", "countess")
    desk.close()

    assert 2 == len(lines)
    assert {"Memory allocation error"} == {line["reason"] for line in lines}
    assert "countess" not in str(lines)


def test_no_secret_is_shown_or_logged(
    desk: Desk, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither passwords nor hashes, however things go."""
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        desk.create("ada", "countess")
        desk.check("ada", "kountess")
        desk.disk.fail("rename", errno.EIO)
        assert Result.NOT_SAVED == desk.change("ada", "princess")
    said = f"{lines} {caplog.text} {capsys.readouterr()} {vars(desk.users)['_table']}"

    assert "users could not be saved" in said
    assert "countess" not in said
    assert "kountess" not in said
    assert "princess" not in said
    assert "argon2" not in said
    assert "User('ada')" == repr(User("ada", HASH, 0, {}))


def test_after_the_end_nothing_is_begun_and_nobody_is_told(gated: Desk) -> None:
    """What ran is finished, what waited is forgotten."""
    answers: list[Principal | None] = []
    for _ in range(WORKERS + 1):
        assert gated.users.check("ada", "x", answers.append)
    gated.users.stop()
    assert not gated.users.check("ada", "x", answers.append)
    assert Result.BUSY == gated.create("ada")
    gated.close()
    while not gated.calls.empty():
        gated.turn()

    assert [] == answers
    assert [] == gated.disk.paths()


def test_a_change_that_waits_at_the_end_is_not_made(desk: Desk) -> None:
    """Nobody was told that it was made."""
    desk.create("ada")
    answers: list[Result] = []
    desk.users.grant("ada", "*", {PUBLISH}, answers.append)
    before = desk.disk.operations
    desk.users.stop()
    while not desk.calls.empty():
        desk.turn()

    assert before == desk.disk.operations
    assert [] == answers


@pytest.mark.asyncio
async def test_answers_come_on_the_event_loop() -> None:
    """With the loop's own way of posting, from its own thread, in its own time."""
    loop = asyncio.get_running_loop()
    users = Users(
        FakeDisk(),
        reserved=(),
        now_us=lambda: 0,
        post=loop.call_soon_threadsafe,
        hasher=Counting(),
    )
    created: asyncio.Future[Result] = loop.create_future()
    users.create("ada", "x", created.set_result)
    assert Result.DONE == await asyncio.wait_for(created, WAIT_S)
    checked: asyncio.Future[Principal | None] = loop.create_future()
    assert users.check("ada", "x", checked.set_result)

    assert users.find("ada") is await asyncio.wait_for(checked, WAIT_S)
    users.stop()
    await asyncio.to_thread(users.close)
