"""User administration: commands 50 to 56 of the Vibe strand, each with a JSON payload.

    command               payload                                answer
    CreateUser            username, password                     username
    DeleteUser            username                               username
    ChangePassword        username, newPassword                  username
    GrantPermission       username, queuePattern, operations     the same, as they now hold
    RevokePermission      username, queuePattern                 the same
    ListUsers             (none)                                 a list, by name
    GetUserPermissions    username                               a list, by pattern

They are for administrators, that is for API keys with `admin`; ChangePassword and
GetUserPermissions are also for the user itself. No command makes an administrator. This module
decides who may do what and decodes the payload; users.py makes the change.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Final, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from braidmq.base import refusals
from braidmq.base.errors import BraidError
from braidmq.broker.authorize import (
    ADMIN,
    CREATE_QUEUE,
    DELETE_QUEUE,
    LIST_QUEUES,
    PATTERN_CHARS_MAX,
    PUBLISH,
    PURGE_QUEUE,
    QUEUE_INFO,
    SUBSCRIBE,
    Principal,
    authorize,
)
from braidmq.server.access.passwords import PASSWORD_CHARS_MAX
from braidmq.server.access.users import (
    GRANTS_MAX,
    USERS_MAX,
    WAITING_MAX,
    Result,
    Users,
)
from braidmq.server.access.users_file import NAME_CHARS_MAX, is_user_name
from braidmq.wire.vibe import messages, session

FOR_ONESELF: Final = frozenset({messages.CHANGE_PASSWORD, messages.GET_USER_PERMISSIONS})
"""Commands that a user may call for itself, and administrators for every user."""

OPERATIONS: Final = {
    "Publish": PUBLISH,
    "Subscribe": SUBSCRIBE,
    "CreateQueue": CREATE_QUEUE,
    "DeleteQueue": DELETE_QUEUE,
    "PurgeQueue": PURGE_QUEUE,
    "GetQueueInfo": QUEUE_INFO,
    "ListQueues": LIST_QUEUES,
}
"""The operations that can be granted, by the protocol's names."""

_BY_LOWER_CASE: Final = {name.lower(): word for name, word in OPERATIONS.items()}

_REFUSALS: Final = {
    Result.EXISTS: (session.USER_EXISTS, "a user or an API key has this name"),
    Result.NOT_FOUND: (session.USER_NOT_FOUND, "no such user"),
    Result.FORBIDDEN: (session.FORBIDDEN, "API keys are managed in the configuration"),
    Result.FULL: (
        session.SERVER_ERROR,
        (
            f"at most {USERS_MAX} users, each with at most {GRANTS_MAX} patterns; "
            f"{refusals.FOR_GOOD}"
        ),
    ),
    Result.BUSY: (
        session.RATE_LIMITED,
        refusals.by_bound("try again: too many requests wait", WAITING_MAX, "at a time"),
    ),
    Result.NOT_SAVED: (session.SERVER_ERROR, "the change could not be saved"),
}


class Outcome(NamedTuple):
    """How a command ended: the reply's payload, or an error's code and text."""

    payload: bytes = b""
    code: str = ""
    text: str = ""


Done = Callable[[Outcome], None]


