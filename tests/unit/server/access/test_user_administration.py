"""User administration: every command, every error code, and who may use which command."""

import errno
import json
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.broker.authorize import GRANTABLE, PUBLISH, SUBSCRIBE, Principal, authorize
from braidmq.server.access.passwords import PASSWORD_CHARS_MAX
from braidmq.server.access.user_administration import OPERATIONS, Outcome, administer
from braidmq.server.access.users import (
    GRANTS_MAX,
    WAITING_MAX,
    Account,
    Result,
)
from braidmq.server.access.users_file import USERS_FILE
from braidmq.testing.disk import FakeDisk
from braidmq.wire.vibe.messages import (
    CHANGE_PASSWORD,
    CREATE_USER,
    DELETE_USER,
    GET_USER_PERMISSIONS,
    GRANT_PERMISSION,
    LIST_USERS,
    PUBLISH_ACK,
    REVOKE_PERMISSION,
)
from tests.unit.server.access.users_by_hand import NOW_S, Desk, user_record, users_file

KINDS: Final = range(CREATE_USER, GET_USER_PERMISSIONS + 1)

# A valid payload for each command, with the keys that it requires.
GOOD: Final[dict[int, dict[str, object]]] = {
    CREATE_USER: {"username": "new", "password": "secret"},
    DELETE_USER: {"username": "ada"},
    CHANGE_PASSWORD: {"username": "ada", "newPassword": "secret"},
    GRANT_PERMISSION: {"username": "ada", "queuePattern": "a.*", "operations": ["Publish"]},
    REVOKE_PERMISSION: {"username": "ada", "queuePattern": "a.*"},
    LIST_USERS: {},
    GET_USER_PERMISSIONS: {"username": "ada"},
}
NEEDED: Final = [(kind, key) for kind, keys in GOOD.items() for key in keys]
SELF_SERVICE: Final = (CHANGE_PASSWORD, GET_USER_PERMISSIONS)


class Office(Desk):
    """Users, with an administrator (`boss`) and an API key without `admin` (`clerk`)."""

    def __init__(self, disk: FakeDisk | None = None) -> None:
        super().__init__(disk)
        self.boss = Principal("billing", publish=[], subscribe=[], admin=True)
        self.clerk = Principal("dev", publish=["*"], subscribe=["*"])

    def send(self, principal: Principal, kind: int, payload: bytes) -> Outcome:
        answers: list[Outcome] = []
        administer(self.users, principal, kind, payload, answers.append)
        assert [] == answers  # never before the call has returned
        self.until(answers)
        return answers[0]

    def order(self, kind: int, principal: Principal | None = None, /, **keys: object) -> object:
        """Return the content of the reply, or the error code."""
        who = self.boss if principal is None else principal
        outcome = self.send(who, kind, json.dumps(keys).encode())
        assert (outcome.code == "") == (outcome.text == "") == (outcome.payload != b"")
        return outcome.code or json.loads(outcome.payload)


@pytest.fixture
def office() -> Iterator[Office]:
    office = Office()
    office.create("ada", "countess")
    yield office
    office.close()


def test_a_user_is_created(office: Office) -> None:
    """The user can sign in with that password, and has no permissions."""
    reply = office.order(CREATE_USER, username="new", password="secret")

    assert {"username": "new"} == reply
    assert office.check("new", "secret") is not None
    assert {} == office.shown("new")


def test_a_user_is_deleted_and_its_sessions_with_it(office: Office) -> None:
    """Open sessions lose every permission before the administrator gets the reply."""
    office.grant("ada", "*", *GRANTABLE)
    session = office.found("ada")
    reply = office.order(DELETE_USER, username="ada")

    assert {"username": "ada"} == reply
    assert not any(authorize(session, word, "a") for word in GRANTABLE)
    for kind in KINDS:
        assert "NOT_AUTHORIZED" == office.order(kind, session, **GOOD[kind])


def test_a_password_is_changed(office: Office) -> None:
    """By an administrator, who need not know the old one."""
    assert {"username": "ada"} == office.order(
        CHANGE_PASSWORD, username="ada", newPassword="new"
    )
    assert office.check("ada", "new") is not None


