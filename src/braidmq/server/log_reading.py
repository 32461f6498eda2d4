"""Reading the log for HTTP: on a thread, one reader at a time, failures in HTTP's words."""

import asyncio
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from braidmq.admin.refusals import UnavailableError
from braidmq.base.errors import LogError
from braidmq.wal.wal import Wal

P = ParamSpec("P")
T = TypeVar("T")


async def read_log(
    wal: Wal | None, read: Callable[Concatenate[Wal, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return what *read* finds in the log, on a thread.

    Raises:
        UnavailableError: There is no log yet, or it cannot be read now.
    """
    if wal is None:
        raise UnavailableError("recovering the log")
    try:
        return await asyncio.to_thread(read, wal, *args, **kwargs)
    except LogError as error:
        raise UnavailableError(str(error)) from None
