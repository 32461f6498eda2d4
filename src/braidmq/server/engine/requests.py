"""Requests from outside a connection: is there an engine to ask, and does it take changes?

HTTP, Flight and the sink are up before recovery is done and stay up while the broker drains, so
each of their requests begins by asking here.
"""

from collections.abc import Callable

from braidmq.server.engine.engine import Engine
from braidmq.server.engine.refusals import LogFailedError, RecoveringError, ShuttingDownError

FindEngine = Callable[[], Engine | None]
"""Returns the engine, or None until recovery is done."""


def running(engine: Engine | None) -> Engine:
    """Return the engine once it can be read from.

    Raises:
        RecoveringError: The log is still being recovered.
    """
    if engine is None:
        raise RecoveringError
    return engine


def changing(engine: Engine | None) -> Engine:
    """Return the engine if it accepts changes.

    Raises:
        RecoveringError: The log is still being recovered.
        LogFailedError: The log has failed.
        ShuttingDownError: The broker drains.
    """
    engine = running(engine)
    if engine.failed is not None:
        raise LogFailedError(str(engine.failed))
    if engine.draining:
        raise ShuttingDownError
    return engine
