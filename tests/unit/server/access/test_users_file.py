"""The users file: its content, what a crash leaves of it, and what prevents startup."""

import errno
import json
import re
import stat
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

import pytest

from braidmq.base.errors import EXIT_USAGE, ConfigError
from braidmq.broker.authorize import PUBLISH, SUBSCRIBE, authorize
from braidmq.server.access.users import Account, Result
from braidmq.server.access.users_file import USERS_FILE, load_users
from braidmq.testing.disk import FakeDisk, PowerCutError
from braidmq.wal.disk import Disk
from tests.unit.server.access.users_by_hand import HASH, NOW_S, Desk, user_record, users_file


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def test_a_key_with_the_name_of_a_user_prevents_startup() -> None:
    """Two principals with one name could not be told apart in logs and records."""
    disk = FakeDisk()
    disk.put(USERS_FILE, users_file(user_record("dev")))

    with pytest.raises(ConfigError, match=r"auth.keys: the name 'dev' is a user's"):
        Desk(disk)


def test_users_survive_a_restart(desk: Desk) -> None:
    """With names, passwords, dates and grants; deleted users stay deleted."""
    desk.create("bob", "builder")
    desk.create("ada", "countess")
    desk.create("gone")
    desk.grant("ada", "orders.*", PUBLISH, SUBSCRIBE)
    desk.delete("gone")
    again = Desk(desk.disk.crash(Random(7)))

    assert [Account("ada", NOW_S), Account("bob", NOW_S)] == again.users.accounts()
    assert again.check("ada", "countess") is again.found("ada")
    assert {"orders.*": {PUBLISH, SUBSCRIBE}} == again.shown("ada")
    assert authorize(again.found("ada"), PUBLISH, "orders.eu")
    again.close()


def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    """Other users of the machine could try to crack the hashes."""
    desk = Desk(Disk(tmp_path))
    desk.create("ada")
    desk.create("bob")
    desk.close()

    assert 0o600 == stat.S_IMODE((tmp_path / USERS_FILE).stat().st_mode)
    assert [USERS_FILE] == [path.name for path in tmp_path.iterdir()]


def test_the_file_has_the_documented_format(desk: Desk) -> None:
    """Later versions must read it too; the format changes only with its version number."""
    desk.create("ada")
    desk.grant("ada", "orders.*", SUBSCRIBE, PUBLISH)
    content = json.loads(desk.disk.content(USERS_FILE))
    encoded = content["users"][0].pop("hash")

    assert encoded.startswith("$argon2id$v=19$")
    assert re.fullmatch("sha256:[0-9a-f]{64}", content.pop("checksum"))
    assert {
        "version": 1,
        "users": [
            {
                "name": "ada",
                "created": NOW_S,
                "grants": {"orders.*": ["publish", "subscribe"]},
            }
        ],
    } == content


@pytest.mark.parametrize("operation", ["open", "pwrite", "truncate", "fsync", "rename"])
def test_a_change_that_cannot_be_saved_is_not_made(desk: Desk, operation: str) -> None:
    """The old file and the old users stay in force until the disk accepts writes again."""
    desk.create("ada", "old")
    before = desk.disk.content(USERS_FILE)
    desk.disk.fail(operation, errno.EIO, forever=True)
    failed = [
        desk.create("bob"),
        desk.change("ada", "new"),
        desk.grant("ada", "*", PUBLISH),
        desk.delete("ada"),
    ]

    assert 4 * [Result.NOT_SAVED] == failed
    assert before == desk.disk.content(USERS_FILE)
    assert [Account("ada", NOW_S)] == desk.users.accounts()
    assert not desk.found("ada").gone
    assert desk.check("ada", "old") is not None
    desk.disk.heal()
    assert Result.DONE == desk.delete("ada")


def test_a_power_cut_leaves_the_old_users_or_the_new() -> None:
    """Wherever it strikes; a change that was answered before the cut survives it."""
    possible: list[list[set[str]]] = [
        [{"ada"}, {"ada", "bob"}],
        [{"ada", "bob"}, {"bob"}],
        [{"bob"}],
    ]
    seen = set()
    for cut, seed in product(range(1, 14), range(8)):
        desk = Desk()
        desk.create("ada")
        desk.disk.cut_power_at(desk.disk.operations + cut)
        answered = _answered_before_the_cut(desk)
        desk.close()
        again = Desk(desk.disk.crash(Random(seed)))
        left = {account.name for account in again.users.accounts()}
        again.close()
        seen.add(answered)

        assert left in possible[answered]
    assert {0, 1, 2} == seen


