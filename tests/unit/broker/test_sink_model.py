"""Through crashes, refusals and retries, each row of a batch is on its topic once, in order.

The driver below does what `server.sink` does, without a disk or an event loop: it finishes the
open batch, skips one that is done, and otherwise begins, each time with new stages in which the
rows are split and ordered differently. A crash keeps any prefix of the records.
"""

from collections.abc import Callable
from random import Random
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from braidmq.broker import records
from braidmq.broker.sinks import Intent, Row
from tests.unit.broker.drive import Drive

TOPICS: Final = ("a", "b")
CHANCE: Final = 0.5


class Driver:
    """A query with its batches, the stages it has written, and a broker to disturb."""

    def __init__(self, sizes: list[int], seed: int) -> None:
        self.rng = Random(seed)
        self.drive = Drive()
        self.sizes = sizes
        self.stages: dict[bytes, list[Row]] = {}
        self.attempts: dict[int, list[list[Row]]] = {}  # of each batch: the staged rows
        self.confirmed = -1  # the last batch reported as done
        self.current = 0

    # The query.

    def commit(self) -> None:
        """Commit a batch, perhaps a second time, as far as it goes in one turn."""
        self._commit(
            self.rng.randint(0, min(self.current, len(self.sizes) - 1)),
            rows_max=self.rng.randint(1, 4),
            finishes=self.rng.random() < CHANCE,
        )

    def _commit(self, batch: int, *, rows_max: int, finishes: bool) -> None:
        broker = self.drive.broker
        if broker.refusal:
            broker.accept_again()
        if broker.sinks.open is None:
            done = broker.sinks.last_done("q", "")
            if done is not None and batch <= done.batch:
                return
            broker.sinks.begin("ada", "q", "", batch, self._staged(batch))
        intent = broker.sinks.open
        assert intent is not None
        if intent.appended < intent.rows:
            self._append(intent, min(rows_max, intent.rows - intent.appended))
        if intent.appended == intent.rows and finishes:
            broker.sinks.finish()

    def _staged(self, batch: int) -> list[tuple[bytes, int]]:
        rows = [
            (TOPICS[number % 2], b"%d.%d" % (batch, number), b"", 1)
            for number in range(self.sizes[batch])
        ]
        self.rng.shuffle(rows)
        self.attempts.setdefault(batch, []).append(rows)
        cut = self.rng.randint(0, len(rows))
        stages: list[tuple[bytes, int]] = []
        for piece in (rows[:cut], rows[cut:]):
            stage_id = len(self.stages).to_bytes(16, "big")
            self.stages[stage_id] = piece
            stages.append((stage_id, len(piece)))
        return stages

    def _append(self, intent: Intent, count: int) -> None:
        drive = self.drive
        rows: list[Row] = []
        for number in range(intent.appended, intent.appended + count):
            stage_id, row = intent.locate(number)
            rows.append(self.stages[stage_id][row])
        taken = drive.broker.sinks.append(rows, drive.broker.committed_id, drive.now_us)
        assert count == taken

    # Events at the broker.

    def log_commits(self) -> None:
        """Let the log commit its records."""
        self.drive.commit()
        done = self.drive.broker.sinks.last_done("q", "")
        if done is not None and self.drive.broker.sinks.open is None:
            self.confirmed = done.batch
            self.current = done.batch + 1

    def log_refuses(self) -> None:
        """Let the log refuse its records."""
        self.drive.refuse()

    def crash(self) -> None:
        """Kill the broker while it appends: part of the batch is in the log."""
        batch = self.drive.append()
        self.drive.log.records += batch[: self.rng.randint(0, len(batch))]
        self.drive.restart()

    def snapshot(self) -> None:
        """Take a snapshot."""
        self.drive.snapshot()

    def publish(self) -> None:
        """Let another publisher publish to the same topic."""
        if not self.drive.broker.refusal:
            self.drive.publish(TOPICS[0], b"else")

    # The end.

    def finish(self) -> None:
        """Commit all remaining batches, undisturbed."""
        while self.current < len(self.sizes):
            self._commit(self.current, rows_max=max(self.sizes), finishes=True)
            self.log_commits()

    def appended(self) -> list[Row]:
        """Return the rows in the log, in order."""
        found: list[Row] = []
        for record in self.drive.log.records:
            if record[0] == records.SINK_ROW:
                stored = records.StoredMessage(record)
                found.append((stored.topic, stored.body[3:], stored.headers, stored.priority))
        return found


EVENTS: Final[list[Callable[[Driver], None]]] = [
    Driver.commit,
    Driver.log_commits,
    Driver.log_refuses,
    Driver.crash,
    Driver.snapshot,
    Driver.publish,
]


OFTEN: Final = [Driver.commit, Driver.commit, Driver.log_commits, Driver.crash]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=3),
    st.lists(st.sampled_from([*EVENTS, *OFTEN]), min_size=5, max_size=60),
    st.integers(0, 2**32),
)
def test_every_row_is_on_its_topic_once_and_in_the_order_of_its_stages(
    sizes: list[int],
    events: list[Callable[[Driver], None]],
    seed: int,
) -> None:
    """One whole attempt at each batch counts; a batch reported as done stays done."""
    driver = Driver(sizes, seed)
    for event in events:
        event(driver)
        done = driver.drive.broker.sinks.last_done("q", "")
        assert driver.confirmed <= (-1 if done is None else done.batch)
    driver.finish()
    driver.drive.restart()

    rows = driver.appended()
    for batch, size in enumerate(sizes):
        if batch in driver.attempts:
            found, rows = rows[:size], rows[size:]
            assert found in driver.attempts[batch]
    assert [] == rows
    assert driver.drive.broker.sinks.open is None
