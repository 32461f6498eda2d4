"""Users on an event loop that is turned by hand: the test decides the order of events."""

import json
import queue
import threading
from collections.abc import Callable, Sized
from typing import Final, Literal

from argon2 import PasswordHasher
from argon2.exceptions import HashingError, VerificationError

from braidmq.broker.authorize import Principal
from braidmq.server.access.users import Done, Result, Users
from braidmq.testing.disk import FakeDisk
from braidmq.wal.disk import Files

NOW_S: Final = 1_700_000_000
WAIT_S: Final = 20.0
HASH: Final = (
    "$argon2id$v=19$m=8,t=1,p=1$c29tZXNhbHRzb21lc2FsdA$"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)


class Counting(PasswordHasher):
    """Real argon2id at its lowest cost; it records the hashes that it verifies.

    While its gate is shut, verification waits.
    """

    def __init__(self) -> None:
        super().__init__(time_cost=1, memory_cost=8, parallelism=1)
        self.verified: list[str | bytes] = []
        self.hashed = 0
        self.gate = threading.Event()
        self.gate.set()

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - argon2's name for it
        assert self.gate.wait(WAIT_S)
        self.verified.append(hash)
        return super().verify(hash, password)

    def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
        self.hashed += 1
        return super().hash(password, salt=salt)


class OutOfMemory(Counting):
    """A hasher that has run out of memory."""

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - argon2's name for it
        raise VerificationError("Memory allocation error")

    def hash(self, password: str | bytes, *, salt: bytes | None = None) -> str:
        raise HashingError("Memory allocation error")


class Desk:
    """Users, and an event loop that each method turns until its answer arrives."""

    def __init__(self, files: Files | None = None, hasher: Counting | None = None) -> None:
        self.files = FakeDisk() if files is None else files
        self.hasher = hasher or Counting()
        self.limited: list[str] = []
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.users = Users(
            self.files,
            reserved=["billing", "dev"],
            now_us=lambda: NOW_S * 1_000_000 + 999_999,
            post=self.calls.put,
            hasher=self.hasher,
        )

    def close(self) -> None:
        """Shut down cleanly, even after a test that failed with the gate shut."""
        self.users.stop()
        self.hasher.gate.set()
        self.users.close()

    def turn(self) -> None:
        """Run the next call that was posted."""
        self.calls.get(timeout=WAIT_S)()

    def until(self, answers: Sized, count: int = 1) -> None:
        """Turn the loop until there are *count* answers."""
        while len(answers) < count:
            self.turn()

    def ask(self, start: Callable[[Done], None]) -> Result:
        """Start a change and return its result."""
        answers: list[Result] = []
        start(answers.append)
        assert [] == answers  # never before the call has returned
        self.until(answers)
        return answers[0]

    def create(self, name: str, password: str = "secret") -> Result:
        return self.ask(lambda done: self.users.create(name, password, done))

    def delete(self, name: str) -> Result:
        return self.ask(lambda done: self.users.delete(name, done))

    def change(self, name: str, password: str) -> Result:
        return self.ask(lambda done: self.users.change_password(name, password, done))

    def grant(self, name: str, pattern: str, *operations: str) -> Result:
        return self.ask(lambda done: self.users.grant(name, pattern, operations, done))

    def revoke(self, name: str, pattern: str) -> Result:
        return self.ask(lambda done: self.users.revoke(name, pattern, done))

    def check(self, name: str, password: str) -> Principal | None:
        answers: list[Principal | None] = []
        self.start_check(name, password, answers)
        assert [] == answers
        self.until(answers)
        return answers[0]

    def start_check(
        self, name: str, password: str, answers: list[Principal | None], address: str = "::1"
    ) -> None:
        """Start a check; one above the limits is noted in `limited`."""
        self.users.check(
            name,
            password,
            answers.append,
            address=address,
            limited=lambda: self.limited.append(name),
        )

    def found(self, name: str) -> Principal:
        principal = self.users.find(name)
        assert principal is not None
        return principal

    def shown(self, name: str) -> dict[str, set[str]]:
        return {grant.pattern: set(grant.operations) for grant in self.users.permissions(name)}

    @property
    def disk(self) -> FakeDisk:
        assert isinstance(self.files, FakeDisk)
        return self.files


def user_record(name: str, grants: dict[str, list[str]] | None = None) -> dict[str, object]:
    """Return a user in the form of the file."""
    return {"name": name, "hash": HASH, "created": NOW_S, "grants": grants or {}}


def users_file(*users: dict[str, object]) -> bytes:
    """Return the content of a file with these users."""
    return json.dumps({"version": 1, "users": users}).encode()
