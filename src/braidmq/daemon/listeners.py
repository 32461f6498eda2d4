"""The listeners of a daemon, made from its configuration.

Each is imported when it is made, with the libraries that it needs: a broker without HTTP loads
no web server, one without Qumbed no QUIC, and mDNS is rarely on.
"""

from importlib.metadata import version
from itertools import count
from typing import TYPE_CHECKING

import structlog

from braidmq.admin.status import Status
from braidmq.server.access.keys import KeyRing
from braidmq.server.config.config import (
    Config,
    HttpConfig,
    QumbedConfig,
    VibeConfig,
    quotas_for,
)
from braidmq.server.engine.connection import Connection, Limits
from braidmq.server.engine.engine import Engine
from braidmq.server.strands.listeners import MakeConnection
from braidmq.server.strands.vibe.connection import VibeConnection
from braidmq.server.strands.vibe.gate import VibeOptions
from braidmq.transport.door import Door
from braidmq.transport.tcp import TcpWire

if TYPE_CHECKING:
    from braidmq.admin.http.server import AdminServer
    from braidmq.server.strands.qumbed.listener import QumbedListener
    from braidmq.server.strands.qumbed.mdns import Announcer

_log = structlog.get_logger(__name__)


def admin_server(config: HttpConfig, status: Status, door: Door) -> "AdminServer":
    """Return the server of the HTTP API and the dashboard, not yet started."""
    from braidmq.admin.http.app import build_app
    from braidmq.admin.http.server import AdminServer

    return AdminServer(
        build_app(status, loopback=config.loopback),
        host=config.host,
        port=config.port,
        door=door,
        tls_cert=config.tls_cert,
        tls_key=config.tls_key,
    )


def qumbed_listener(config: Config, door: Door, keys: KeyRing) -> "QumbedListener":
    """Return the listener of the Qumbed strand, bound to its address."""
    from braidmq.server.strands.qumbed.listener import QumbedListener

    if config.qumbed.auth == "none" and not config.dev:
        _log.warning(
            "qumbed.auth is none: every program on this machine may publish and "
            "subscribe without a key"
        )
    return QumbedListener(
        config.qumbed,
        config.limits,
        door=door,
        named=keys.named,
        quotas=quotas_for(config.quotas),
    )


def announcer(config: QumbedConfig) -> "Announcer":
    """Return what announces the Qumbed strand on the local network."""
    from braidmq.server.strands.qumbed.mdns import Announcer

    return Announcer(config.host)


def vibe_connections(config: VibeConfig) -> MakeConnection:
    """Return what makes a connection of the Vibe strand."""
    options = VibeOptions(
        max_message_bytes=config.max_message_bytes,
        auto_create=config.auto_create,
        version=version("braidmq"),
    )
    numbers = count(1)

    def make(engine: Engine, wire: TcpWire, limits: Limits) -> Connection:
        return VibeConnection(engine, wire, limits, options, next(numbers))

    return make
