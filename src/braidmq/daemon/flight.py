"""The Flight endpoint of a daemon, which is on by default and needs what not all have."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import structlog

from braidmq.base.errors import ConfigError, NoSocketError
from braidmq.broker.authorize import Principal
from braidmq.daemon.descriptors import flight_connections
from braidmq.server.config.config import Config
from braidmq.transport.door import Door

if TYPE_CHECKING:
    from braidmq.server.flight.listener import FlightListener

_log = structlog.get_logger(__name__)


def bind_flight(
    config: Config, door: Door, find: Callable[[str], Principal | None]
) -> "FlightListener | None":
    """Bind the endpoint's address; None if it was not asked for, and cannot be had.

    Raises:
        AddressInUseError: The address cannot be bound.
        ConfigError: It was asked for, and cannot be had.
    """
    try:
        from braidmq.server.flight.listener import FlightListener  # noqa: PLC0415 - takes memory

        return FlightListener(
            config.flight,
            config.limits,
            door=door,
            connections_max=flight_connections(),
            data_dir=config.data_dir,
            find=find,
        )
    except ModuleNotFoundError as error:
        problem = f"needs {error.name}: pip install braidmq[columnar], or turn it off"
    except NoSocketError as error:
        problem = f"needs a Unix socket, but {error}; make room, or turn it off"
    # An operator who configured it wants it. By default it is on, but optional.
    if "flight" in config.model_fields_set:
        raise ConfigError("flight", problem)
    _log.warning("flight is off: it " + problem)
    return None
