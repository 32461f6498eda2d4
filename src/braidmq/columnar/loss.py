"""Loss: ids that were asked for and that the log does not have any more.

It is not damage, which is found in what the log has, and which is never passed over. What is
lost was deleted by retention, given up by a repair, or never became durable.
"""

import logging
from typing import Final, NamedTuple

from braidmq.base.errors import LogError

RETAINED = "retention deleted them"
REPAIRED = "a repair of the log gave them up"
NOT_DURABLE = "the durable log ends before them"

# The standard library's: readers are in other people's programs, and must start quickly there.
_LOG: Final = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Ids first..last that a read wanted and did not get."""

    first_id: int
    last_id: int
    reason: str


class DataLossError(LogError):
    """A read cannot return every id of its range."""

    def __init__(self, path: str, loss: Loss) -> None:
        super().__init__(
            f"{path}: the ids {loss.first_id} to {loss.last_id} are lost: {loss.reason}"
            "; fail_on_data_loss=False reads what is left"
        )
        self.path = path
        self.loss = loss


class Losses:
    """What one read lost: an error at once, or noted, logged and passed over.

    *noted* grows by what is passed over; the caller may hold it.
    """

    def __init__(self, path: str, *, fail: bool, noted: list[Loss] | None = None) -> None:
        self._path = path
        self._fail = fail
        self.noted: list[Loss] = [] if noted is None else noted

    def note(self, first_id: int, last_id: int, reason: str) -> None:
        """Take note that first..last are lost; nothing when that is no id.

        Raises:
            DataLossError: The read must not go on without them.
        """
        if first_id > last_id:
            return
        loss = Loss(first_id, last_id, reason)
        if self._fail:
            raise DataLossError(self._path, loss)
        self.noted.append(loss)
        warn(self._path, loss)


def warn(path: str, loss: Loss) -> None:
    """Log that something lost was passed over."""
    _LOG.warning("%s: passed over the ids %d to %d: %s", path, *loss)
