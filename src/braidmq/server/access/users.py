"""Users: names, password hashes and grants, kept in one file of the data directory.

Changes are made one after the other, each in this order:

1. The whole new file is written beside the old one and synced.
2. It replaces the old one, and the directory is synced. A crash before leaves the old
   file, and the change was not acknowledged; a crash after leaves the new one.
3. The change holds: the user's one `Principal`, which all its sessions share, is changed in
   place, and the caller is answered.

Hashing, checking and writing happen on two threads, never on the event loop: see checks.py.
Every `done` is called on the event loop, once, and never before the method that took it has
returned.

The file may be edited by hand, or put back from a backup, while the broker runs; `read_again`
takes it over. A change that is made before that overwrites it.

The file is described and read in users_file.py. Who may change users is decided in
user_administration.py; API keys are in keys.py.
"""

import enum
from collections import deque
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import structlog

from braidmq.base.errors import ConfigError
from braidmq.broker.authorize import GRANTABLE, Grant, Principal, is_pattern
from braidmq.broker.quotas import Quotas
from braidmq.server.access.checks import LIMITED, RIGHT, Attempt, PasswordChecks
from braidmq.server.access.keys import Revision
from braidmq.server.access.passwords import Passwords, is_password
from braidmq.server.access.users_file import (
    USERS_FILE,
    User,
    encoded_users,
    is_user_name,
    load_users,
)
from braidmq.wal.disk import Files, replace_file

if TYPE_CHECKING:  # imported with the first password
    from argon2 import PasswordHasher

USERS_MAX: Final = 5_000
"""So that the list of all users fits in one frame of 1 MiB."""

GRANTS_MAX: Final = 256
"""Patterns of one user: each message is matched against all, and all must fit in one frame."""

WAITING_MAX: Final = 64
"""Changes that may wait; a further one would only wait until its client gives up."""


_log = structlog.get_logger(__name__)


class Result(enum.Enum):
    """How a change ended."""

    DONE = enum.auto()
    EXISTS = enum.auto()  # a user or an API key has the name
    NOT_FOUND = enum.auto()
    FORBIDDEN = enum.auto()  # the name is an API key's
    FULL = enum.auto()  # the limit of users, or of grants of this one, is reached
    BUSY = enum.auto()  # too many jobs wait; nothing was tried
    NOT_SAVED = enum.auto()  # the disk refused, or there was no memory to hash in


class Account(NamedTuple):
    """One user as lists show it."""

    name: str
    created_s: int


Done = Callable[[Result], None]
_Edit = Callable[[], User | Result | None]


class _Change(NamedTuple):
    """A change that waits for its turn; the edit returns the new user, None to delete it."""

    name: str
    edit: _Edit
    done: Done


class _Reading(NamedTuple):
    """A reading of the file that waits for its turn."""

    reserved: frozenset[str]
    quotas: Quotas
    done: Callable[[Revision | ConfigError], None]


