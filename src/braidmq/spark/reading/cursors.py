"""The cursor of a group: where a stream began and how far it has read, kept by the broker.

It pins the start of a new stream, shows the lag, and keeps retention from deleting unread
messages. The position that the query resumes from is in Spark's checkpoint, so a failed report
to the cursor never fails the query.
"""

from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.spark.brokers import endpoint_of
from braidmq.spark.options import ReadOptions


class Cursor:
    """The cursor that *options* name; it is pickled together with its reader, unconnected."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.group_id is not None
        self.name = options.group_id
        self._options = options
        self._endpoint: Endpoint | None = None
        self._reported: int | None = None
        self._failing = False

    def open(self, start: int | None) -> int:
        """Return where the group began; a new one begins at *start*, if None at the log's end.

        A repeated call returns the same offset, whatever was published in between.

        Raises:
            BraidError: The broker cannot be reached, or refuses the key access to the cursor.
        """
        return self._connected().open_cursor(self.name, start).initial

    def report(self, offset: int) -> None:
        """Report that everything before *offset* is done; on failure, warn once and go on."""
        if self._reported is not None and offset <= self._reported:
            return
        try:
            endpoint = self._connected()
            if self._reported is None:
                # The cursor may not exist: the query got its groupId later than its
                # checkpoint, or an operator has deleted the cursor since.
                endpoint.open_cursor(self.name, offset)
            endpoint.move_cursor(self.name, offset)
        except BraidError as error:
            self._forget()
            if not self._failing:
                import structlog  # slow, and hardly ever needed

                structlog.get_logger().warning(
                    "cursor_not_reported", group=self.name, offset=offset, problem=str(error)
                )
            self._failing = True
        else:
            self._reported = offset
            self._failing = False

    def _connected(self) -> Endpoint:
        if self._endpoint is None:
            self._endpoint = endpoint_of(self._options)
        return self._endpoint

    def _forget(self) -> None:
        # A restarted broker may listen at another address, so look it up again.
        if self._endpoint is not None:
            self._endpoint.close()
        self._endpoint = None
        self._reported = None
