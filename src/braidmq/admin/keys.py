"""API keys and users over HTTP: names, permissions and quotas, never a hash or a secret.

    GET /api/keys?after=&limit=&search=    {"keys": [...], "users": [...], "next", "total"}
    GET /api/quotas?after=&limit=&search=  {"principals": [...], "next", "total"}

Keys are for administrators; of quotas, other principals see their own. A principal that has no
key and no user any more is listed as long as something is charged to it, without limits.

The list of keys holds keys first, then users, each by name; `next` is `key:NAME` or
`user:NAME`, and `total` counts both.
"""

import asyncio
import heapq
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec
from starlette.requests import Request

from braidmq.admin.http.endpoints import keyed
from braidmq.admin.http.paging import rows_on_page
from braidmq.admin.http.parameters import AFTER, LIMIT, SEARCH, iso
from braidmq.admin.http.refusals import BadCursorError
from braidmq.admin.http.requests import allow
from braidmq.broker.authorize import ADMIN, Grant, Principal, authorize
from braidmq.broker.broker import Broker
from braidmq.broker.quotas import (
    CURSORS,
    DEFAULTS,
    QUEUES,
    SUBSCRIPTIONS,
    TOPIC_NAME_BYTES,
    TOPICS,
    UNFINISHED_BYTES,
    Quotas,
)
from braidmq.server.access.keys import KeyRing
from braidmq.server.access.users import Account
from braidmq.server.engine.requests import FindEngine, running

KEY: Final = "key"
USER: Final = "user"

_US_PER_S: Final = 1_000_000
_FIRST: Final = ("", "")

Place = tuple[str, str]
"""The position of a row: its kind (`key` sorts before `user`) and its name."""

_Found = Principal | tuple[Account, list[Grant]]


class KeyRow(msgspec.Struct, frozen=True):
    """An API key: its name, and the topic patterns that it may use."""

    name: str
    publish: list[str]
    subscribe: list[str]
    admin: bool


class GrantRow(msgspec.Struct, frozen=True):
    """What a user may do with the queues that match a pattern."""

    pattern: str
    operations: list[str]


class UserRow(msgspec.Struct, frozen=True):
    """A user of the Vibe strand."""

    name: str
    created: str
    grants: list[GrantRow]


class KeysPage(msgspec.Struct, frozen=True):
    """Keys by name, then users by name, the next `after`, and how many match the search."""

    keys: list[KeyRow]
    users: list[UserRow]
    next: str | None
    total: int


class QuotaUse(msgspec.Struct, frozen=True):
    """How much of a quota is used, null if that is not counted; and its limit, null: none."""

    used: int | None
    limit: int | None


class QuotasRow(msgspec.Struct, frozen=True):
    """A principal, and its quotas by name."""

    principal: str
    quotas: dict[str, QuotaUse]


class QuotasPage(msgspec.Struct, frozen=True):
    """Principals by name, the next `after`, and how many match the search."""

    principals: list[QuotasRow]
    next: str | None
    total: int


