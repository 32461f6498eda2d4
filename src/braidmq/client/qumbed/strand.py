"""The client over the Qumbed strand: publishing, sealed or not, and subscriptions.

One connection publishes. Every subscription has a connection of its own, so that a slow handler
holds up nobody else.
"""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Final

from braidmq.client.deliveries import Payload, QueueInfo, Receipt, Stats
from braidmq.client.errors import InvalidArgument, NotSupported, PublishError, PublishRefused
from braidmq.client.options import Options, PublicKey, Trusting
from braidmq.client.publishing import check_confirmed, chunks
from braidmq.client.qumbed.boxes import KeyPair, check_public_key, parse_public_key
from braidmq.client.qumbed.connection import (
    QumbedConnection,
    Tenant,
    identity_of,
    open_connection,
    trust_of,
)
from braidmq.client.qumbed.envelope import Opener, Sealer
from braidmq.client.qumbed.publishing import (
    MESSAGE_ID_BYTES_MAX,
    STRAND,
    Post,
    Posting,
    QumbedFlight,
    Sealing,
    check_topic,
)
from braidmq.client.qumbed.schemas import Schemas, check_schema_id
from braidmq.client.qumbed.subscription import QumbedSubscription
from braidmq.client.qumbed.trust import TrustList
from braidmq.client.strand import StrandClient
from braidmq.client.surface import PREFETCH_DEFAULT, OnGap, Subscription
from braidmq.client.url import Endpoint
from braidmq.wire.qumbed.session import RATE_LIMIT

API_KEY_BYTES_MAX: Final = 65_535
"""A broker's keys are far shorter."""

_PUBLISHER_ID_BYTES: Final = 16
"""Enough that no two publishers ever choose the same."""

_NUMBER_DIGITS_MAX: Final = 20

assert 2 * _PUBLISHER_ID_BYTES + 1 + _NUMBER_DIGITS_MAX <= MESSAGE_ID_BYTES_MAX


async def connect(endpoint: Endpoint, options: Options) -> "QumbedClient":
    """Return a client that is connected.

    Raises:
        InvalidArgument: A key, a schema or an option cannot be used.
        NotSupported: An option is of other strands.
        ConnectionFailed: No connection could be made, or it is another broker;
            AuthenticationFailed: we are not known.
    """
    if options.tls is not None:
        raise NotSupported(STRAND, "tls: use a fingerprint, ca_file or insecure")
    _check_api_key(endpoint.key)
    trust_of(endpoint, options)
    identity_of(options)
    client = QumbedClient(endpoint, options)
    await client.open()
    return client


