"""API keys and users as an administrator has them: searched, a page at a time."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from braidmq.admin.http.parameters import iso
from braidmq.admin.http.refusals import BadCursorError
from braidmq.admin.keys import GrantRow, KeysPage
from braidmq.admin.queries import key_list
from braidmq.admin.queries.key_list import KeyList
from braidmq.admin.queries.page_bounds import PAGE_BYTES_MAX
from braidmq.broker.authorize import GRANTABLE, PATTERN_CHARS_MAX, PUBLISH
from braidmq.server.access.keys import KeyRing, hash_key
from braidmq.server.access.users import GRANTS_MAX, USERS_FILE, USERS_MAX, Result
from braidmq.server.config.models import KeyConfig
from braidmq.server.engine.refusals import UnavailableError
from braidmq.testing.broker import running_broker
from braidmq.testing.disk import FakeDisk
from tests.unit.admin.queries.queue_broker import engine_of, status_of
from tests.unit.server.access.users_by_hand import Desk, user_record, users_file
from tests.unit.server.by_hand import Hand

pytestmark = pytest.mark.asyncio

KEYS = ("zoe", "Ops")
USERS = ("ada", "bob.2", "carol")


@contextmanager
def listing(*users: dict[str, object]) -> Iterator[KeyList]:
    """Give the list of the keys above and of these users."""
    disk = FakeDisk()
    disk.put(USERS_FILE, users_file(*users))
    desk, hand = Desk(disk), Hand()
    hand.engine.users = desk.users
    keys = [KeyConfig(name=name, hash=hash_key(name), publish=["x"]) for name in KEYS]
    try:
        yield KeyList(KeyRing(keys, dev=False), lambda: hand.engine)
    finally:
        desk.close()


async def pages(keys: KeyList, limit: int, search: str = "") -> list[KeysPage]:
    found: list[KeysPage] = []
    after: str | None = ""
    while after is not None:
        found.append(await keys.page(after=after, limit=limit, search=search))
        after = found[-1].next
    return found


def names(page: KeysPage) -> list[str]:
    return [key.name for key in page.keys] + [user.name for user in page.users]


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
async def test_keys_come_first_and_then_users_a_page_at_a_time(limit: int) -> None:
    """Each once and by name; every page knows how many there are of both."""
    with listing(*map(user_record, USERS)) as keys:
        found = await pages(keys, limit)

        assert ["Ops", "zoe", *USERS] == [name for page in found for name in names(page)]
        assert {5} == {page.total for page in found}
        assert -(-5 // limit) == len(found)


async def test_a_search_is_for_names_in_any_case() -> None:
    """Of keys and users; what is left out is not counted either."""
    with listing(*map(user_record, USERS)) as keys:
        (page,) = await pages(keys, 100, "O")

        assert (["Ops", "zoe", "bob.2", "carol"], 4) == (names(page), page.total)


@pytest.mark.parametrize("after", ["x", "ada", "keys:ada", "key", "user"])
async def test_a_page_goes_on_only_from_the_end_of_another(after: str) -> None:
    """Anything else is refused."""
    with listing() as keys, pytest.raises(BadCursorError):
        await keys.page(after=after, limit=1, search="")


async def test_users_with_many_grants_come_on_shorter_pages() -> None:
    """A page has so many bytes, and the next one goes on behind it: nobody is left out."""
    patterns = [f"{n}{PATTERN_CHARS_MAX * 'x'}"[:PATTERN_CHARS_MAX] for n in range(GRANTS_MAX)]
    grants = {pattern: list(GRANTABLE) for pattern in patterns}
    many = [user_record(f"user-{n:02}", grants) for n in range(20)]
    with listing(*many) as keys:
        found = await pages(keys, 1_000)

        assert [user["name"] for user in many] == [u.name for page in found for u in page.users]
        assert all(len(msgspec.json.encode(page)) < PAGE_BYTES_MAX + 1_000 for page in found)
        assert len(found) > 1


async def test_rows_are_made_for_the_page_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many users as there may be cost a page no more than few do."""
    made: list[str] = []

    def counted(pattern: str, operations: list[str]) -> GrantRow:
        made.append(pattern)
        return GrantRow(pattern, operations)

    monkeypatch.setattr(key_list, "GrantRow", counted)
    many = (user_record(f"user-{n:04}", {f"q{n}": [PUBLISH]}) for n in range(USERS_MAX))
    with listing(*many) as keys:
        page = await keys.page(after="user:user-1999", limit=3, search="")

        assert (["q2000", "q2001", "q2002"], USERS_MAX + len(KEYS)) == (made, page.total)


async def test_everybody_is_shown_without_a_secret() -> None:
    """Keys with their patterns, the development key's among them; users with a time."""
    async with running_broker() as broker:
        users = engine_of(broker).users
        assert users is not None
        created: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        users.create("ada", "countess", created.set_result)
        assert Result.DONE == await created
        (page,) = await pages(status_of(broker).keyring, 100)

        assert {
            "keys": [{"name": "dev", "publish": ["*"], "subscribe": ["*"], "admin": True}],
            "users": [{"name": "ada", "created": iso(broker.clock.now_us()), "grants": []}],
            "next": None,
            "total": 2,
        } == msgspec.to_builtins(page)


async def test_before_recovery_nobody_is_shown() -> None:
    """The users are in a file that is not read yet."""
    with pytest.raises(UnavailableError, match="recovering the log"):
        await KeyList(KeyRing([], dev=True), lambda: None).page(after="", limit=1, search="")