class Keys:
    """The principals that may connect: API keys of the configuration, and users."""

    def __init__(self, keys: KeyRing, find_engine: FindEngine) -> None:
        self._keys = keys
        self._find_engine = find_engine

    async def page(self, *, after: str, limit: int, search: str) -> KeysPage:
        """Return up to *limit* keys and users after *after*.

        Raises:
            BadCursorError: *after* is not the `next` of a page.
            UnavailableError: The users are not loaded yet.
        """
        place = _place(after)
        users = running(self._find_engine()).users
        assert users is not None
        keys = {key.name: key for key in self._keys.principals()}
        accounts = {account.name: account for account in users.accounts()}
        places = [(KEY, name) for name in keys] + [(USER, name) for name in accounts]
        first, total = await asyncio.to_thread(
            _chosen, places, place, limit=limit, search=search.casefold()
        )
        # On the event loop again: permissions may change at any time, but not within a turn.
        found: list[_Found] = [
            keys[name] if kind == KEY else (accounts[name], users.permissions(name))
            for kind, name in first
        ]
        rows = await asyncio.to_thread(_rows, found, limit)
        following = ":".join(first[len(rows) - 1]) if len(rows) < len(first) else None
        return KeysPage(
            [row for row in rows if isinstance(row, KeyRow)],
            [row for row in rows if isinstance(row, UserRow)],
            following,
            total,
        )

    def quotas(self, *, after: str, limit: int, search: str, only: str = "") -> QuotasPage:
        """Return the quotas of up to *limit* principals after *after*, or of *only* one.

        Raises:
            UnavailableError: The broker is still recovering.
        """
        engine = running(self._find_engine())
        broker = engine.broker
        known = {key.name: key.quotas for key in self._keys.principals()}
        if engine.users is not None:
            for user in engine.users.accounts():
                principal = engine.users.find(user.name)
                if principal is not None:
                    known[user.name] = principal.quotas
        charged = [one.name for one in broker.topics.accounts.all() if one.is_charged()]
        wanted = search.casefold()
        names = [
            name
            for name in sorted({*known, *charged} - {""})
            if wanted in name.casefold() and only in {"", name}
        ]
        page = [name for name in names if name > after][: limit + 1]
        rows = [_quotas_row(broker, name, known.get(name)) for name in page[:limit]]
        return QuotasPage(rows, rows[-1].principal if len(page) > limit else None, len(names))

    @keyed("GET /api/quotas", AFTER, LIMIT, SEARCH)
    async def get_quotas(self, request: Request, principal: Principal) -> QuotasPage:
        """List what principals use of their quotas; one's own, or all for an administrator."""
        return self.quotas(
            after=AFTER.of(request),
            limit=LIMIT.of(request),
            search=SEARCH.of(request),
            only="" if authorize(principal, ADMIN, "") else principal.name,
        )

    @keyed("GET /api/keys", AFTER, LIMIT, SEARCH)
    async def get_keys(self, request: Request, principal: Principal) -> KeysPage:
        """List names and permissions of keys and users; for administrators."""
        allow(principal, ADMIN, "")
        return await self.page(
            after=AFTER.of(request), limit=LIMIT.of(request), search=SEARCH.of(request)
        )


def _quotas_row(broker: Broker, name: str, quotas: Quotas | None) -> QuotasRow:
    account = broker.topics.accounts.of(name)
    used: dict[str, int | None] = dict.fromkeys(DEFAULTS)
    for quota in (TOPICS, TOPIC_NAME_BYTES, QUEUES, SUBSCRIPTIONS, UNFINISHED_BYTES):
        used[quota] = account.used(quota)
    used[CURSORS] = broker.cursors.count_of(name)
    limits: dict[str, int | None] = dict.fromkeys(DEFAULTS)
    if quotas is not None:
        limits.update(quotas.limits())
    return QuotasRow(name, {quota: QuotaUse(used[quota], limits[quota]) for quota in DEFAULTS})


def _chosen(
    places: Iterable[Place], after: Place, *, limit: int, search: str
) -> tuple[list[Place], int]:
    """Return one row more than a page after *after*, and how many rows match in all."""
    matching = [place for place in places if not search or search in place[1].casefold()]
    behind = (place for place in matching if place > after)
    return heapq.nsmallest(limit + 1, behind), len(matching)


def _rows(found: list[_Found], limit: int) -> list[KeyRow | UserRow]:
    # A user may have many long patterns, so a row counts with its encoded size. Sizes are
    # computed lazily: rows after the end of the page are never made.
    rows: list[KeyRow | UserRow] = []

    def sizes() -> Iterator[int]:
        for one in found:
            rows.append(_row(one))
            yield len(msgspec.json.encode(rows[-1]))

    on_page = rows_on_page(sizes(), limit)
    return rows[:on_page]


def _row(found: _Found) -> KeyRow | UserRow:
    if isinstance(found, Principal):
        return KeyRow(found.name, list(found.publish), list(found.subscribe), found.admin)
    account, grants = found
    return UserRow(
        account.name,
        iso(account.created_s * _US_PER_S),
        [GrantRow(grant.pattern, sorted(grant.operations)) for grant in grants],
    )


def _place(after: str) -> Place:
    if not after:
        return _FIRST
    kind, colon, name = after.partition(":")
    if not colon or kind not in {KEY, USER}:
        raise BadCursorError
    return kind, name