def _answered_before_the_cut(desk: Desk) -> int:
    """Create bob, delete ada; return how many of the two changes were answered."""
    answered = 0
    try:
        desk.create("bob")
        answered = 1
        desk.delete("ada")
        answered = 2
    except PowerCutError:
        pass
    return answered


def test_a_flipped_bit_prevents_startup(desk: Desk) -> None:
    """Also one in a grant, or in the hash of a password, which would still be valid users."""
    desk.create("ada")
    desk.grant("ada", "orders.*", PUBLISH)
    whole = desk.disk.content(USERS_FILE)
    texts = set()
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        disk = FakeDisk()
        disk.put(USERS_FILE, bytes(changed))
        try:
            table = load_users(disk, ())
        except ConfigError as error:
            texts.add(str(error).partition(";")[0])
        else:  # white space that is other white space
            assert table == load_users(desk.disk, ()), bit

    assert "users.json: is damaged: it does not match its checksum" in texts


def test_a_file_without_a_checksum_is_read_and_gets_one_with_the_next_change() -> None:
    """As earlier versions have written it."""
    disk = FakeDisk()
    disk.put(USERS_FILE, users_file(user_record("ada")))
    desk = Desk(disk)
    assert b"checksum" not in disk.content(USERS_FILE)
    desk.create("bob")
    desk.close()

    assert b'"checksum": "sha256:' in disk.content(USERS_FILE)
    assert {"ada", "bob"} == set(load_users(disk, ()))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "does not hold users"),
        (b"{", "does not hold users"),
        (b"\xff", "does not hold users"),
        (b"[]", "does not hold users"),
        (b'{"version": 1}', "missing required field `users`"),
        (b'{"version": 1, "users": [{"name": "ada"}]}', "missing required field `hash`"),
        (b'{"version": 1, "users": [], "more": 1}', "unknown field `more`"),
        (b'{"version": 2, "users": []}', "has version 2; this program knows 1"),
        (b'{"version": 1, "users":' + 5_000 * b"[", "does not hold users"),
    ],
)
def test_a_malformed_file_prevents_startup(content: bytes, problem: str) -> None:
    """The broker reports a configuration error in one line, and leaves the file as it is."""
    disk = FakeDisk()
    disk.put(USERS_FILE, content)

    with pytest.raises(ConfigError, match=rf"users.json: .*{problem}") as caught:
        Desk(disk)
    assert EXIT_USAGE == caught.value.exit_code
    assert content == disk.content(USERS_FILE)
    assert [USERS_FILE] == disk.paths()


@pytest.mark.parametrize(
    ("users", "problem"),
    [
        ([{"name": "a b"}], "'a b' has a name that is not allowed"),
        ([{"hash": "secret"}], "'ada' has a hash that is not argon2id"),
        ([{"hash": HASH.replace("argon2id", "argon2i")}], "hash that is not argon2id"),
        ([{"hash": HASH + "\n"}], "hash that is not argon2id"),
        ([{"grants": {"": ["publish"]}}], "pattern is empty or too long"),
        ([{"grants": {"a" * 257: ["publish"]}}], "pattern is empty or too long"),
        ([{"grants": {"a": []}}], "unknown operations, or none"),
        ([{"grants": {"a": ["admin"]}}], "unknown operations, or none"),
        ([{}, {}], "'ada' is there twice"),
    ],
)
def test_the_error_names_an_invalid_user(users: list[dict[str, object]], problem: str) -> None:
    """It says what is wrong with the user, and never shows a hash."""
    disk = FakeDisk()
    disk.put(USERS_FILE, users_file(*(user_record("ada") | user for user in users)))

    with pytest.raises(ConfigError, match=problem) as caught:
        Desk(disk)
    assert "secret" not in str(caught.value)


def test_an_unreadable_file_prevents_startup() -> None:
    """Unreadable does not mean absent: the broker would start without any users."""
    disk = FakeDisk()
    disk.put(USERS_FILE, users_file())
    disk.fail("open", errno.EACCES)

    with pytest.raises(ConfigError, match=r"users.json: cannot be read: Permission denied"):
        Desk(disk)


def test_without_a_file_there_are_no_users(desk: Desk) -> None:
    """And no file is written before the first user is created."""
    assert [] == desk.users.accounts()
    assert [] == desk.users.permissions("ada")
    assert [] == desk.disk.paths()