def test_permissions_are_granted_and_shown(office: Office) -> None:
    """The reply lists the resulting permissions in the protocol's own spelling and order."""
    session = office.found("ada")
    granted = office.order(
        GRANT_PERMISSION,
        username="ada",
        queuePattern="orders.*",
        operations=["SUBSCRIBE", "publish", "Publish", "Fly", ""],
    )
    everything = office.order(
        GRANT_PERMISSION, username="ada", queuePattern="a", operations=[*OPERATIONS]
    )

    both = ["Publish", "Subscribe"]
    assert {"username": "ada", "queuePattern": "orders.*", "operations": both} == granted
    assert isinstance(everything, dict)
    assert [*OPERATIONS] == everything["operations"]
    assert [
        {"queuePattern": "a", "operations": [*OPERATIONS]},
        {"queuePattern": "orders.*", "operations": both},
    ] == office.order(GET_USER_PERMISSIONS, username="ada")
    assert authorize(session, PUBLISH, "orders.eu")
    assert {"orders.*": {PUBLISH, SUBSCRIBE}, "a": set(GRANTABLE)} == office.shown("ada")


def test_permissions_are_revoked(office: Office) -> None:
    """Open sessions lose them too; revoking what was never granted is no error."""
    office.grant("ada", "a.*", PUBLISH)
    session = office.found("ada")
    reply = {"username": "ada", "queuePattern": "a.*"}

    assert reply == office.order(REVOKE_PERMISSION, username="ada", queuePattern="a.*")
    assert not authorize(session, PUBLISH, "a.x")
    assert reply == office.order(REVOKE_PERMISSION, username="ada", queuePattern="a.*")
    assert {"username": "x", "queuePattern": "y"} == office.order(
        REVOKE_PERMISSION, username="x", queuePattern="y"
    )


def test_users_are_listed_by_name(office: Office) -> None:
    """With their creation times in seconds; the payload is neither needed nor read."""
    office.create("Zoe")
    row = {"isSuperuser": False, "createdAt": NOW_S}
    expected = [{"username": "Zoe", **row}, {"username": "ada", **row}]

    for payload in (b"", b"{}", b"null", b"{"):
        assert expected == json.loads(office.send(office.boss, LIST_USERS, payload).payload)


def test_an_unknown_user_has_no_permissions(office: Office) -> None:
    """As in the original: an empty list, not an error."""
    assert [] == office.order(GET_USER_PERMISSIONS, username="unknown")


@pytest.mark.parametrize("kind", KINDS)
def test_administration_is_for_administrators(office: Office, kind: int) -> None:
    """A key without `admin` is refused, and so is another user, whatever it may publish."""
    office.create("bob")
    office.grant("bob", "*", *GRANTABLE)

    assert "NOT_AUTHORIZED" == office.order(kind, office.clerk, **GOOD[kind])
    assert "NOT_AUTHORIZED" == office.order(kind, office.found("bob"), **GOOD[kind])
    assert ["ada", "bob"] == [account.name for account in office.users.accounts()]
    assert {} == office.shown("ada")
    assert office.check("ada", "countess") is not None


@pytest.mark.parametrize("kind", KINDS)
def test_a_user_may_run_two_commands_on_itself(office: Office, kind: int) -> None:
    """A user changes its own password and sees its own permissions, and nothing else."""
    refused = office.order(kind, office.found("ada"), **GOOD[kind]) == "NOT_AUTHORIZED"

    assert (kind not in SELF_SERVICE) == refused


def test_a_user_changes_its_own_password(office: Office) -> None:
    """Without an administrator; its sessions keep their principal."""
    session = office.found("ada")

    assert {"username": "ada"} == office.order(
        CHANGE_PASSWORD, session, username="ada", newPassword="new"
    )
    assert office.check("ada", "new") is session


@pytest.mark.parametrize("kind", SELF_SERVICE)
def test_a_name_that_differs_in_case_is_another_user(office: Office, kind: int) -> None:
    """`Ada` may neither reset the password of `ada` nor see her permissions."""
    office.create("Ada")

    assert "NOT_AUTHORIZED" == office.order(kind, office.found("Ada"), **GOOD[kind])