class QumbedClient(StrandClient[QumbedConnection, Post]):
    """A client that speaks Qumbed; :func:`connect` makes it."""

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        super().__init__(endpoint, options)
        self._keys = _key_pair(options)
        self._trust = _trust(options)
        self._schemas = Schemas(options.schemas)
        self._sealer = Sealer(self._keys, now_ms=_now_ms())
        # What was taken must not be taken again because somebody subscribes again: an opener
        # is used by one subscription after the other.
        self._openers: dict[tuple[str, bool], list[Opener]] = {}
        self._publisher = secrets.token_hex(_PUBLISHER_ID_BYTES)
        self._numbers = count(1)

    @property
    def public_key(self) -> bytes:
        """What others seal for, so that we can open it: 32 bytes."""
        return self._keys.public_key

    @property
    def gateway_public_key(self) -> bytes:
        """The broker's own key, as it says; empty while there is no connection."""
        return b"" if self._link.current is None else self._link.current.gateway_key

    async def publish(
        self,
        topic: str,
        payload: Payload,
        *,
        qos: int = 1,
        headers: Mapping[str, str] | None = None,
        priority: int | None = None,
        ttl: float | None = None,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> Receipt:
        """Publish a message; return when it is durable."""
        for feature, value in (("headers", headers), ("priority", priority), ("ttl", ttl)):
            if value is not None:
                raise NotSupported(STRAND, feature)
        posting = self._posting(
            topic, qos=qos, recipient=recipient, schema=schema, envelope=envelope
        )
        chunk: list[Post | PublishError] = [posting.post(payload)]
        (result,) = await self._fly(posting, [chunk], retry=retry)
        if isinstance(result, PublishError):
            raise result
        return result

    async def publish_many(
        self,
        topic: str,
        payloads: Iterable[Payload],
        *,
        qos: int = 1,
        recipient: PublicKey | None = None,
        schema: str = "",
        envelope: bool = False,
        retry: bool = False,
    ) -> list[Receipt | PublishError]:
        """Publish messages in one pipeline; return a receipt or an error for each, in order."""
        posting = self._posting(
            topic, qos=qos, recipient=recipient, schema=schema, envelope=envelope
        )
        return await self._fly(posting, chunks(posting.post, payloads), retry=retry)

    def subscribe(
        self,
        topic: str,
        *,
        qos: int = 1,
        prefetch: int = PREFETCH_DEFAULT,
        subscription_id: int | None = None,
        keep: bool | None = None,
        on_gap: OnGap | None = None,
        schema: str = "",
        envelope: bool = False,
    ) -> QumbedSubscription:
        """Return a subscription, to be entered with `async with` or awaited.

        With *keep*, leaving does not unsubscribe: a broker with `qumbed.offline_s` keeps the
        place for our key.
        """
        for feature, value in (
            ("subscription ids: a returning key is known", subscription_id),
            ("on_gap: the broker does not tell", on_gap),
        ):
            if value is not None:
                raise NotSupported(STRAND, feature)
        self._check_open()
        check_topic(topic)
        check_confirmed(STRAND, qos)
        check_schema_id(schema)
        if prefetch < 1:
            raise InvalidArgument(f"prefetch is at least 1, not {prefetch}")
        spare = self._openers.setdefault((topic, envelope), [])
        opener = (
            spare.pop() if spare else Opener(self._keys, trust=self._trust, required=envelope)
        )

        def closed(subscription: Subscription) -> None:
            if subscription in self._subscriptions:  # told once, or two would share it
                self._subscriptions.discard(subscription)
                spare.append(opener)

        subscription = QumbedSubscription(
            topic,
            public_key=self._keys.public_key,
            opener=opener,
            schema=schema,
            schemas=self._schemas,
            prefetch=prefetch,
            keep=bool(keep),
            endpoint=self._endpoint,
            options=self._options,
            health=self._health,
            on_closed=closed,
        )
        self._subscriptions.add(subscription)
        return subscription

    async def declare_queue(
        self,
        name: str,
        *,
        mode: str | None = None,
        max_size: int | None = None,
        ttl: float | None = None,
        dead_letters: bool | None = None,
        dead_letter_name: str | None = None,
        overflow: str | None = None,
        max_attempts: int | None = None,
        durable: bool | None = None,
    ) -> QueueInfo:
        """Raise NotSupported: Qumbed has topics only."""
        del name, mode, max_size, ttl, dead_letters, dead_letter_name, overflow
        del max_attempts, durable
        raise NotSupported(STRAND, "queues")

    async def queue_info(self, name: str) -> QueueInfo | None:
        """Raise NotSupported: Qumbed has topics only."""
        del name
        raise NotSupported(STRAND, "queues")

    async def list_queues(self) -> list[str]:
        """Raise NotSupported: Qumbed has topics only."""
        raise NotSupported(STRAND, "queues")

    async def delete_queue(self, name: str) -> None:
        """Raise NotSupported: Qumbed has topics only."""
        del name
        raise NotSupported(STRAND, "queues")

    async def stats(self) -> Stats:
        """Raise NotSupported: Qumbed has no numbers."""
        raise NotSupported(STRAND, "stats")

    # --- inside -----------------------------------------------------------------------------

    async def _dial(self, on_lost: Callable[[QumbedConnection], None]) -> QumbedConnection:
        return await open_connection(self._endpoint, self._options, Tenant(), on_lost)

    def _next_id(self) -> str:
        return f"{self._publisher}-{next(self._numbers)}"

    def _is_worth_repeating(self, error: PublishError) -> bool:
        is_too_soon = isinstance(error, PublishRefused) and error.code == RATE_LIMIT
        return is_too_soon or super()._is_worth_repeating(error)

    def _renewed(
        self, one: Post | PublishError, result: Receipt | PublishError
    ) -> Post | PublishError:
        was_refused = isinstance(result, PublishRefused)
        if was_refused and isinstance(one, Post) and one.renewed is not None:
            return one.renewed()
        return one

    def _posting(
        self, topic: str, *, qos: int, recipient: PublicKey | None, schema: str, envelope: bool
    ) -> Posting:
        return Posting(
            topic,
            self._next_id,
            qos=qos,
            schema=schema,
            schemas=self._schemas,
            sealing=self._sealing(topic, recipient, schema, envelope=envelope),
        )

    def _sealing(
        self, topic: str, recipient: PublicKey | None, schema: str, *, envelope: bool
    ) -> Sealing | None:
        if recipient is None:
            if envelope:
                raise InvalidArgument("an envelope is sealed: name its recipient")
            return None
        key = _public_key(recipient)
        if key == self._keys.public_key:
            raise InvalidArgument("a message that is sealed for its own sender is refused")

        def seal(payload: bytes) -> bytes:
            if not envelope:
                return self._keys.seal(payload, key)
            return self._sealer.seal(
                payload, key, topic=topic, schema_id=schema, now_ms=_now_ms()
            )

        return Sealing(key, self._keys.public_key, seal, is_numbered=envelope)

    async def _fly(
        self,
        posting: Posting,
        chunks: Iterable[list[Post | PublishError]],
        *,
        retry: bool,
    ) -> list[Receipt | PublishError]:
        return await self._publish_all(
            chunks,
            lambda chunk, connection: QumbedFlight(posting, chunk, connection),
            retry=retry,
        )


def _check_api_key(key: str) -> None:
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidArgument("an API key is a text without lone surrogates") from None
    if size > API_KEY_BYTES_MAX:
        raise InvalidArgument(f"an API key has at most {API_KEY_BYTES_MAX} bytes")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _public_key(key: PublicKey) -> bytes:
    if isinstance(key, str):
        return parse_public_key(key)
    check_public_key(key)
    return key


def _key_pair(options: Options) -> KeyPair:
    key = options.private_key
    if key is None:
        return KeyPair.generate()
    if isinstance(key, KeyPair):
        return key
    if isinstance(key, Path):
        return KeyPair.from_file(key)
    if isinstance(key, str):
        return KeyPair.from_hex(key)
    return KeyPair(key if isinstance(key, bytes) else key.reveal_private_key())


def _trust(options: Options) -> Trusting | None:
    trust = options.trust
    if trust is None:
        return None
    if isinstance(trust, bytes | str):
        return TrustList([_public_key(trust)])
    if isinstance(trust, Iterable):
        return TrustList([_public_key(key) for key in trust])
    return trust
