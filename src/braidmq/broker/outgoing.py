"""Outgoing records: numbered, on their way to the log, not committed yet."""

from typing import TYPE_CHECKING, final

from braidmq.base.ids import FIRST_ID
from braidmq.broker.delivery.acknowledgements import Progress
from braidmq.broker.delivery.channels import Entry
from braidmq.broker.records import MessageEncoder
from braidmq.broker.topics import Message, Pending

if TYPE_CHECKING:
    from braidmq.broker.delivery.followers import Follower
    from braidmq.broker.delivery.queues import Queue
    from braidmq.broker.delivery.subscriptions import Subscription


@final
class Started(Pending):
    """A new subscription."""

    def __init__(self, subscription: "Subscription") -> None:
        self.subscription: Subscription = subscription


@final
class Followed(Pending):
    """A new follower."""

    def __init__(self, follower: "Follower") -> None:
        self.follower: Follower = follower


@final
class Ended(Pending):
    """The end of a subscription or a follower, by request or because its lease is over."""

    def __init__(self, subscription_id: int, reason: int) -> None:
        self.subscription_id: int = subscription_id
        self.reason: int = reason


@final
class Declared(Pending):
    """A new queue."""

    def __init__(self, queue: "Queue") -> None:
        self.queue: Queue = queue


@final
class Deleted(Pending):
    """The end of a queue."""

    def __init__(self, queue_id: int) -> None:
        self.queue_id: int = queue_id


@final
class Advanced(Pending):
    """The progress of some channels and followers."""

    def __init__(self, progress: dict[int, Progress]) -> None:
        self.progress: dict[int, Progress] = progress


@final
class Buried(Pending):
    """A dead letter, or one that is sent back, and the entry it came from."""

    def __init__(
        self,
        letter: Message,
        entry: Entry,
        message: Message,
        is_letter: bool,  # noqa: FBT001 - of two kinds
    ) -> None:
        self.is_letter: bool = is_letter
        self.settles_ledger: bool = False  # of a view's entry: no other view had settled it
        self.letter: Message = letter
        self.entry: Entry = entry
        self.message: Message = message


class Outgoing:
    """Gives ids, collects records, and remembers what each was about until it is committed."""

    def __init__(self) -> None:
        self.next_id: int = FIRST_ID
        self.bytes: int = 0  # of message bodies that are not committed
        self.encoder: MessageEncoder = MessageEncoder()
        self._records: list[bytes] = []
        self._pending: list[Pending] = []

    @property
    def last_id(self) -> int:
        """The newest id that was given."""
        return self.next_id - 1

    def __len__(self) -> int:
        return len(self._records)

    def add(self, item: Pending, record: bytes) -> int:
        """Give *item* the next id and queue its record."""
        given = self.next_id
        self.next_id = given + 1
        item.id = given
        self._records.append(record)
        self._pending.append(item)
        return given

    def pending(self) -> list[Pending]:
        """Return everything that is not committed, oldest first."""
        return list(self._pending)

    def take_records(self) -> list[bytes]:
        """Take the records that were queued since the last call."""
        records = self._records
        self._records = []
        return records

    def take_committed(self, up_to: int) -> list[Pending]:
        """Take the items with ids up to *up_to*, oldest first."""
        pending = self._pending
        if not pending or pending[0].id > up_to:
            return []
        count = up_to + 1 - pending[0].id  # ids follow each other without a gap
        if count >= len(pending):
            self._pending = []
            return pending
        self._pending = pending[count:]
        return pending[:count]

    def take_back(self, from_id: int) -> list[Pending]:
        """Take back everything from *from_id* on; the log has used none of those ids."""
        taken: list[Pending] = []
        while self._pending and self._pending[-1].id >= from_id:
            taken.append(self._pending.pop())
        taken.reverse()
        self._records = []
        self.next_id = from_id
        return taken
