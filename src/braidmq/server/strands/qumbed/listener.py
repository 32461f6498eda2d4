"""The Qumbed listener: one UDP socket, its QUIC connections, and a `Link` for each."""

import asyncio
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from aioquic.quic.configuration import QuicConfiguration

from braidmq.broker.authorize import Principal
from braidmq.broker.quotas import Quotas
from braidmq.broker.schemas import Schemas
from braidmq.broker.settings import US_PER_MS
from braidmq.server.config.config import LimitsConfig, QumbedConfig
from braidmq.server.config.schema_files import load_schemas
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.engine import Engine
from braidmq.server.strands.listeners import OpenConnection
from braidmq.server.strands.qumbed.gateway import GatewayKey
from braidmq.server.strands.qumbed.link import Link, QumbedOptions, anonymous
from braidmq.server.strands.qumbed.stream import QumbedConnection
from braidmq.transport.binding import bind_udp, shown_address
from braidmq.transport.certificates import (
    CertificateFiles,
    load,
    load_authority,
    load_or_make,
    use_chain,
)
from braidmq.transport.door import Door, Place
from braidmq.transport.quic import QuicLimits
from braidmq.transport.quic_server import QuicListener
from braidmq.transport.quic_streams import Carrier, StreamWire
from braidmq.wal.disk import Files

STRAND: Final = "qumbed"


class Renewed(NamedTuple):
    """What was read again for the listener, and can be used."""

    files: CertificateFiles
    chain: QuicConfiguration
    authority: bytes  # empty unless clients have certificates
    schemas: Schemas


class _Quic(QuicListener):
    """QUIC connections; those that end unauthenticated are counted."""

    ended: Callable[[Carrier], None]

    def carrier_ended(self, carrier: Carrier) -> None:
        """Forget a connection."""
        super().carrier_ended(carrier)
        self.ended(carrier)