@pytest.mark.parametrize("kind", SELF_SERVICE)
def test_a_key_with_a_users_name_is_not_the_user(office: Office, kind: int) -> None:
    """Names cannot collide; if they did, the name alone would grant nothing."""
    impostor = Principal("ada", publish=["*"], subscribe=["*"])

    assert "NOT_AUTHORIZED" == office.order(kind, impostor, **GOOD[kind])


@pytest.mark.parametrize("kind", SELF_SERVICE)
def test_a_deleted_user_is_not_its_successor(office: Office, kind: int) -> None:
    """A session that outlives its user has no rights, even when the name is in use again."""
    session = office.found("ada")
    office.delete("ada")
    office.create("ada")

    assert "NOT_AUTHORIZED" == office.order(kind, session, **GOOD[kind])


def test_a_name_that_is_taken_is_refused(office: Office) -> None:
    """Taken by a user or by an API key."""
    taken = [
        office.order(CREATE_USER, username=name, password="x")
        for name in ("ada", "billing", "dev")
    ]

    assert 3 * ["USER_EXISTS"] == taken


def test_an_unknown_user_is_not_found(office: Office) -> None:
    """The commands that change a user say so; names are case-sensitive."""
    kinds = (DELETE_USER, CHANGE_PASSWORD, GRANT_PERMISSION)
    answers = [office.order(kind, **{**GOOD[kind], "username": "ADA"}) for kind in kinds]

    assert 3 * ["USER_NOT_FOUND"] == answers


def test_a_superuser_cannot_be_deleted(office: Office) -> None:
    """Superusers are API keys, which only the configuration can remove."""
    assert "FORBIDDEN" == office.order(DELETE_USER, username="billing")


@pytest.mark.parametrize(("kind", "key"), NEEDED)
def test_a_payload_without_a_key_is_invalid(office: Office, kind: int, key: str) -> None:
    """The error names the missing key."""
    keys = {name: value for name, value in GOOD[kind].items() if name != key}
    outcome = office.send(office.boss, kind, json.dumps(keys).encode())

    assert "INVALID_PAYLOAD" == outcome.code
    assert key in outcome.text


@pytest.mark.parametrize(("kind", "key"), NEEDED)
@pytest.mark.parametrize("value", [None, 1, True, "", [], {}, [1]])
def test_a_key_with_a_wrong_value_is_invalid(
    office: Office, kind: int, key: str, value: object
) -> None:
    """Wrong types, and empty values."""
    assert "INVALID_PAYLOAD" == office.order(kind, **{**GOOD[kind], key: value})


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (CREATE_USER, "username", "a" * 65),
        (CREATE_USER, "username", "a b"),
        (CREATE_USER, "username", "ada\n"),
        (CREATE_USER, "password", "x" * (PASSWORD_CHARS_MAX + 1)),
        (CHANGE_PASSWORD, "newPassword", "x" * (PASSWORD_CHARS_MAX + 1)),
        (GRANT_PERMISSION, "queuePattern", "a" * 257),
        (GRANT_PERMISSION, "operations", ["Fly"]),
        (GRANT_PERMISSION, "operations", ["Admin"]),
        (REVOKE_PERMISSION, "queuePattern", "a" * 257),
    ],
)
def test_values_out_of_bounds_are_invalid(
    office: Office, kind: int, key: str, value: object
) -> None:
    """Above all a pattern: it is refused when it is granted, not when it is used."""
    assert "INVALID_PAYLOAD" == office.order(kind, **{**GOOD[kind], key: value})
    assert [Account("ada", NOW_S)] == office.users.accounts()
    assert {} == office.shown("ada")


@pytest.mark.parametrize(
    ("kind", "key", "value"),
    [
        (CREATE_USER, "username", "a" * 64),
        (CREATE_USER, "password", "x" * PASSWORD_CHARS_MAX),
        (CHANGE_PASSWORD, "newPassword", "é" * PASSWORD_CHARS_MAX),
        (GRANT_PERMISSION, "queuePattern", "a" * 256),
        (CREATE_USER, "extra", "ignored"),
    ],
)
def test_values_at_their_bounds_are_accepted(
    office: Office, kind: int, key: str, value: object
) -> None:
    """The longest of each; unknown keys are ignored."""
    assert isinstance(office.order(kind, **{**GOOD[kind], key: value}), dict)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != LIST_USERS])
