"""Users: names, password hashes and grants, kept in one file of the data directory.

`users.json`, for its owner only:

    {"version": 1,
     "users": [{"name": "ada",
                "hash": "$argon2id$...",
                "created": 1700000000,                        unix seconds
                "grants": {"orders.*": ["publish"]}}]}        pattern: operations

Changes are made one after the other, each in this order:

1. The whole new file is written beside the old one and synced.
2. It replaces the old one, and the directory is synced. A crash before leaves the old
   file, and the change was not acknowledged; a crash after leaves the new one.
3. The change holds: the user's one `Principal`, which all its sessions share, is changed in
   place, and the caller is answered.

Hashing, checking and writing happen on two threads, never on the event loop. Every `done` is
called on the event loop, once, and never before the method that took it has returned.

Who may change users is decided in user_administration.py; API keys are in keys.py.
"""

import base64
import enum
import re
import secrets
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, NamedTuple, TypeVar

import msgspec
import structlog
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, VerifyMismatchError

from braidmq.base.errors import ConfigError
from braidmq.broker.authorize import GRANTABLE, Grant, Principal, is_pattern
from braidmq.wal.disk import Files, read_all, replace_file

USERS_FILE: Final = "users.json"
VERSION: Final = 1

NAME_CHARS_MAX: Final = 64
PASSWORD_CHARS_MAX: Final = 1024

USERS_MAX: Final = 5_000
"""So that the list of all users fits in one frame of 1 MiB."""

GRANTS_MAX: Final = 256
"""Patterns of one user: each message is matched against all, and all must fit in one frame."""

WORKERS: Final = 2
"""Threads for passwords and the file: the most that a flood of sign-ins can occupy."""

WAITING_MAX: Final = 64
"""Jobs that may wait; a further one would only wait until its client gives up."""

HASH_MEMORY_KIB: Final = 19 * 1024
HASH_PASSES: Final = 2
HASH_LANES: Final = 1
"""OWASP's minimum for argon2id: 19 MiB, two passes, one lane. A check takes some tens of
milliseconds of one core, and concurrent checks stay below 40 MiB together."""

_NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}")
_HASH = re.compile(
    r"\$argon2id\$v=19\$m=[1-9]\d{0,6},t=[1-9]\d{0,2},p=[1-9]\d?"
    r"\$[A-Za-z0-9+/]{11,128}\$[A-Za-z0-9+/]{16,128}",
    re.ASCII,
)
_JOBS_MAX: Final = WORKERS + WAITING_MAX

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class Result(enum.Enum):
    """How a change ended."""

    DONE = enum.auto()
    EXISTS = enum.auto()  # a user or an API key has the name
    NOT_FOUND = enum.auto()
    FORBIDDEN = enum.auto()  # the name is an API key's
    FULL = enum.auto()  # the limit of users, or of grants of this one, is reached
    BUSY = enum.auto()  # too many jobs wait; nothing was tried
    NOT_SAVED = enum.auto()  # the disk refused, or there was no memory to hash in


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One user as the file holds it."""

    name: str
    hash: str
    created: int
    grants: dict[str, list[str]]

    def __repr__(self) -> str:
        return f"User({self.name!r})"  # without the hash: it may be printed


class Account(NamedTuple):
    """One user as lists show it."""

    name: str
    created_s: int


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    users: list[User]


Done = Callable[[Result], None]
_Edit = Callable[[], User | Result | None]


class _Change(NamedTuple):
    """A change that waits for its turn; the edit returns the new user, None to delete it."""

    name: str
    edit: _Edit
    done: Done


def is_user_name(name: str) -> bool:
    """Return whether a user may have this name.

    Only ASCII letters are allowed: two users must not look alike on a screen.
    """
    return _NAME.fullmatch(name) is not None


def is_password(password: str) -> bool:
    """Return whether the password has an allowed length; its strength is not judged."""
    return 1 <= len(password) <= PASSWORD_CHARS_MAX


class Users:
    """All users; every method but `close` is for the event loop's thread.

    *reserved* are the names of the API keys, *post* is the loop's `call_soon_threadsafe`.

    Raises:
        ConfigError: The file is there and cannot be used; it is left as it is.
    """

    def __init__(
        self,
        files: Files,
        *,
        reserved: Collection[str],
        now_us: Callable[[], int],
        post: Callable[[Callable[[], None]], object],
        hasher: PasswordHasher | None = None,
    ) -> None:
        self._files = files
        self._reserved = frozenset(reserved)
        self._now_us = now_us
        self._post = post
        self._hasher = hasher or PasswordHasher(
            time_cost=HASH_PASSES, memory_cost=HASH_MEMORY_KIB, parallelism=HASH_LANES
        )
        self._table = _load(files, self._reserved)
        self._principals = {name: _principal(user) for name, user in self._table.items()}
        self._decoy_hash = _decoy_hash(self._hasher)
        self._pool = ThreadPoolExecutor(WORKERS, thread_name_prefix="braidmq-users")
        self._jobs = 0
        self._changes: deque[_Change] = deque()
        self._is_saving = False
        self._is_stopped = False

    def stop(self) -> None:
        """Start no more jobs and call no more *done*; waiting jobs are dropped."""
        self._is_stopped = True

    def close(self) -> None:
        """Wait until the running jobs have ended; after `stop`, on a thread that may block."""
        assert self._is_stopped
        self._pool.shutdown(wait=True, cancel_futures=True)

    def find(self, name: str) -> Principal | None:
        """Return the user's principal, the same object for as long as the user exists."""
        return self._principals.get(name)

    def accounts(self) -> list[Account]:
        """Return all users, by name."""
        return [Account(name, self._table[name].created) for name in sorted(self._table)]

    def permissions(self, name: str) -> list[Grant]:
        """Return the grants of a user, by pattern; none if there is no such user."""
        principal = self._principals.get(name)
        return [] if principal is None else list(principal.grants)

    def later(self, call: Callable[[], None]) -> None:
        """Make *call* on the event loop, after this one."""
        self._post(call)

    def check(self, name: str, password: str, done: Callable[[Principal | None], None]) -> bool:
        """Pass the principal with this name and password to *done*, or None.

        Returns False when too many checks wait: *done* is not called then. An unknown name
        takes as long as a wrong password.
        """
        if self._is_stopped or self._jobs >= _JOBS_MAX:
            return False
        self._jobs += 1
        user = self._table.get(name)
        expected = self._decoy_hash if user is None else user.hash

        def checked(is_right: bool) -> None:  # noqa: FBT001 - a verdict, its only argument
            self._jobs -= 1
            # The user may have been deleted, or its password changed, while the check waited.
            now = self._table.get(name)
            is_current = now is not None and now.hash == expected
            done(self._principals[name] if is_right and is_current else None)

        self._run(lambda: self._verify(expected, password), checked)
        return True

    def create(self, name: str, password: str, done: Done) -> None:
        """Create a user that may do nothing yet: DONE, EXISTS or FULL."""
        assert is_user_name(name)

        def edit(encoded: str) -> User | Result:
            created = self._now_us() // 1_000_000
            return self._why_not(name) or User(name, encoded, created, {})

        # Checked now, as hashing is expensive, and again in `edit`: another change may have
        # taken the name meanwhile.
        refusal = self._why_not(name)
        if refusal is not None:
            self.later(lambda: done(refusal))
        else:
            self._hash_and_change(name, password, edit, done)

    def change_password(self, name: str, password: str, done: Done) -> None:
        """Change a user's password; its sessions go on: DONE or NOT_FOUND."""
        principal = self._principals.get(name)

        def edit(encoded: str) -> User | Result:
            # Another user may have the name by now; the caller meant the one before.
            if self._principals.get(name) is not principal:
                return Result.NOT_FOUND
            return msgspec.structs.replace(self._table[name], hash=encoded)

        if principal is None:
            self.later(lambda: done(Result.NOT_FOUND))
        else:
            self._hash_and_change(name, password, edit, done)

    def delete(self, name: str, done: Done) -> None:
        """Delete a user and revoke its sessions' rights: DONE, NOT_FOUND or FORBIDDEN."""

        def edit() -> Result | None:
            if name in self._reserved:
                return Result.FORBIDDEN
            return None if name in self._table else Result.NOT_FOUND

        self._change(_Change(name, edit, done))

    def grant(self, name: str, pattern: str, operations: Collection[str], done: Done) -> None:
        """Set the operations that *pattern* grants to a user: DONE, NOT_FOUND or FULL."""
        assert is_pattern(pattern)
        assert operations
        assert set(operations) <= set(GRANTABLE)

        def edit() -> User | Result:
            user = self._table.get(name)
            if user is None:
                return Result.NOT_FOUND
            if pattern not in user.grants and len(user.grants) >= GRANTS_MAX:
                return Result.FULL
            words = [word for word in GRANTABLE if word in operations]
            return msgspec.structs.replace(user, grants={**user.grants, pattern: words})

        self._change(_Change(name, edit, done))

    def revoke(self, name: str, pattern: str, done: Done) -> None:
        """Revoke the grant of *pattern*: DONE, also when there was none."""

        def edit() -> User | Result:
            user = self._table.get(name)
            if user is None or pattern not in user.grants:
                return Result.DONE
            grants = {key: words for key, words in user.grants.items() if key != pattern}
            return msgspec.structs.replace(user, grants=grants)

        self._change(_Change(name, edit, done))

    def _why_not(self, name: str) -> Result | None:
        if name in self._reserved or name in self._table:
            return Result.EXISTS
        return Result.FULL if len(self._table) >= USERS_MAX else None

    def _hash_and_change(
        self, name: str, password: str, edit: Callable[[str], User | Result], done: Done
    ) -> None:
        assert is_password(password)
        if not self._take_job(done):
            return

        def hashed(encoded: str | None) -> None:
            if encoded is None:
                self._end_job(done, Result.NOT_SAVED)
            else:
                self._changes.append(_Change(name, lambda: edit(encoded), done))
                self._next_change()

        self._run(lambda: self._hash(password), hashed)

    def _change(self, change: _Change) -> None:
        if self._take_job(change.done):
            self._changes.append(change)
            # Not at once: an edit that refuses would call *done* before this returns.
            self.later(self._next_change)

    def _next_change(self) -> None:
        while self._changes and not self._is_saving and not self._is_stopped:
            name, edit, done = self._changes.popleft()
            user = edit()
            if isinstance(user, Result):
                self._end_job(done, user)
            else:
                self._save(name, user, done)

    def _save(self, name: str, user: User | None, done: Done) -> None:
        # A copy: the present table stays in force until the file is on the disk.
        table = {key: value for key, value in self._table.items() if key != name}
        if user is not None:
            table[name] = user
        self._is_saving = True

        def saved(is_saved: bool) -> None:  # noqa: FBT001 - a verdict, its only argument
            self._is_saving = False
            if is_saved:
                self._table = table
                self._adopt(name, user)
            self._end_job(done, Result.DONE if is_saved else Result.NOT_SAVED)
            self._next_change()

        self._run(lambda: self._write(table), saved)

    def _adopt(self, name: str, user: User | None) -> None:
        """Make the change visible to the user's sessions."""
        # Change the object itself: sessions hold it, and compare its version.
        if user is None:
            principal = self._principals.pop(name)
            principal.gone = True
            principal.grants = []
            principal.version += 1
        elif name in self._principals:
            self._principals[name].grants = _grants(user)
            self._principals[name].version += 1
        else:
            self._principals[name] = _principal(user)

    def _take_job(self, done: Done) -> bool:
        if self._is_stopped or self._jobs >= _JOBS_MAX:
            self.later(lambda: done(Result.BUSY))
            return False
        self._jobs += 1
        return True

    def _end_job(self, done: Done, result: Result) -> None:
        self._jobs -= 1
        done(result)

    def _run(self, work: Callable[[], _T], then: Callable[[_T], None]) -> None:
        """Do *work* on a thread, and pass its result to *then* on the event loop."""

        def finish(future: Future[_T]) -> None:
            # On the event loop, as `stop` is: no *done* is called after it.
            if not self._is_stopped:
                then(future.result())

        self._pool.submit(work).add_done_callback(
            lambda future: self._post(lambda: finish(future))
        )

    # On a worker thread: these touch nothing that the event loop changes.

    def _verify(self, encoded: str, password: str) -> bool:
        try:
            return self._hasher.verify(encoded, _bytes(password))
        except VerifyMismatchError:
            return False
        except Argon2Error as error:
            _log.warning("a password could not be checked", reason=str(error))
            return False

    def _hash(self, password: str) -> str | None:
        try:
            return self._hasher.hash(_bytes(password))
        except Argon2Error as error:
            _log.warning("a password could not be hashed", reason=str(error))
            return None

    def _write(self, table: dict[str, User]) -> bool:
        content = _Content(VERSION, [table[name] for name in sorted(table)])
        data = msgspec.json.format(msgspec.json.encode(content), indent=1)
        try:
            replace_file(self._files, USERS_FILE, data + b"\n")
        except OSError as error:
            _log.warning("users could not be saved", file=USERS_FILE, reason=error.strerror)
            return False
        return True


