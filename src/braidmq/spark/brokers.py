"""Reach the broker and the log that options name, and wait for a broker that restarts.

A broker writes its addresses into `run.json` in its data directory, so a client that has the
directory can find the broker.
"""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from threading import Event
from time import monotonic
from typing import Final, TypeVar

import msgspec

from braidmq.base.errors import ConfigError
from braidmq.columnar.endpoint import Endpoint
from braidmq.columnar.flight.failures import UnavailableError
from braidmq.columnar.logs import DirectoryLog, Log
from braidmq.spark.options import BrokerOptions
from braidmq.spark.runtime.workers import hold_bytes, is_forked

RUN_FILE: Final = "run.json"
RETURN_S_MAX: Final = 60.0
"""How long to wait for a broker; one with an intact log restarts within seconds."""

PAUSE_S: Final = 0.25
_ANY_HOST: Final = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}  # noqa: S104 - not listened on

Answer = TypeVar("Answer")


def log_of(options: BrokerOptions) -> Log:
    """Return the log that is read: in the directory, or behind the endpoint.

    A process that Spark has forked serves one query after another. It keeps the log of its last
    directory open, so that the files mapped by one query are there for the next.
    """
    if options.path is None:
        assert options.endpoint is not None
        return Endpoint(options.endpoint, options.api_key or "")
    return (_last_log if is_forked() else _directory_log)(options.path, hold_bytes())


def _directory_log(path: Path, hold_bytes: int) -> DirectoryLog:
    return DirectoryLog(path, hold_bytes=hold_bytes)


_last_log: Final = lru_cache(maxsize=1)(_directory_log)


def endpoint_of(options: BrokerOptions) -> Endpoint:
    """Return the endpoint of the broker; it connects on first use. Raises as `running_at`."""
    assert options.api_key is not None
    if options.endpoint is not None:
        return Endpoint(options.endpoint, options.api_key)
    assert options.path is not None
    return Endpoint(running_at(options.path), options.api_key)


def running_at(path: Path) -> str:
    """Return the Flight address of the broker that runs on a data directory.

    Raises:
        ConfigError: It has no Flight endpoint.
        UnavailableError: No broker runs on it; after a crash it may come back.
    """
    try:
        facts = msgspec.json.decode((path / RUN_FILE).read_bytes(), type=dict[str, object])
    except FileNotFoundError:
        raise UnavailableError(
            f"no broker runs on {path}: start it, or give endpoint"
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError("option path", f"{path / RUN_FILE} cannot be read: {error}") from None
    address = facts.get("flight")
    if not isinstance(address, str):
        problem = f"the broker on {path} has no Flight endpoint; switch [flight] on"
        raise ConfigError("option path", problem)
    return _reachable(address)


def _reachable(address: str) -> str:
    # A broker that listens on all interfaces publishes an address that cannot be dialled.
    scheme, _, rest = address.rpartition("://")
    host, _, port = rest.rpartition(":")
    return f"{scheme or 'grpc'}://{_ANY_HOST.get(host, host)}:{port}"


def patiently(call: Callable[[], Answer], seconds: float = RETURN_S_MAX) -> Answer:
    """Return the result of *call*, retried as long as its broker is unavailable.

    Only for idempotent calls. A log in a directory is never unavailable, so reading one does
    not wait.

    Raises:
        UnavailableError: The broker is still unavailable after *seconds*.
        BraidError: Any other error of *call*, at once.
    """
    give_up = monotonic() + seconds
    while True:
        try:
            return call()
        except UnavailableError:
            if monotonic() >= give_up:
                raise
        Event().wait(PAUSE_S)  # a pause: nothing sets this event
