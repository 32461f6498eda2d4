"""Queues as an administrator over HTTP has them: looked at, declared, deleted, purged.

Who may do what has been decided before; what a Vibe peer does with queues is in `vibe`. What
changes something is over when the log has committed it.
"""

import asyncio
import heapq
from collections.abc import Callable, Collection, Iterable
from typing import Final

from braidmq.admin.http.refusals import QueueExistsError, UnknownQueueError
from braidmq.admin.queries.page_bounds import name_bytes, rows_on_page
from braidmq.admin.queries.ranking import ranked_page
from braidmq.admin.queues import BY_NAME, QueuesPage
from braidmq.broker import dead_letters
from braidmq.broker.delivery.queues import QUEUES_MAX, Queue
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.refusals import UnavailableError
from braidmq.server.engine.requests import FindEngine, changing, running
from braidmq.server.strands.vibe.declarations import declared_policy, facts_of
from braidmq.wire.vibe.queue_options import QueueFacts, QueueOptions

RANKED_AT_ONCE: Final = 1_000
"""Queues that are looked at for a page before others have their turn: there may be many."""


class QueueAdministration:
    """What `admin` asks about queues."""

    def __init__(self, find_engine: FindEngine) -> None:
        self._find_engine = find_engine

    async def page(
        self, *, after: str, limit: int, visible: Callable[[str], bool], sort: str = BY_NAME
    ) -> QueuesPage:
        """Return up to *limit* visible queues behind *after*, by name or by what waits.

        Raises:
            BadCursorError: *after* is not what the sort goes on from.
            UnavailableError: The broker is not up.
        """
        queues = running(self._find_engine()).broker.queues.by_name
        if sort == BY_NAME:
            return await page_of(
                list(queues), queues, after=after, limit=limit, visible=visible
            )
        chosen = await asyncio.to_thread(_chosen, list(queues), visible)
        ranked: list[tuple[int, str, Queue]] = []
        for at in range(0, len(chosen), RANKED_AT_ONCE):
            # Not on the thread: what waits changes meanwhile.
            found = _still_there(queues, chosen[at : at + RANKED_AT_ONCE])
            ranked += [(queue.waiting(), queue.topic.name, queue) for queue in found]
            await asyncio.sleep(0)
        page, following = await asyncio.to_thread(ranked_page, ranked, after=after, limit=limit)
        return QueuesPage([facts_of(queue) for queue in page], following, len(ranked))

    def facts(self, name: str) -> QueueFacts:
        """Return what there is to know of one queue.

        Raises:
            UnknownQueueError: There is none of that name.
            UnavailableError: The broker is not up.
        """
        return facts_of(_found(running(self._find_engine()), name))

    async def create(self, name: str, options: QueueOptions) -> bool:
        """Declare a queue; say whether it is new.

        Raises:
            OptionError: An option cannot be had.
            QueueExistsError: It exists with other options.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        queues = engine.broker.queues
        if options.dead_letter_name == dead_letters.queue_for(name):
            options.dead_letter_name = None  # that is where they go without a word
        policy = declared_policy(name, options, queues.new_policy(name))
        queue = queues.by_name.get(name)
        is_new = queue is None
        if queue is None:
            if engine.broker.refusal:
                raise UnavailableError(engine.broker.refusal)
            has_room = len(queues.by_name) < QUEUES_MAX
            topic = engine.broker.topics.get(name) if has_room else None
            if topic is None:
                raise UnavailableError("too many queues")
            queue = queues.declare(topic, policy, engine.now_us())
        elif queue.policy.values() != policy.values():
            raise QueueExistsError
        await engine.waiters.committed(queue.id)
        return is_new

    async def delete(self, name: str) -> None:
        """End a queue, with all that waits in it; its dead letters stay.

        Raises:
            UnknownQueueError: There is none of that name.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        record_id = engine.broker.queues.delete(_found(engine, name))
        await engine.waiters.committed(record_id, lasts=True)

    async def purge(self, name: str) -> int:
        """Let go of everything that waits in a queue; return how many messages that were.

        Raises:
            UnknownQueueError: There is none of that name.
            UnavailableError: Not now.
        """
        engine = changing(self._find_engine())
        purged = engine.broker.queues.purge(_found(engine, name), engine.now_us())
        await engine.waiters.committed(engine.broker.barrier(), lasts=True)
        return purged


async def page_of(
    names: Collection[str],
    queues: dict[str, Queue],
    *,
    after: str,
    limit: int,
    visible: Callable[[str], bool],
) -> QueuesPage:
    """Return the first *limit* visible queues among *names* that sort behind *after*."""
    chosen = await asyncio.to_thread(_chosen, names, visible)
    behind = (name for name in chosen if name > after)
    first = await asyncio.to_thread(heapq.nsmallest, limit + 1, behind)
    on_page = rows_on_page(map(name_bytes, first), limit)
    shown = [facts_of(queue) for queue in _still_there(queues, first[:on_page])]
    following = first[on_page - 1] if len(first) > on_page else None
    return QueuesPage(shown, following, len(chosen))


def _chosen(names: Collection[str], visible: Callable[[str], bool]) -> list[str]:
    return [name for name in names if visible(name)]


def _still_there(queues: dict[str, Queue], names: Iterable[str]) -> list[Queue]:
    """Return the queues of these names; some may have been deleted since they were chosen."""
    return [queues[name] for name in names if name in queues]


def _found(engine: Engine, name: str) -> Queue:
    queue = engine.broker.queues.by_name.get(name)
    if queue is None:
        raise UnknownQueueError
    return queue
