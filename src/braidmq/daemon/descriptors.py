"""File descriptors: how many connections fit beside what the broker itself has to open.

A log that cannot open a file cannot go on. So the connections' bound leaves a reserve, which no
peer can use up, and the process asks for as many descriptors as the system lets it have.
"""

import resource
from typing import Final

import structlog

from braidmq.transport.accepting import ACCEPTS_PER_TURN
from braidmq.transport.door import HEALTH_PLACES, HTTP_PLACES

LOG_DESCRIPTORS: Final = 128
"""Segments and indexes that are open, those of Flight's readers included, snapshots, stages,
directories, the lock; with room to spare."""

PROCESS_DESCRIPTORS: Final = 64
"""Standard streams, the event loop, listeners, threads, libraries that are being loaded."""

TURN_DESCRIPTORS: Final = 8 * ACCEPTS_PER_TURN
"""A connection that was evicted is closed a turn or two after the one that replaced it."""

RESERVED: Final = (
    LOG_DESCRIPTORS + PROCESS_DESCRIPTORS + TURN_DESCRIPTORS + HTTP_PLACES + HEALTH_PLACES
)
"""Descriptors that connections of the strands never take."""

FLIGHT_CONNECTIONS_MAX: Final = 1_024
"""Connections of Flight at most; its clients connect again when one without calls is closed."""

FLIGHT_SHARE: Final = 16
"""With few descriptors, one in so many is for a connection of Flight."""

FLIGHT_DESCRIPTORS: Final = 2
"""Of a connection of Flight besides its own: both ends of the one to gRPC."""

CONNECTIONS_MIN: Final = 16
"""Accepted even where the reserve has to be smaller: below 256 open files nothing is safe."""

_log = structlog.get_logger(__name__)


def raise_limit() -> None:
    """Raise the limit of open files to the most that the system allows this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def flight_connections() -> int:
    """Return how many connections of Flight the limit of open files has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return FLIGHT_CONNECTIONS_MAX
    return max(1, min(FLIGHT_CONNECTIONS_MAX, soft // FLIGHT_SHARE))


def within_descriptors(connections: int, *, with_flight: bool = False) -> int:
    """Return how many of these connections the limit of open files has room for.

    Fewer than asked for is said in a line of the log.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserved = RESERVED + with_flight * FLIGHT_DESCRIPTORS * flight_connections()
    if soft == resource.RLIM_INFINITY or connections + reserved <= soft:
        return connections
    fitting = min(connections, max(soft - reserved, CONNECTIONS_MIN))
    if fitting < connections:
        _log.warning(
            f"limits.connections is {connections}, but the process may open {soft} files: "
            f"it accepts {fitting} connections; raise the hard limit of open files "
            "(LimitNOFILE, ulimit -Hn), or lower limits.connections"
        )
    return fitting
