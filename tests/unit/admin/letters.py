"""Helpers that read the dead letters of a broker."""

from typing import Any

from braidmq.admin.dead_letters import LettersList
from braidmq.testing.broker import RunningBroker
from tests.unit.admin.queue_broker import status_of
from tests.unit.admin.world import World

SMALL_WINDOW: dict[str, Any] = {"delivery": {"window": 4}}


async def ids(world: World, queue: str, limit: int = 100) -> list[str]:
    """Return the ids of all letters, read page by page."""
    found: list[str] = []
    following: int | None = 1
    while following is not None:
        page = await letters(world, queue, from_offset=following, limit=limit)
        assert len(page.letters) <= limit
        found += [letter.id for letter in page.letters]
        following = page.next
    return found


async def letters(
    world: World | RunningBroker, queue: str, *, from_offset: int = 1, limit: int = 100
) -> LettersList:
    status = world.status if isinstance(world, World) else status_of(world)
    return await status.letters.letters(queue, from_offset=from_offset, limit=limit)


def numbered(count: int) -> list[bytes]:
    return [b"%03d" % number for number in range(count)]


def named(payloads: list[bytes]) -> list[str]:
    return [f"id-{payload[:20].decode()}" for payload in payloads]
