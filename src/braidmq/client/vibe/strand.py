"""The Vibe strand: publishing into queues, subscriptions, and the queues themselves.

One connection publishes and manages queues. Each subscription has a connection of its own, so
that a queue can be subscribed to more than once, and a slow handler delays no other.
"""

from functools import partial
from typing import Final

from braidmq.client.connection import Post, dial
from braidmq.client.errors import InvalidArgument
from braidmq.client.link import Dialer
from braidmq.client.options import Options, PublishOptions, SubscribeOptions
from braidmq.client.publishing import message_ids
from braidmq.client.strand import Strand
from braidmq.client.url import Endpoint
from braidmq.client.vibe.connection import (
    OFFERED_COMPRESSION,
    Receiver,
    VibeConnection,
    credentials,
)
from braidmq.client.vibe.publishing import VibePosting, check_queue
from braidmq.client.vibe.queues import VibeQueues
from braidmq.client.vibe.subscription import VibeSubscription
from braidmq.wire.vibe import frames
from braidmq.wire.vibe.session import PREFETCH_MAX, RATE_LIMITED

CREDENTIAL_BYTES_MAX: Final = (
    frames.BODY_MAX_UNAUTHENTICATED - 320 - len(OFFERED_COMPRESSION)  # 320: the fixed fields
)
"""Longer ones do not fit into the largest frame that a broker accepts before they are sent."""

_PUBLISHER_ID_BYTES: Final = 8


class VibeStrand(Strand[VibeConnection, Post]):
    """A client's strand that speaks Vibe.

    Raises:
        InvalidArgument: There is neither a token nor a user name with a password.
    """

    name = "vibe"
    busy_codes = frozenset({RATE_LIMITED})

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        if not _are_usable(*credentials(endpoint).values()):
            forms = f"vibe://TOKEN@{endpoint.address} or vibe://USER:PASSWORD@…"
            raise InvalidArgument(f"no usable credentials: connect to {forms}, or pass key=")
        self._next_id = message_ids(_PUBLISHER_ID_BYTES)
        super().__init__(Dialer(endpoint, options, partial(dial, VibeConnection)), Receiver())
        self.queues = VibeQueues(self._link)

    def _posting(self, topic: str, options: PublishOptions) -> VibePosting:
        return VibePosting(
            topic, self._next_id, headers=options.headers, priority=options.priority
        )

    def _subscription(self, topic: str, options: SubscribeOptions) -> VibeSubscription:
        check_queue(topic)
        if options.prefetch > PREFETCH_MAX:
            raise InvalidArgument(
                f"prefetch must be at most {PREFETCH_MAX}, not {options.prefetch}"
            )
        return VibeSubscription(
            topic, prefetch=options.prefetch, dialer=self._dialer, on_closed=self._forget
        )


def _are_usable(*texts: str) -> bool:
    try:
        size = sum(len(text.encode()) for text in texts)
    except UnicodeEncodeError:
        return False
    return all(texts) and size <= CREDENTIAL_BYTES_MAX
