"""Reading the log for HTTP: on a thread, one reader at a time, failures in HTTP's words.

Damage that is met on the way is the whole broker's business, as if the scrub had found it.
"""

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from braidmq.base.errors import DamagedLogError, LogError
from braidmq.server.engine.engine import Engine
from braidmq.server.engine.refusals import UnavailableError
from braidmq.wal.wal import Wal

P = ParamSpec("P")
T = TypeVar("T")


async def read_log(
    engine: Engine | None,
    wal: Wal | None,
    read: Callable[Concatenate[Wal, P], T],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Return what *read* finds in the log, on a thread.

    Raises:
        UnavailableError: There is no log yet, or it cannot be read now.
    """
    if wal is None or engine is None:
        raise UnavailableError("recovering the log")
    try:
        return await asyncio.to_thread(read, wal, *args, **kwargs)
    except LogError as error:
        if isinstance(error, DamagedLogError):
            report_damage(engine, error)
        raise UnavailableError(str(error)) from None


def report_damage(engine: Engine, error: DamagedLogError) -> None:
    """End the broker because of damage, once whoever has found it was answered."""
    asyncio.get_running_loop().call_soon(engine.log_failed, error)
