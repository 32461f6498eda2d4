"""The Blip strand: publishing confirmed by fences, and subscriptions.

Each subscription has a connection of its own, because a delivery does not say which
subscription it is for.
"""

from functools import partial
from typing import Final

from braidmq.client.answers import Stats
from braidmq.client.blip.connection import BlipConnection, Receiver
from braidmq.client.blip.publishing import BlipPosting
from braidmq.client.blip.subscription import BlipSubscription, Traits
from braidmq.client.connection import dial
from braidmq.client.errors import ClientError, InvalidArgument, NotSupported
from braidmq.client.link import Dialer
from braidmq.client.options import Options, PublishOptions, SubscribeOptions
from braidmq.client.publishing import check_topic
from braidmq.client.strand import Strand
from braidmq.client.url import Endpoint
from braidmq.wire.blip import frames, messages

KEY_BYTES_MAX: Final = frames.LENGTH_MAX_UNAUTHENTICATED - frames.LENGTH_MIN - 2
"""A longer key does not fit into the largest frame that a broker accepts before it is sent."""

SUBSCRIPTION_ID_MAX: Final = 2**64 - 1
"""The largest that fits into a frame."""


class BlipStrand(Strand[BlipConnection, bytes]):
    """A client's strand that speaks Blip.

    Raises:
        InvalidArgument: There is no usable API key.
    """

    name = "blip"

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        if not 1 <= len(endpoint.key.encode(errors="replace")) <= KEY_BYTES_MAX:
            form = f"blip://KEY@{endpoint.address}"
            raise InvalidArgument(f"no usable API key: connect to {form} or pass key=")
        self._traits = Traits()
        self._latest: BlipPosting | None = None
        super().__init__(Dialer(endpoint, options, partial(dial, BlipConnection)), Receiver())

    def _posting(self, topic: str, options: PublishOptions) -> BlipPosting:
        # Most programs publish to one topic again and again: lay its name out only once.
        latest = self._latest
        if latest is None or latest.topic != topic or latest.qos != options.qos:
            latest = self._latest = BlipPosting(topic, options.qos)
        return latest

    def _subscription(self, topic: str, options: SubscribeOptions) -> BlipSubscription:
        check_topic(topic)
        number = options.subscription_id
        if number is not None and not 1 <= number <= SUBSCRIPTION_ID_MAX:
            problem = f"must be at least 1 and at most {SUBSCRIPTION_ID_MAX}, not {number}"
            raise InvalidArgument(f"subscription_id {problem}")
        return BlipSubscription(
            topic, options, dialer=self._dialer, traits=self._traits, on_closed=self._forget
        )

    async def stats(self) -> Stats:
        """Return the broker's numbers.

        Raises:
            NotSupported: The broker knows only the frames of the specification.
        """
        if not self._traits.credit:
            # STATS is an extension, as CREDIT is: a broker without it would hang up.
            raise NotSupported(self.name, "stats at this broker")
        connection = await self._link.ready()
        answer = await connection.ask(
            lambda number: frames.encode(frames.STATS, number),
            lambda refusal: ClientError(f"stats refused: {refusal.code} {refusal.text}"),
        )
        assert isinstance(answer, messages.Stats)
        return Stats(
            answer.topics,
            answer.subscribers,
            answer.messages_published,
            answer.messages_delivered,
            answer.inflight,
        )
