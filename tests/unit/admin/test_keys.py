"""Keys and users over HTTP: for administrators, a page at a time, and never a secret."""

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from starlette.testclient import TestClient

from braidmq.admin import keys as keys_module
from braidmq.admin.http.paging import PAGE_BYTES_MAX
from braidmq.admin.http.parameters import iso
from braidmq.admin.keys import GrantRow, Keys, KeysPage
from braidmq.broker.authorize import GRANTABLE, PATTERN_CHARS_MAX, PUBLISH
from braidmq.server.access.keys import hash_key
from braidmq.server.access.users import GRANTS_MAX, USERS_MAX
from braidmq.server.access.users_file import USERS_FILE
from braidmq.testing.disk import FakeDisk
from tests.unit.admin.world import ADMIN, ADMIN_KEY, ORDERS_KEY, World, bearer
from tests.unit.server.access.users_by_hand import NOW_S, Desk, user_record, users_file

KEYS = ("zoe", "Ops")
USERS = ("ada", "bob.2", "carol")
CONFIGURED = {"keys": [{"name": name, "hash": hash_key(name)} for name in KEYS]}

MakeWorld = Callable[..., World]


@pytest.fixture
def with_users() -> Iterator[MakeWorld]:
    """Return a function that makes a broker with these users."""
    desks: list[Desk] = []

    def make(*users: dict[str, object], **config: Any) -> World:  # noqa: ANN401 - as World's
        disk = FakeDisk()
        disk.put(USERS_FILE, users_file(*users))
        desks.append(Desk(disk))
        world = World(**config)
        world.engine.users = desks[-1].users
        return world

    yield make
    for desk in desks:
        desk.close()


async def pages(keys: Keys, limit: int, search: str = "") -> list[KeysPage]:
    found: list[KeysPage] = []
    after: str | None = ""
    while after is not None:
        found.append(await keys.page(after=after, limit=limit, search=search))
        after = found[-1].next
    return found


def names(page: KeysPage) -> list[str]:
    return [key.name for key in page.keys] + [user.name for user in page.users]


def test_only_an_administrator_sees_keys_and_users(with_users: MakeWorld) -> None:
    """Names and permissions, and nothing that grants access."""
    client = with_users(user_record("ada")).client()
    refused, shown = (
        client.get("/api/keys", headers=bearer(key)) for key in (ORDERS_KEY, ADMIN_KEY)
    )

    assert 403 == refused.status_code
    assert {
        "keys": [
            {"name": "ops", "publish": [], "subscribe": [], "admin": True},
            {"name": "orders", "publish": ["in.*"], "subscribe": ["orders.*"], "admin": False},
        ],
        "users": [{"name": "ada", "created": iso(NOW_S * 1_000_000), "grants": []}],
        "next": None,
        "total": 3,
    } == shown.json()
    assert not any(key in shown.text for key in (ADMIN_KEY, ORDERS_KEY, "hash", "sha256"))


def test_keys_and_users_are_listed_like_everything_else(with_users: MakeWorld) -> None:
    """With the same parameters, and the same limits."""
    client = with_users(*map(user_record, USERS)).client()
    queries = ("?after=user:ada&limit=1&search=O", "?limit=1001")
    page, refused = (client.get(f"/api/keys{query}", headers=ADMIN) for query in queries)

    assert (200, 400) == (page.status_code, refused.status_code)
    assert (["bob.2"], "user:bob.2", 4) == (
        [user["name"] for user in page.json()["users"]],
        page.json()["next"],
        page.json()["total"],
    )


@pytest.mark.asyncio
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
async def test_keys_come_first_and_then_users(with_users: MakeWorld, limit: int) -> None:
    """Each once, sorted by name; every page has the total of both."""
    world = with_users(*map(user_record, USERS), auth=CONFIGURED)
    found = await pages(world.status.keys, limit)

    assert ["Ops", "zoe", *USERS] == [name for page in found for name in names(page)]
    assert {5} == {page.total for page in found}
    assert -(-5 // limit) == len(found)


@pytest.mark.parametrize("after", ["x", "ada", "keys:ada", "key", "user"])
def test_a_page_continues_only_from_the_cursor_of_another(
    with_users: MakeWorld, after: str
) -> None:
    """Anything else is refused."""
    answer = with_users().client().get("/api/keys", headers=ADMIN, params={"after": after})

    assert 400 == answer.status_code


@pytest.mark.asyncio
async def test_users_with_many_grants_make_pages_shorter(with_users: MakeWorld) -> None:
    """A page is limited in bytes, and the next one continues without a gap."""
    patterns = [f"{n}{PATTERN_CHARS_MAX * 'x'}"[:PATTERN_CHARS_MAX] for n in range(GRANTS_MAX)]
    grants = {pattern: list(GRANTABLE) for pattern in patterns}
    many = [user_record(f"user-{n:02}", grants) for n in range(20)]
    found = await pages(with_users(*many).status.keys, 1_000)

    assert [user["name"] for user in many] == [u.name for page in found for u in page.users]
    assert all(len(msgspec.json.encode(page)) < PAGE_BYTES_MAX + 1_000 for page in found)
    assert len(found) > 1


@pytest.mark.asyncio
async def test_only_the_rows_of_the_page_are_made(
    with_users: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the most users allowed, a page costs no more than with few."""
    made: list[str] = []

    def counted(pattern: str, operations: list[str]) -> GrantRow:
        made.append(pattern)
        return GrantRow(pattern, operations)

    monkeypatch.setattr(keys_module, "GrantRow", counted)
    many = (user_record(f"user-{n:04}", {f"q{n}": [PUBLISH]}) for n in range(USERS_MAX))
    world = with_users(*many, auth=CONFIGURED)
    page = await world.status.keys.page(after="user:user-1999", limit=3, search="")

    assert (["q2000", "q2001", "q2002"], USERS_MAX + len(KEYS)) == (made, page.total)


def test_the_development_key_is_listed(with_users: MakeWorld) -> None:
    """It may do everything, so an operator should see it."""
    client: TestClient = with_users(dev=True).client()
    answer = client.get("/api/keys?search=dev", headers=bearer("dev-key"))

    expected = {"name": "dev", "publish": ["*"], "subscribe": ["*"], "admin": True}
    assert [expected] == answer.json()["keys"]


def test_before_recovery_nothing_is_listed() -> None:
    """The users file has not been read yet."""
    answer = World(recovered=False).client().get("/api/keys", headers=ADMIN)

    assert (503, {"error": "recovering the log"}) == (answer.status_code, answer.json())