class QumbedListener:
    """The strand's listener; *named* finds the principal that a client certificate names.

    *quotas* are those of all peers together when authentication is off.
    """

    def __init__(
        self,
        config: QumbedConfig,
        limits: LimitsConfig,
        *,
        door: Door,
        named: Callable[[str], Principal | None],
        quotas: Quotas | None = None,
    ) -> None:
        """Bind the address now, so that an address in use is reported before recovery."""
        self.strand = STRAND
        self.refused: Counter[str] = Counter()  # by reason
        self._config = config
        self._limits = limits
        self._door = door
        self._named = named
        self._anonymous = anonymous(quotas)
        self._bound = bind_udp(STRAND, config.host, config.port)
        self.address = shown_address(self._bound)
        self._engine: Engine | None = None
        self._options: QumbedOptions | None = None
        self._certificate: CertificateFiles | None = None  # ours
        self._authority: bytes = b""  # certificates that vouch for those of clients
        self._quic: _Quic | None = None
        self._links: WeakKeyDictionary[Carrier, Link] = WeakKeyDictionary()
        self._connection_limits = Limits(
            output_buffer_bytes=limits.output_buffer_bytes, messages_per_s=limits.messages_per_s
        )

    def __len__(self) -> int:
        return 0 if self._quic is None else len(self._quic)

    def packet_events(self) -> dict[str, int]:
        """Return counts of events of the QUIC endpoint that belong to no connection."""
        quic = self._quic
        if quic is None:
            return {}
        return {
            "retry": quic.retries,
            "stateless_reset": quic.resets,
            "dropped_datagram": quic.dropped_datagrams,
            "dropped_write": quic.dropped_writes,
        }

    def prepare(self, files: Files, data_dir: Path, schemas_dir: Path | None) -> None:
        """Load certificate, gateway key and schemas; generate what does not exist yet.

        Raises:
            ConfigError: A file cannot be used.
            OSError: A file cannot be written.
        """
        config = self._config
        if config.tls_cert is not None and config.tls_key is not None:
            self._certificate = load(STRAND, config.tls_cert, config.tls_key)
        else:
            self._certificate = load_or_make(STRAND, data_dir)
        self._authority = self._load_authority(config)
        self._options = QumbedOptions(
            gateway=GatewayKey(files),
            schemas=load_schemas(schemas_dir),
            address=config.public_addr or self.address,
            asks_for_key=config.auth == "key",
            is_durable=config.durable,
            window_bytes=config.window_bytes,
            ttl_us=(config.message_ttl_ms or 0) * US_PER_MS,
        )

    def renewed(
        self, config: QumbedConfig, data_dir: Path, schemas_dir: Path | None
    ) -> "Renewed":
        """Read certificates and schemas again, for `renew`; on any thread.

        Raises:
            ConfigError: A file cannot be used.
            OSError: A file cannot be read.
        """
        if config.tls_cert is not None and config.tls_key is not None:
            files = load(STRAND, config.tls_cert, config.tls_key)
        else:
            files = load_or_make(STRAND, data_dir)
        chain = QuicConfiguration(is_client=False)
        use_chain(chain, files.certificate, files.key)
        authority = self._load_authority(config) or self._authority
        return Renewed(files, chain, authority, load_schemas(schemas_dir))

    def _load_authority(self, config: QumbedConfig) -> bytes:
        # Whether clients have certificates is a matter of the start.
        if self._config.auth != "mtls" or config.tls_ca is None:
            return b""
        return load_authority(STRAND, config.tls_ca)

    def renew(self, renewed: "Renewed", quotas: Quotas) -> None:
        """Use what was read again from now on, and close what revoked principals have open."""
        assert self._options is not None
        assert self._quic is not None
        self._certificate = renewed.files
        self._authority = renewed.authority
        self._quic.renew(renewed.chain)
        self._options.schemas = renewed.schemas
        self._anonymous.quotas = quotas
        for carrier, link in list(self._links.items()):
            if link.principal is not None and link.principal.gone:
                carrier.close()

    @property
    def schema_ids(self) -> list[str]:
        """The ids of all schemas."""
        return [] if self._options is None else self._options.schemas.ids()

    @property
    def fingerprint(self) -> str:
        """The fingerprint of our certificate, for pinning: SHA-256 in lower-case hex."""
        assert self._certificate is not None
        return self._certificate.fingerprint

    @property
    def gateway_public_key(self) -> bytes:
        """The public key that we seal with, for pinning."""
        assert self._options is not None
        return self._options.gateway.public_key

    async def start(self, engine: Engine) -> None:
        """Accept connections."""
        assert self._certificate is not None
        self._engine = engine
        self._quic = _Quic(
            self._bound,
            certificate=self._certificate.certificate,
            key=self._certificate.key,
            make_stream=self._accept,
            limits=QuicLimits(
                output_buffer_bytes=self._limits.output_buffer_bytes,
                handshake_timeout_s=self._limits.handshake_timeout_s,
            ),
            admit=self._admit,
            asks_for_certificates=self._config.auth == "mtls",
        )
        self._quic.ended = self._ended

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open go on."""
        if self._quic is None:
            self._bound.close()
        else:
            self._quic.stop_accepting()

    def close_connections(self) -> None:
        """Send what is written on every stream, then close the connections."""
        if self._quic is not None:
            self._quic.close_connections()

    def abort_connections(self) -> None:
        """Close every connection, and the socket, at once."""
        if self._quic is not None:
            self._quic.close()

    def close_idle(self) -> None:
        """Close the connections that have been silent for too long."""
        if self._limits.idle_timeout_s > 0 and self._quic is not None:
            heard_since = asyncio.get_running_loop().time() - self._limits.idle_timeout_s
            for carrier in list(self._quic.carriers):
                if carrier.heard_at < heard_since:
                    self.refused["idle"] += 1
                    carrier.close()

    def close_revoked(self) -> int:
        """Return 0: the engine closes the streams, and `renew` their connections."""
        return 0

    def open_connections(self) -> list[OpenConnection]:
        """Return the open connections on which a stream was opened."""
        following: Counter[int] = Counter()
        names: dict[int, str] = {}
        # A connection of the engine is a stream; those of one peer share the peer's number.
        for connection in [] if self._engine is None else self._engine.connections:
            if connection.strand == STRAND:
                following[connection.number] += len(connection.following)
                if connection.principal is not None:
                    names[connection.number] = connection.principal.name
        return [
            OpenConnection(
                number=link.number,
                strand=STRAND,
                peer=carrier.peer_address,
                principal=names.get(link.number),
                since_us=link.since_us,
                subscriptions=following[link.number],
                in_bytes=None,
                out_bytes=None,
                close=carrier.close,
            )
            for carrier, link in self._links.items()
        ]

    # The QUIC endpoint calls these.

    def _admit(self, peer_address: str) -> Place:
        place = self._door.enter(peer_address)
        if place.refusal:
            self.refused[place.refusal] += 1
        return place

    def _ended(self, carrier: Carrier) -> None:
        link = self._links.pop(carrier, None)
        if link is None or not link.is_authenticated:
            self.refused["unauthenticated"] += 1

    def _accept(self, wire: StreamWire) -> Connection:
        assert self._engine is not None
        assert self._options is not None
        link = self._links.get(wire.carrier)
        if link is None:
            link = Link(
                self._principal_of(wire.carrier),
                self._limits.messages_per_s,
                self._engine.leave,
            )
            link.number = self._engine.next_number()
            link.since_us = self._engine.now_us()
            self._links[wire.carrier] = link
        connection = QumbedConnection(
            self._engine, wire, self._connection_limits, self._options, link
        )
        self._engine.welcome(connection, STRAND, link.number)
        return connection

    def _principal_of(self, carrier: Carrier) -> Principal | None:
        """Return the peer's principal if the connection identifies it."""
        if self._config.auth == "none":
            return self._anonymous
        if not self._authority:
            return None
        name = carrier.quic.peer_name(self._authority)
        return self._named(name) if name else None
