"""Loss: ids of a read's range that the log does not have.

Lost ids were deleted by retention, given up by a repair, or never became durable; a read may be
told to skip them. Damage is different: the log has the records but cannot read them, and a read
never skips those.
"""

import logging
from typing import Final, NamedTuple

from braidmq.base.errors import LogError

RETAINED = "retention deleted them"
REPAIRED = "a repair of the log gave them up"
NOT_DURABLE = "the durable log ends before them"

# The standard library's logging: readers run inside other programs and must start quickly.
_LOG: Final = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Ids first..last that a read should have returned and could not."""

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
    """The losses of one read: raised at once, or recorded, logged and skipped.

    What is skipped is appended to *noted*, which the caller may keep.
    """

    def __init__(self, path: str, *, fail: bool, noted: list[Loss] | None = None) -> None:
        self._path = path
        self._fail = fail
        self.noted: list[Loss] = [] if noted is None else noted

    def note(self, first_id: int, last_id: int, reason: str) -> None:
        """Record that first..last are lost; do nothing if the range is empty.

        Raises:
            DataLossError: The read must not skip them.
        """
        if first_id > last_id:
            return
        loss = Loss(first_id, last_id, reason)
        if self._fail:
            raise DataLossError(self._path, loss)
        self.noted.append(loss)
        warn(self._path, loss)


def warn(path: str, loss: Loss) -> None:
    """Log that a read skipped lost ids."""
    _LOG.warning("%s: skipped the lost ids %d to %d: %s", path, *loss)