@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"null", b"[]", b'"ada"', b"\xff", b'{"username": "\\ud800"}', b"[" * 9_999],
)
def test_a_payload_that_is_not_an_object_is_invalid(
    office: Office, kind: int, payload: bytes
) -> None:
    """However it is broken, and however deeply it is nested."""
    assert "INVALID_PAYLOAD" == office.send(office.boss, kind, payload).code


def test_permission_is_checked_before_the_payload(office: Office) -> None:
    """As in the original, except where the payload says which user is concerned."""
    codes = {kind: office.send(office.clerk, kind, b"{").code for kind in KINDS}

    for kind in KINDS:
        expected = "INVALID_PAYLOAD" if kind in SELF_SERVICE else "NOT_AUTHORIZED"
        assert expected == codes[kind]


def test_no_secret_is_in_an_error(office: Office) -> None:
    """Not even a rejected password, or one from a payload that breaks off after it."""
    secret = "countess" * 200
    sent = [
        (CREATE_USER, json.dumps({"username": "x", "password": secret})),
        (CREATE_USER, json.dumps({"username": "ada", "password": "countess"})),
        (CHANGE_PASSWORD, json.dumps({"username": "ada", "newPassword": [secret]})),
        (CREATE_USER, '{"username": 1, "password": "countess"}'),
        (CREATE_USER, '{"username": "x", "password": "countess\\ud800"}'),
        (CREATE_USER, '{"username": "x", "password": "countess"'),
    ]
    for kind, payload in sent:
        outcome = office.send(office.boss, kind, payload.encode())

        assert outcome.code
        assert b"" == outcome.payload
        assert "countess" not in outcome.text


def test_a_change_that_is_not_saved_is_a_server_error(office: Office) -> None:
    """The change is neither made nor reported as made."""
    office.disk.fail("rename", errno.EIO)

    assert "SERVER_ERROR" == office.order(DELETE_USER, username="ada")
    assert {"username": "ada"} == office.order(DELETE_USER, username="ada")


def test_too_many_changes_are_refused_and_may_be_retried(office: Office) -> None:
    """They wait for the disk, not on the event loop."""
    answers: list[Result] = []
    for _ in range(WAITING_MAX):
        office.users.delete("unknown", answers.append)

    assert "RATE_LIMITED" == office.order(DELETE_USER, username="ada")
    office.until(answers, WAITING_MAX)
    assert {"username": "ada"} == office.order(DELETE_USER, username="ada")


def test_a_flood_of_sign_ins_does_not_hold_up_administration(office: Office) -> None:
    """Its thread takes administrators' work first."""
    office.hasher.gate.clear()
    answers: list[Principal | None] = []
    for number in range(200):
        office.start_check(f"unknown{number}", "x", answers)

    assert {"username": "ada"} == office.order(DELETE_USER, username="ada")
    assert [] == answers


def test_a_grant_beyond_the_limit_is_refused() -> None:
    """The error text names the limit."""
    disk = FakeDisk()
    grants = {f"q{number}": [PUBLISH] for number in range(GRANTS_MAX)}
    disk.put(USERS_FILE, users_file(user_record("ada", grants)))
    office = Office(disk)
    payload = json.dumps(GOOD[GRANT_PERMISSION]).encode()
    outcome = office.send(office.boss, GRANT_PERMISSION, payload)
    office.close()

    assert "SERVER_ERROR" == outcome.code
    assert str(GRANTS_MAX) in outcome.text


def test_any_other_command_is_a_bug(office: Office) -> None:
    """The session passes on user commands only."""
    with pytest.raises(AssertionError):
        administer(office.users, office.boss, PUBLISH_ACK, b"", lambda _: None)


@given(st.sampled_from(KINDS), st.binary(max_size=32))
def test_noise_is_answered(kind: int, noise: bytes) -> None:
    """Whatever arrives gets exactly one answer, and leaves the users untouched."""
    office = Office()
    try:
        outcome = office.send(office.boss, kind, noise)

        assert ("" if kind == LIST_USERS else "INVALID_PAYLOAD") == outcome.code
        assert office.calls.empty()
        assert [] == office.users.accounts()
    finally:
        office.close()