class Users:
    """All users; every method but `close` is for the event loop's thread.

    *reserved* are the names of the API keys, *post* is the loop's `call_soon_threadsafe`,
    *after* calls something after so many seconds, and *quotas* are those of each user.

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
        after: Callable[[float, Callable[[], None]], object] | None = None,
        hasher: "PasswordHasher | None" = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._files = files
        self._quotas = Quotas() if quotas is None else quotas
        self._reserved = frozenset(reserved)
        self._now_us = now_us
        self._post = post
        self._passwords = Passwords(hasher)
        self._table = load_users(files, self._reserved)
        self._principals = {
            name: _principal(user, self._quotas) for name, user in self._table.items()
        }
        self._checks = PasswordChecks(
            self._passwords.verify,
            decoy=self._passwords.decoy,
            now_us=now_us,
            post=post,
            after=after or (lambda _, call: post(call)),
        )
        self._jobs = 0
        self._changes: deque[_Change | _Reading] = deque()
        self._is_saving = False
        self._is_stopped = False

    def stop(self) -> None:
        """Start no more jobs and call no more *done*; waiting jobs are dropped."""
        self._is_stopped = True
        self._checks.stop()

    def close(self) -> None:
        """Wait until the running jobs have ended; after `stop`, on a thread that may block."""
        assert self._is_stopped
        self._checks.close()

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

    def check(
        self,
        name: str,
        password: str,
        done: Callable[[Principal | None], None],
        *,
        address: str,
        limited: Callable[[], None],
    ) -> None:
        """Pass the principal with this name and password to *done*, or None.

        *limited* is called instead when too many checks wait, or too many of *address* have
        failed. Neither the answer nor its time tells whether there is such a user.
        """
        user = self._table.get(name)
        expected = None if user is None else user.hash

        def checked(outcome: int) -> None:
            # The user may have been deleted, or its password changed, while the check waited.
            now = self._table.get(name)
            is_current = now is not None and now.hash == expected
            if outcome == LIMITED:
                limited()
            else:
                done(self._principals[name] if outcome == RIGHT and is_current else None)

        if not self._is_stopped:
            self._checks.ask(Attempt(name, password, expected, checked), address)

    def read_again(
        self,
        reserved: Collection[str],
        quotas: Quotas,
        done: Callable[[Revision | ConfigError], None],
    ) -> None:
        """Take over the file as it is now, after the changes before; or nothing of it.

        A user whose hash is another one is as one who was deleted and created anew: all its
        sessions end.
        """
        self._changes.append(_Reading(frozenset(reserved), quotas, done))
        self.later(self._next_change)

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

        self._checks.run(lambda: self._passwords.hash(password), hashed)

    def _change(self, change: _Change) -> None:
        if self._take_job(change.done):
            self._changes.append(change)
            # Not at once: an edit that refuses would call *done* before this returns.
            self.later(self._next_change)

    def _next_change(self) -> None:
        while self._changes and not self._is_saving and not self._is_stopped:
            change = self._changes.popleft()
            if isinstance(change, _Reading):
                self._read_again(change)
                continue
            user = change.edit()
            if isinstance(user, Result):
                self._end_job(change.done, user)
            else:
                self._save(change.name, user, change.done)

    def _read_again(self, reading: _Reading) -> None:
        self._is_saving = True

        def load() -> dict[str, User] | ConfigError:
            try:
                return load_users(self._files, reading.reserved)
            except ConfigError as error:
                return error

        def loaded(found: dict[str, User] | ConfigError) -> None:
            self._is_saving = False
            if isinstance(found, ConfigError):
                reading.done(found)
            else:
                self._reserved = reading.reserved
                self._quotas = reading.quotas
                reading.done(self._adopt_all(found))
            self._next_change()

        self._checks.run(load, loaded)

    def _adopt_all(self, table: dict[str, User]) -> Revision:
        revision = Revision([], [], [])
        for name, principal in list(self._principals.items()):
            user = table.get(name)
            if user is None or user.hash != self._table[name].hash:
                revision.gone.append(principal)
                self._adopt(name, None)
            else:
                principal.quotas = self._quotas
                if user.grants != self._table[name].grants:
                    revision.changed.append(principal)
                    self._adopt(name, user)
        for name in sorted(table.keys() - self._principals.keys()):
            revision.added.append(name)
            self._adopt(name, table[name])
        self._table = table
        return revision

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

        self._checks.run(lambda: self._write(table), saved)

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
            self._principals[name] = _principal(user, self._quotas)

    def _take_job(self, done: Done) -> bool:
        if self._is_stopped or self._jobs >= WAITING_MAX:
            self.later(lambda: done(Result.BUSY))
            return False
        self._jobs += 1
        return True

    def _end_job(self, done: Done, result: Result) -> None:
        self._jobs -= 1
        done(result)

    # On a worker thread: it touches nothing that the event loop changes.

    def _write(self, table: dict[str, User]) -> bool:
        try:
            replace_file(self._files, USERS_FILE, encoded_users(table))
        except OSError as error:
            _log.warning("users could not be saved", file=USERS_FILE, reason=error.strerror)
            return False
        return True


def _grants(user: User) -> list[Grant]:
    return [Grant(pattern, set(user.grants[pattern])) for pattern in sorted(user.grants)]


def _principal(user: User, quotas: Quotas) -> Principal:
    return Principal(user.name, publish=[], subscribe=[], grants=_grants(user), quotas=quotas)
