"""Users: passwords, principals and changes, with real but cheap hashes."""

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
from braidmq.server.access.checks import ADDRESS_WAITING_MAX
from braidmq.server.access.passwords import HASH_MEMORY_KIB
from braidmq.server.access.users import (
    GRANTS_MAX,
    WAITING_MAX,
    Account,
    Result,
    Users,
)
from braidmq.server.access.users_file import USERS_FILE, User, is_user_name
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


def test_a_user_signs_in_with_its_own_password_only(desk: Desk) -> None:
    """It finds the user's principal; a wrong password, or another user's, finds none."""
    assert Result.DONE == desk.create("ada", "countess")
    assert Result.DONE == desk.create("Ada", "other")

    assert desk.found("ada") is desk.check("ada", "countess")
    assert "ada" == desk.found("ada").name
    assert desk.check("ada", "Countess") is None
    assert desk.check("Ada", "countess") is None
    assert desk.check("unknown", "countess") is None
    assert desk.check("ada", "") is None


def test_a_new_user_may_do_nothing(desk: Desk) -> None:
    """It starts without permissions, and is not an administrator."""
    desk.create("ada")

    assert not any(authorize(desk.found("ada"), word, "a") for word in (*GRANTABLE, "admin"))


def test_an_unknown_user_costs_what_a_wrong_password_costs(desk: Desk) -> None:
    """Each costs one verification of the same kind of hash, so that timing reveals no names."""
    desk.create("ada")
    desk.check("ada", "wrong")
    desk.check("unknown", "wrong")
    desk.check("billing", "wrong")

    known, unknown, key = (str(encoded) for encoded in desk.hasher.verified)
    assert extract_parameters(known) == extract_parameters(unknown)
    assert unknown == key
    assert known != unknown


def test_the_default_hash_has_the_recommended_parameters() -> None:
    """The default hasher is argon2id with 19 MiB and two passes, and it works."""
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


def test_a_user_name_is_unique(desk: Desk) -> None:
    """A second user with the name is refused before its password is hashed."""
    desk.create("ada")
    hashed = desk.hasher.hashed

    assert Result.EXISTS == desk.create("ada")
    assert hashed == desk.hasher.hashed


def test_two_concurrent_creations_of_a_name_do_not_both_succeed(desk: Desk) -> None:
    """A name that was free when hashing began is checked again when hashing is done."""
    answers: list[Result] = []
    desk.users.create("ada", "first", answers.append)
    desk.users.create("ada", "second", answers.append)
    desk.until(answers, 2)

    assert {Result.DONE, Result.EXISTS} == set(answers)
    assert [Account("ada", NOW_S)] == desk.users.accounts()


def test_the_names_of_api_keys_are_taken(desk: Desk) -> None:
    """No user can have the name of a key, and no change to users affects the key."""
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
def test_user_names_by_example(name: str, *, expected: bool) -> None:
    """One to 64 ASCII letters, digits, dashes, underscores and dots."""
    assert expected == is_user_name(name)


@pytest.mark.parametrize("password", ["\0", "\ud800", "пароль", " ", "x" * 1024])
def test_any_character_may_be_in_a_password(desk: Desk, password: str) -> None:
    """Even half of a surrogate pair, which UTF-8 cannot encode."""
    assert Result.DONE == desk.create("ada", password)

    assert desk.check("ada", password) is not None
    assert desk.check("ada", password + "x") is None


def test_a_changed_password_replaces_the_old_one(desk: Desk) -> None:
    """The principal stays, so open sessions stay signed in."""
    desk.create("ada", "old")
    before = desk.found("ada")
    assert Result.DONE == desk.change("ada", "new")

    assert desk.check("ada", "old") is None
    assert before is desk.check("ada", "new")
    assert Result.NOT_FOUND == desk.change("unknown", "new")


def test_a_deleted_user_is_gone_at_once(desk: Desk) -> None:
    """Open sessions lose every permission at the deletion, not when they disconnect."""
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


def test_a_user_with_a_reused_name_is_another_user(desk: Desk) -> None:
    """Sessions of the deleted user regain nothing when its name is used again."""
    desk.create("ada")
    desk.grant("ada", "*", PUBLISH)
    old = desk.found("ada")
    desk.delete("ada")
    desk.create("ada")
    desk.grant("ada", "*", PUBLISH)

    assert old is not desk.found("ada")
    assert not authorize(old, PUBLISH, "a")
    assert authorize(desk.found("ada"), PUBLISH, "a")


def test_a_password_change_for_a_deleted_user_does_not_reach_its_successor(
    desk: Desk,
) -> None:
    """A change that was waiting while the name changed hands has no effect."""
    desk.create("ada", "old")
    answers: list[Result] = []
    desk.users.delete("ada", answers.append)
    desk.users.change_password("ada", "stolen", answers.append)  # hashed while ada is deleted
    desk.until(answers, 2)
    desk.create("ada", "successor")

    assert [Result.DONE, Result.NOT_FOUND] == answers
    assert desk.check("ada", "stolen") is None
    assert desk.check("ada", "successor") is not None


