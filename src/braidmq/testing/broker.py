"""The real broker in the test's own process: free ports, a temporary log, a fake clock."""

import logging
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from braidmq.admin.reloads import Reloaded
from braidmq.daemon.daemon import Daemon
from braidmq.server.config.config import Config
from braidmq.testing.clock import FakeClock

_LIBRARIES: Final = ("quic", "uvicorn")
"""Libraries of the broker that log. Without a handler their warnings would go to stderr."""


@dataclass(eq=False)
class RunningBroker:
    """A running broker, its clock and its data directory."""

    daemon: Daemon
    clock: FakeClock
    data_dir: Path
    _settings: dict[str, Config]

    async def reload(self, config: dict[str, object] | None = None) -> Reloaded:
        """Read keys, users, certificates and schemas again, as after SIGHUP.

        *config* is the new content of the configuration file; None leaves it as it is.
        """
        if config is not None:
            self._settings["now"] = _config(self.data_dir, config)
        return await self.daemon.reload()

    def address(self, listener: str = "blip") -> tuple[str, int]:
        """Return host and port of a listener."""
        shown = self.daemon.addresses[listener]
        assert shown is not None, f"{listener} is off"
        host, _, port = shown.rpartition(":")
        return host.strip("[]"), int(port)

    def url(self, strand: str = "blip", key: str = "dev-key") -> str:
        """Return the address of a strand for `braidmq.connect`; Qumbed's with a fingerprint."""
        host, port = self.address(strand)
        pin = f"?fingerprint={self.fingerprint}" if strand == "qumbed" else ""
        return f"{strand}://{key}@{host}:{port}{pin}"

    @property
    def endpoint(self) -> str:
        """The address of the Flight endpoint, for `columnar.Endpoint`."""
        shown = self.daemon.addresses["flight"]
        assert shown is not None, "flight is off"
        return shown if "://" in shown else f"grpc://{shown}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the certificate, for Qumbed clients to pin."""
        return str(self.daemon.ready_facts()["qumbed_fingerprint"])

    @property
    def gateway_public_key(self) -> bytes:
        """The public key with which the broker encrypts for Qumbed subscribers."""
        return bytes.fromhex(str(self.daemon.ready_facts()["gateway_public_key"]))


@asynccontextmanager
async def running_broker(
    *,
    data_dir: Path | None = None,
    config: dict[str, object] | None = None,
    clock: FakeClock | None = None,
    logs: bool = False,
) -> AsyncIterator[RunningBroker]:
    """Run the real broker, in development mode, until the block ends.

    *config* is the content of a configuration file; `{"flight": {}}` turns Flight on. Pass
    *data_dir* to keep the log and start again on it, and then the same *clock*, because the
    broker's time must not go back. The broker prints no log lines; with *logs* they go to
    stdout. Where a program sends its own structlog lines to `logging`, they go there anyway.
    """
    with (
        _quiet(logs=logs),
        tempfile.TemporaryDirectory(prefix="braidmq-") as temporary,
    ):
        directory = data_dir if data_dir is not None else Path(temporary)
        clock = clock if clock is not None else FakeClock()
        settings = {"now": _config(directory, config or {})}
        daemon = Daemon(settings["now"], clock=clock, load=lambda: settings["now"])
        clock.watch(daemon.look_at_clock)
        try:
            await daemon.start()
            yield RunningBroker(daemon, clock, directory, settings)
        finally:
            clock.unwatch(daemon.look_at_clock)
            await daemon.stop()


def _config(data_dir: Path, given: dict[str, object]) -> Config:
    settings: dict[str, object] = {"data_dir": data_dir, "dev": True, **given}
    for listener in ("blip", "vibe", "qumbed", "http"):
        section = settings.get(listener, {})
        assert isinstance(section, dict)
        settings[listener] = {"port": 0, **section}
    # Off by default: importing Flight takes a second.
    flight = settings.get("flight", {"enabled": False})
    assert isinstance(flight, dict)
    settings["flight"] = {"port": 0, **flight}
    return Config.model_validate(settings)


class _QuietFactory:
    """Makes loggers that print what *before* would, except the lines of BraidMQ."""

    def __init__(self, before: structlog.PrintLoggerFactory) -> None:
        self.before = before
        self.brokers = 0

    def __call__(self, *arguments: object) -> structlog.PrintLogger | structlog.ReturnLogger:
        name = str(arguments[0]) if arguments else ""
        is_ours = name.partition(".")[0] == "braidmq"
        return structlog.ReturnLogger() if is_ours else self.before(*arguments)


@contextmanager
def _quiet(*, logs: bool) -> Iterator[None]:
    """Keep the broker's lines off stdout and stderr, unless *logs*."""
    factory = structlog.get_config()["logger_factory"]
    if logs or type(factory) not in {structlog.PrintLoggerFactory, _QuietFactory}:
        yield
        return
    for library in _LIBRARIES:
        logging.getLogger(library).addHandler(logging.NullHandler())
    # Several brokers may run, and end in any order: the last one restores what was there.
    quiet = factory if isinstance(factory, _QuietFactory) else _QuietFactory(factory)
    quiet.brokers += 1
    structlog.configure(logger_factory=quiet)
    try:
        yield
    finally:
        quiet.brokers -= 1
        if not quiet.brokers and structlog.get_config()["logger_factory"] is quiet:
            structlog.configure(logger_factory=quiet.before)