def _bytes(password: str) -> bytes:
    # A peer's text may hold lone surrogates, which plain UTF-8 cannot encode.
    return password.encode("utf-8", "surrogatepass")


def _grants(user: User) -> list[Grant]:
    return [Grant(pattern, set(user.grants[pattern])) for pattern in sorted(user.grants)]


def _decoy_hash(hasher: PasswordHasher) -> str:
    """Return a hash that no password has, and that takes as long to check as any other.

    The passwords of unknown users are checked against it, so that the time of an answer does
    not tell which users exist. Its digest is random instead of computed: hashing would delay
    the start of every broker.
    """
    salt, digest = (
        base64.b64encode(secrets.token_bytes(size)).decode().rstrip("=")
        for size in (hasher.salt_len, hasher.hash_len)
    )
    cost = f"m={hasher.memory_cost},t={hasher.time_cost},p={hasher.parallelism}"
    return f"$argon2id$v=19${cost}${salt}${digest}"


def _principal(user: User) -> Principal:
    return Principal(user.name, publish=[], subscribe=[], grants=_grants(user))


def _load(files: Files, reserved: Collection[str]) -> dict[str, User]:
    if not files.exists(USERS_FILE):
        return {}
    try:
        file = files.open(USERS_FILE, write=False, create=False)
        data = read_all(file, file.size(), 0)
        file.close()
    except OSError as error:
        raise ConfigError(USERS_FILE, f"cannot be read: {error.strerror}") from None
    try:
        content = msgspec.json.decode(data, type=_Content)
    except (ValueError, RecursionError) as error:
        raise ConfigError(USERS_FILE, f"does not hold users: {error}") from None
    if content.version != VERSION:
        problem = f"has version {content.version}; this program knows {VERSION}"
        raise ConfigError(USERS_FILE, problem)
    table: dict[str, User] = {}
    for user in content.users:
        problem = "is there twice" if user.name in table else _problem_of(user)
        if problem:
            raise ConfigError(USERS_FILE, f"user {user.name!r} {problem}")
        if user.name in reserved:
            problem = f"the name {user.name!r} is a user's, in {USERS_FILE}"
            raise ConfigError("auth.keys", problem)
        table[user.name] = user
    return table


def _problem_of(user: User) -> str:
    if not is_user_name(user.name):
        return "has a name that is not allowed"
    if not _HASH.fullmatch(user.hash):
        return "has a hash that is not argon2id"
    for pattern, operations in user.grants.items():
        if not is_pattern(pattern):
            return "has a grant whose pattern is empty or too long"
        if not operations or not set(operations) <= set(GRANTABLE):
            return "has a grant with unknown operations, or none"
    return ""
