"""The Qumbed strand: publishing, sealed or not, and subscriptions.

Each subscription has a connection of its own, so that a slow handler delays no other.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from braidmq.base.schemas import SCHEMA_ID_BYTES_MAX
from braidmq.client.connection import Post
from braidmq.client.errors import InvalidArgument
from braidmq.client.link import Dialer
from braidmq.client.options import (
    Options,
    PublishOptions,
    SubscribeOptions,
    Trusting,
)
from braidmq.client.publishing import check_topic, message_ids, utf8
from braidmq.client.qumbed.boxes import KeyPair, parse_public_key
from braidmq.client.qumbed.connection import (
    QumbedConnection,
    Receiver,
    identity_of,
    open_connection,
    trust_of,
)
from braidmq.client.qumbed.envelope import Opener, Sealer
from braidmq.client.qumbed.publishing import (
    MESSAGE_ID_BYTES_MAX,
    QumbedPosting,
    Sealing,
)
from braidmq.client.qumbed.schemas import Schemas
from braidmq.client.qumbed.subscription import QumbedSubscription
from braidmq.client.qumbed.trust import TrustList
from braidmq.client.strand import Strand
from braidmq.client.subscription import Subscription
from braidmq.client.url import Endpoint
from braidmq.wire.qumbed.session import RATE_LIMIT

API_KEY_BYTES_MAX: Final = 65_535
"""Far more than any key that a broker issues."""

_PUBLISHER_ID_BYTES: Final = 16
"""The broker deduplicates by message id, so two publishers must never choose the same."""

_NUMBER_DIGITS_MAX: Final = 20

assert 2 * _PUBLISHER_ID_BYTES + 1 + _NUMBER_DIGITS_MAX <= MESSAGE_ID_BYTES_MAX


class QumbedStrand(Strand[QumbedConnection, Post]):
    """A client's strand that speaks Qumbed.

    Raises:
        InvalidArgument: A key, a schema or an option is invalid.
    """

    name = "qumbed"
    busy_codes = frozenset({RATE_LIMIT})

    def __init__(self, endpoint: Endpoint, options: Options) -> None:
        utf8("an API key", endpoint.key, API_KEY_BYTES_MAX)
        # Each connection reads these again, so that a renewed certificate is used. Here they
        # only make a mistake raise at `connect`, and not at some later reconnect.
        trust_of(endpoint, options)
        identity_of(options)
        self._keys = _key_pair(options)
        self._trust = _trust(options)
        self._schemas = Schemas(options.schemas)
        self._sealer = Sealer(self._keys, now_ms=_now_ms())
        # Openers remember what they have opened. They are reused by the next subscription to
        # the same topic, so that subscribing again does not let a replay through.
        self._openers: dict[tuple[str, bool], list[Opener]] = {}
        self._next_id = message_ids(_PUBLISHER_ID_BYTES)
        super().__init__(Dialer(endpoint, options, open_connection), Receiver())

    @property
    def public_key(self) -> bytes:
        """The key that others seal for, so that this client can open it: 32 bytes."""
        return self._keys.public_key

    @property
    def gateway_public_key(self) -> bytes:
        """The broker's own key, as the broker reports it; empty without a connection."""
        return b"" if self._link.current is None else self._link.current.gateway_key

    def _posting(self, topic: str, options: PublishOptions) -> QumbedPosting:
        return QumbedPosting(
            topic,
            self._next_id,
            schema=options.schema,
            schemas=self._schemas,
            sealing=self._sealing(topic, options),
        )

    def _sealing(self, topic: str, options: PublishOptions) -> Sealing | None:
        if options.recipient is None:
            if options.envelope:
                raise InvalidArgument("an envelope is sealed, so it needs a recipient")
            return None
        key = parse_public_key(options.recipient)
        if key == self._keys.public_key:
            raise InvalidArgument("a message cannot be sealed for its own sender")

        def seal(payload: bytes) -> bytes:
            if not options.envelope:
                return self._keys.seal(payload, key)
            return self._sealer.seal(
                payload, key, topic=topic, schema_id=options.schema, now_ms=_now_ms()
            )

        return Sealing(key, self._keys.public_key, seal, is_numbered=options.envelope)

    def _subscription(self, topic: str, options: SubscribeOptions) -> QumbedSubscription:
        check_topic(topic)
        utf8("a schema id", options.schema, SCHEMA_ID_BYTES_MAX)
        spare = self._openers.setdefault((topic, options.envelope), [])
        opener = (
            spare.pop()
            if spare
            else Opener(self._keys, trust=self._trust, required=options.envelope)
        )

        def closed(subscription: Subscription) -> None:
            if subscription in self._subscriptions:  # only once, or two would share the opener
                self._forget(subscription)
                spare.append(opener)

        return QumbedSubscription(
            topic,
            options,
            public_key=self._keys.public_key,
            opener=opener,
            schemas=self._schemas,
            dialer=self._dialer,
            on_closed=closed,
        )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


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
        return TrustList([parse_public_key(trust)])
    if isinstance(trust, Iterable):
        return TrustList([parse_public_key(key) for key in trust])
    return trust