def test_a_check_overtaken_by_a_password_change_fails(desk: Desk) -> None:
    """A password that was right only when the check began is wrong."""
    desk.create("ada", "old")
    answers: list[Principal | None] = []
    desk.start_check("ada", "old", answers)
    checked = desk.calls.get(timeout=WAIT_S)
    desk.change("ada", "new")
    checked()

    assert [None] == answers


def test_a_check_overtaken_by_a_deletion_fails(desk: Desk) -> None:
    """A user that no longer exists cannot sign in."""
    desk.create("ada", "old")
    answers: list[Principal | None] = []
    desk.start_check("ada", "old", answers)
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
    assert Result.NOT_FOUND == desk.grant("unknown", "a.*", PUBLISH)


def test_a_grant_is_revoked_by_its_exact_pattern(desk: Desk) -> None:
    """Revoking matches no patterns: `*` does not revoke everything."""
    desk.create("ada")
    session = desk.found("ada")
    desk.grant("ada", "a.*", PUBLISH)
    assert Result.DONE == desk.revoke("ada", "*")
    assert authorize(session, PUBLISH, "a.x")
    assert Result.DONE == desk.revoke("ada", "a.*")

    assert not authorize(session, PUBLISH, "a.x")
    assert [] == desk.users.permissions("ada")


def test_revoking_an_absent_grant_succeeds_without_writing(desk: Desk) -> None:
    """There is nothing to change on disk."""
    desk.create("ada")
    operations = desk.disk.operations

    assert Result.DONE == desk.revoke("ada", "a")
    assert Result.DONE == desk.revoke("unknown", "a")
    assert operations == desk.disk.operations


def test_the_number_of_grants_of_a_user_is_limited() -> None:
    """At the limit, grants can still be changed and revoked."""
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


def test_the_number_of_users_is_limited(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is checked before anything is hashed."""
    monkeypatch.setattr(module, "USERS_MAX", 2)
    results = [desk.create(name) for name in ("a", "b", "c")]

    assert [Result.DONE, Result.DONE, Result.FULL] == results


def test_checks_above_the_limits_are_refused(gated: Desk) -> None:
    """Those within them get their answers, and changes are made meanwhile."""
    answers: list[Principal | None] = []
    for _ in range(1 + ADDRESS_WAITING_MAX + 5):
        gated.start_check("ada", "x", answers)
    assert Result.DONE == gated.create("ada", "x")

    assert (5 * ["ada"], []) == (gated.limited, answers)
    gated.hasher.gate.set()
    gated.until(answers, 1 + ADDRESS_WAITING_MAX)
    assert (1 + ADDRESS_WAITING_MAX) * [None] == answers
    assert gated.check("ada", "x") is not None


def test_every_job_frees_its_slot() -> None:
    """More changes and checks than may wait at once are all answered, one after the other."""
    desk = Desk()
    desk.disk.fail("rename", errno.EIO, nth=3)
    for number in range(WAITING_MAX + 1):
        assert desk.create(f"u{number}") in {Result.DONE, Result.NOT_SAVED}
        assert Result.NOT_FOUND == desk.delete("unknown")
        answers: list[Principal | None] = []
        desk.start_check("unknown", "x", answers, address=f"10.0.0.{number}")
        desk.until(answers)
        assert [None] == answers
    desk.close()


def test_concurrent_changes_are_all_made(desk: Desk) -> None:
    """Each builds on the result of the one before it."""
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


def test_running_out_of_memory_for_a_hash_is_answered() -> None:
    """The sign-in fails, nothing changes, and the log says why without showing a secret."""
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
    """Neither passwords nor hashes, whether a change succeeds or fails."""
    with structlog.testing.capture_logs() as lines, caplog.at_level(logging.DEBUG):
        desk.create("ada", "countess")
        desk.check("ada", "kountess")
        desk.disk.fail("rename", errno.EIO)
        assert Result.NOT_SAVED == desk.change("ada", "princess")
    output = f"{lines} {caplog.text} {capsys.readouterr()} {vars(desk.users)['_table']}"

    assert "users could not be saved" in output
    assert "countess" not in output
    assert "kountess" not in output
    assert "princess" not in output
    assert "argon2" not in output
    assert "User('ada')" == repr(User("ada", HASH, 0, {}))


def test_after_stop_no_check_starts_and_no_answer_arrives(gated: Desk) -> None:
    """Running checks are finished, waiting ones are dropped."""
    answers: list[Principal | None] = []
    for _ in range(3):
        gated.start_check("ada", "x", answers)
    gated.users.stop()
    gated.start_check("ada", "x", answers)
    assert Result.BUSY == gated.create("ada")
    gated.close()
    while not gated.calls.empty():
        gated.turn()

    assert [] == answers
    assert [] == gated.disk.paths()


def test_a_change_that_is_waiting_at_stop_is_not_made(desk: Desk) -> None:
    """Its caller was not told that it was made."""
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
async def test_answers_arrive_on_the_event_loop() -> None:
    """The workers post them with `call_soon_threadsafe`."""
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
    users.check("ada", "x", checked.set_result, address="", limited=lambda: None)

    assert users.find("ada") is await asyncio.wait_for(checked, WAIT_S)
    users.stop()
    await asyncio.to_thread(users.close)
