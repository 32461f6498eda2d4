"""API keys and users as an administrator over HTTP has them: searched, a page at a time.

Keys come first, then users, each by name: a page goes on from `key:NAME` or `user:NAME`. Who
there is, is taken down on the event loop; chosen and made into rows it is on a thread.
"""

import asyncio
import heapq
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from braidmq.admin.http.parameters import iso
from braidmq.admin.http.refusals import BadCursorError
from braidmq.admin.keys import GrantRow, KeyRow, KeysPage, UserRow
from braidmq.admin.queries.page_bounds import rows_on_page
from braidmq.broker.authorize import Grant, Principal
from braidmq.server.access.keys import KeyRing
from braidmq.server.access.users import Account
from braidmq.server.engine.requests import FindEngine, running

_US_PER_S: Final = 1_000_000

Place = tuple[str, str]
"""What pages go by: the kind, whose words are in the order of the list, and the name."""

KEY: Final = "key"
USER: Final = "user"

_FIRST: Final = ("", "")

_Found = Principal | tuple[Account, list[Grant]]


class KeyList:
    """What `admin` asks about keys and users."""

    def __init__(self, keys: KeyRing, find_engine: FindEngine) -> None:
        self._keys = keys
        self._find_engine = find_engine

    async def page(self, *, after: str, limit: int, search: str) -> KeysPage:
        """Return up to *limit* keys and users behind *after*, without what lets them in.

        Raises:
            BadCursorError: *after* is not the end of a page.
            UnavailableError: The users are not loaded yet.
        """
        place = _place(after)
        users = running(self._find_engine()).users
        assert users is not None
        keys = {who.name: who for who in self._keys.principals()}
        accounts = {account.name: account for account in users.accounts()}
        everybody = [(KEY, name) for name in keys] + [(USER, name) for name in accounts]
        first, total = await asyncio.to_thread(
            _chosen, everybody, place, limit=limit, search=search.casefold()
        )
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


def _chosen(
    everybody: Iterable[Place], after: Place, *, limit: int, search: str
) -> tuple[list[Place], int]:
    """Return a page behind *after* and the first of the next one, and how many fit in all."""
    fitting = [place for place in everybody if not search or search in place[1].casefold()]
    behind = (place for place in fitting if place > after)
    return heapq.nsmallest(limit + 1, behind), len(fitting)


def _rows(found: list[_Found], limit: int) -> list[KeyRow | UserRow]:
    # Patterns may be many and long, so a row is as large as it will be in the answer. The
    # sizes are asked for one by one, and rows behind the page are not made.
    rows: list[KeyRow | UserRow] = []

    def sizes() -> Iterator[int]:
        for who in found:
            rows.append(_row(who))
            yield len(msgspec.json.encode(rows[-1]))

    on_page = rows_on_page(sizes(), limit)
    return rows[:on_page]


def _row(who: _Found) -> KeyRow | UserRow:
    if isinstance(who, Principal):
        return KeyRow(who.name, list(who.publish), list(who.subscribe), who.admin)
    account, grants = who
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
