"""The cursor of a group: where a stream began and is, kept by the broker and not by Spark.

It pins the beginning, shows the lag and keeps retention from what is not read yet. The place
that counts for the query is in Spark's checkpoint, so a report that fails fails nothing.
"""

from braidmq.base.errors import BraidError
from braidmq.columnar.endpoint import Endpoint
from braidmq.spark.brokers import endpoint_of
from braidmq.spark.options import ReadOptions


class Cursor:
    """The cursor that *options* name; it is pickled with its reader, and then not connected."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.group_id is not None
        self.name = options.group_id
        self._options = options
        self._endpoint: Endpoint | None = None
        self._reported: int | None = None
        self._failing = False

    def open(self, start: int | None) -> int:
        """Return where the group began; a new one begins at *start*, None: behind all there is.

        Whoever asks again gets the same answer, whatever happened meanwhile.

        Raises:
            BraidError: The broker cannot be asked, or the key may not have the cursor.
        """
        return self._connected().open_cursor(self.name, start).initial

    def report(self, offset: int) -> None:
        """Say that everything before *offset* is done; when that fails, warn once and go on."""
        if self._reported is not None and offset <= self._reported:
            return
        try:
            endpoint = self._connected()
            if self._reported is None:
                # A checkpoint may be older than its query's group, or outlive it.
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
        # A broker that was started again may be found at another address.
        if self._endpoint is not None:
            self._endpoint.close()
        self._endpoint = None
        self._reported = None