class _RefusedError(BraidError):
    """The command is answered with an error."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.outcome = Outcome(code=code, text=text)


class _Request(NamedTuple):
    users: Users
    principal: Principal
    payload: bytes
    done: Done


_Username = Annotated[str, Meta(min_length=1)]
_Password = Annotated[str, Meta(min_length=1, max_length=PASSWORD_CHARS_MAX)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=PATTERN_CHARS_MAX)]


class _Named(msgspec.Struct, rename="camel"):
    username: _Username


class _Created(_Named, rename="camel"):
    password: _Password


class _Changed(_Named, rename="camel"):
    new_password: _Password


class _Revoked(_Named, rename="camel"):
    queue_pattern: _Pattern


class _Granted(_Revoked, rename="camel"):
    operations: list[str]


_N = TypeVar("_N", bound=_Named)


def administer(
    users: Users, principal: Principal, kind: int, payload: bytes, done: Done
) -> None:
    """Execute the command *kind* for *principal*, and pass the outcome to *done*.

    *done* is called on the event loop, once, and never before this call has returned; not at
    all if the users are closed first.
    """
    assert kind in _COMMANDS, kind
    try:
        _COMMANDS[kind](_Request(users, principal, payload, done))
    except _RefusedError as refusal:
        outcome = refusal.outcome
        users.later(lambda: done(outcome))


def _create_user(request: _Request) -> None:
    _require_admin(request)
    asked = _read(request, _Created)
    if not is_user_name(asked.username):
        raise _RefusedError(
            session.INVALID_PAYLOAD,
            f"a username has 1 to {NAME_CHARS_MAX} letters, digits, '-', '_' or '.'",
        )
    reply = _replier(request, {"username": asked.username})
    request.users.create(asked.username, asked.password, reply)


def _delete_user(request: _Request) -> None:
    _require_admin(request)
    asked = _read(request, _Named)
    request.users.delete(asked.username, _replier(request, {"username": asked.username}))


def _change_password(request: _Request) -> None:
    asked = _read(request, _Changed)
    _require_admin_or_self(request, asked.username)
    reply = _replier(request, {"username": asked.username})
    request.users.change_password(asked.username, asked.new_password, reply)


def _grant_permission(request: _Request) -> None:
    _require_admin(request)
    asked = _read(request, _Granted)
    # Operations that only a later version knows are ignored, as the original does.
    words = {_BY_LOWER_CASE.get(name.lower(), "") for name in asked.operations} - {""}
    if not words:
        raise _RefusedError(session.INVALID_PAYLOAD, "none of the operations is known")
    answer = {
        "username": asked.username,
        "queuePattern": asked.queue_pattern,
        "operations": _names(words),
    }
    reply = _replier(request, answer)
    request.users.grant(asked.username, asked.queue_pattern, words, reply)


def _revoke_permission(request: _Request) -> None:
    _require_admin(request)
    asked = _read(request, _Revoked)
    answer = {"username": asked.username, "queuePattern": asked.queue_pattern}
    request.users.revoke(asked.username, asked.queue_pattern, _replier(request, answer))


def _list_users(request: _Request) -> None:
    _require_admin(request)
    # Only API keys are superusers, and this list holds none of them.
    _answer(
        request,
        [
            {"username": name, "isSuperuser": False, "createdAt": created_s}
            for name, created_s in request.users.accounts()
        ],
    )


def _get_user_permissions(request: _Request) -> None:
    asked = _read(request, _Named)
    _require_admin_or_self(request, asked.username)
    _answer(
        request,
        [
            {"queuePattern": grant.pattern, "operations": _names(grant.operations)}
            for grant in request.users.permissions(asked.username)
        ],
    )


_COMMANDS: Final[Mapping[int, Callable[[_Request], None]]] = {
    messages.CREATE_USER: _create_user,
    messages.DELETE_USER: _delete_user,
    messages.CHANGE_PASSWORD: _change_password,
    messages.GRANT_PERMISSION: _grant_permission,
    messages.REVOKE_PERMISSION: _revoke_permission,
    messages.LIST_USERS: _list_users,
    messages.GET_USER_PERMISSIONS: _get_user_permissions,
}


def _require_admin(request: _Request) -> None:
    if not authorize(request.principal, ADMIN, ""):
        raise _RefusedError(session.NOT_AUTHORIZED, "not allowed")


def _require_admin_or_self(request: _Request, username: str) -> None:
    # Compare the principal itself and not its name: neither `Bob` nor a deleted `bob` is bob,
    # and an API key is not a user.
    if request.users.find(username) is not request.principal:
        _require_admin(request)


def _read(request: _Request, kind: type[_N]) -> _N:
    try:
        return msgspec.json.decode(request.payload, type=kind)
    except msgspec.ValidationError as error:
        # msgspec names the key and what was expected, never the value.
        raise _RefusedError(session.INVALID_PAYLOAD, str(error)) from None
    except (ValueError, RecursionError):
        raise _RefusedError(session.INVALID_PAYLOAD, "the payload is not JSON") from None


def _replier(request: _Request, answer: object) -> Callable[[Result], None]:
    def reply(result: Result) -> None:
        if result is Result.DONE:
            request.done(Outcome(msgspec.json.encode(answer)))
        else:
            code, text = _REFUSALS[result]
            request.done(Outcome(code=code, text=text))

    return reply


def _answer(request: _Request, answer: object) -> None:
    outcome = Outcome(msgspec.json.encode(answer))
    request.users.later(lambda: request.done(outcome))


def _names(words: set[str] | frozenset[str]) -> list[str]:
    return [name for name, word in OPERATIONS.items() if word in words]
