"""Reloading: keys, users, certificates and schemas from their files, while the broker runs.

Everything is read and checked first, on a thread; then it is applied in one turn of the event
loop, which cannot fail. So a bad file changes nothing.

    [[auth.keys]], [quotas]        the principals, in place: open connections see the change
    users.json                     likewise
    tls_cert, tls_key              for the connections from now on; Flight needs a restart
    schemas_dir                    for the messages from now on

A key or user that was removed, or has another secret, is *gone*: its connections are closed,
and what it has running elsewhere (event streams, Flight calls) ends at its next step.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from ssl import SSLContext
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from braidmq.admin.reloads import Changes, Reloaded
from braidmq.admin.status import Status
from braidmq.base.errors import ConfigError
from braidmq.server.access.keys import KeyRing, Revision
from braidmq.server.access.users import Users
from braidmq.server.config.config import DEV_PRINCIPAL, Config, Section, quotas_for
from braidmq.server.engine.requests import running
from braidmq.server.strands.listeners import TcpListener
from braidmq.transport.tls import server_context

if TYPE_CHECKING:  # the web server and QUIC are imported where they are on
    from braidmq.admin.http.server import AdminServer
    from braidmq.server.strands.qumbed.listener import QumbedListener, Renewed

TLS: Final = frozenset({"tls_cert", "tls_key"})
APPLIED: Final = frozenset({"auth", "quotas", "schemas_dir", "dev", "data_dir"})
"""Sections that a reload applies, and what cannot differ."""

_FLIGHT: Final = "flight"
_TLS_LISTENERS: Final = ("blip", "vibe", "http")

LoadConfig = Callable[[], Config]

_log = structlog.get_logger(__name__)


class Parts(NamedTuple):
    """The parts of a daemon that a reload changes."""

    status: Status
    keys: KeyRing
    users: Users
    admin: "AdminServer | None"
    qumbed: "QumbedListener | None"


class _Prepared(NamedTuple):
    """What was read and can be applied."""

    config: Config
    contexts: dict[str, SSLContext]
    qumbed: "Renewed | None"
    digests: dict[str, bytes]  # of each listener's certificate and key
    restart: list[str]  # settings that only a restart applies


class Reloading:
    """Reads files again for one running daemon, one reload at a time."""

    def __init__(self, parts: Parts, config: Config, load: LoadConfig) -> None:
        self._parts = parts
        self._config = config  # of the start: what a restart would change
        self._load = load
        self._turn = asyncio.Lock()
        self._digests: dict[str, bytes] = {}
        with suppress(OSError):  # it was there just now; the next reload says what is wrong
            self._digests.update(_digests(config))

    async def reload(self) -> Reloaded:
        """Read everything again, and apply it or nothing.

        Raises:
            ConfigError: A file cannot be used.
            UnavailableError: The broker is still starting, or shuts down.
        """
        async with self._turn:
            running(self._parts.status.engine)
            try:
                prepared = await asyncio.to_thread(self._prepared)
                users = await self._read_users(prepared.config)
            except ConfigError as error:
                _log.error("reload failed: nothing was changed", reason=str(error))
                raise
            reloaded = self._apply(prepared, users)
        _log_reloaded(reloaded)
        return reloaded

    def _prepared(self) -> _Prepared:
        # On a thread: files may be slow.
        config = self._load()
        contexts = {
            name: server_context(name, *files)
            for name, files in _tls_files(config).items()
            if name in _TLS_LISTENERS
        }
        qumbed = None
        try:
            if self._parts.qumbed is not None:
                qumbed = self._parts.qumbed.renewed(
                    config.qumbed, self._config.data_dir, config.schemas_dir
                )
            digests = _digests(config)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise ConfigError(str(error.filename), f"cannot be read: {reason}") from None
        restart = sorted(_differences(self._config, config, ""))
        if self._digests.get(_FLIGHT) != digests.get(_FLIGHT):
            restart.append(f"{_FLIGHT}.tls_cert")  # gRPC reads it once
        return _Prepared(config, contexts, qumbed, digests, restart)

    async def _read_users(self, config: Config) -> Revision:
        found: asyncio.Future[Revision | ConfigError] = (
            asyncio.get_running_loop().create_future()
        )
        reserved = [key.name for key in config.auth.keys] + [DEV_PRINCIPAL]
        self._parts.users.read_again(reserved, quotas_for(config.quotas), found.set_result)
        revision = await found
        if isinstance(revision, ConfigError):
            raise revision
        return revision

    def _apply(self, prepared: _Prepared, users: Revision) -> Reloaded:
        # No await in here: what was read holds all at once.
        parts, config = self._parts, prepared.config
        keys = parts.keys.adopt(config.auth.keys, config.quotas)
        for listener in parts.status.listeners:
            if isinstance(listener, TcpListener) and listener.strand in prepared.contexts:
                listener.renew(prepared.contexts[listener.strand])
        if parts.admin is not None and "http" in prepared.contexts:
            parts.admin.renew(prepared.contexts["http"])
        engine = running(parts.status.engine)
        closed = engine.permissions_changed(
            keys.changed + users.changed, keys.gone + users.gone
        )
        if parts.qumbed is not None and prepared.qumbed is not None:
            parts.qumbed.renew(prepared.qumbed, quotas_for(config.quotas))
        parts.status.numbers.permissions_changed()
        renewed = [
            name
            for name, digest in sorted(prepared.digests.items())
            if self._digests.get(name) != digest and name != _FLIGHT
        ]
        self._digests.update({name: prepared.digests[name] for name in renewed})
        return Reloaded(
            keys=_changes(keys),
            users=_changes(users),
            certificates=renewed,
            schemas=[] if parts.qumbed is None else parts.qumbed.schema_ids,
            connections_closed=closed,
            restart=prepared.restart,
        )


def _tls_files(config: Config) -> dict[str, tuple[Path, Path]]:
    return {
        name: (section.tls_cert, section.tls_key)
        for name, section in config.listeners()
        if section.enabled and section.tls_cert is not None and section.tls_key is not None
    }


def _digests(config: Config) -> dict[str, bytes]:
    return {
        name: hashlib.sha256(b"".join(path.read_bytes() for path in files)).digest()
        for name, files in _tls_files(config).items()
    }


def _differences(before: Section, now: Section, prefix: str) -> Iterator[str]:
    """Yield the settings that differ and that only a restart applies."""
    for name in type(before).model_fields:
        old, new = getattr(before, name), getattr(now, name)
        if old == new or (not prefix and name in APPLIED):
            continue
        if isinstance(old, Section) and isinstance(new, Section):
            yield from _differences(old, new, f"{name}.")
        elif name not in TLS or (old is None) != (new is None):
            yield prefix + name


def _changes(revision: Revision) -> Changes:
    return Changes(
        sorted(revision.added),
        sorted(principal.name for principal in revision.changed),
        sorted(principal.name for principal in revision.gone),
    )


def _log_reloaded(reloaded: Reloaded) -> None:
    _log.info(
        "reloaded",
        keys_added=reloaded.keys.added,
        keys_changed=reloaded.keys.changed,
        keys_revoked=reloaded.keys.revoked,
        users_added=len(reloaded.users.added),
        users_changed=len(reloaded.users.changed),
        users_revoked=len(reloaded.users.revoked),
        certificates=reloaded.certificates,
        schemas=len(reloaded.schemas),
        connections_closed=reloaded.connections_closed,
    )
    if reloaded.restart:
        _log.warning("these settings differ and need a restart", settings=reloaded.restart)
