"""Progress of long work: a bar on stderr if it is a terminal, nothing otherwise."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from braidmq.base.printable import printable

if TYPE_CHECKING:  # rich is not needed to print --help
    from rich.progress import TaskID

    from braidmq.spark.pipelines.runs.progress import BatchLine

Advance = Callable[[int, int], None]
"""Called with the amount done and the total, which may grow; from any thread."""


def is_watched() -> bool:
    """Return whether stderr is a terminal."""
    return sys.stderr.isatty()


@contextmanager
def progress(title: str, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Yield a function that moves a bar; the bar disappears when the work is done."""
    if not is_watched():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn(binary_units=True) if in_bytes else TaskProgressColumn()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=None)

    def advance(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()  # the output that follows must not mix with it
        elif not bar.live.is_started:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show a spinner while something of unknown length is under way."""
    if not is_watched():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


@contextmanager
def telling(place: Path | None = None) -> Iterator[Callable[[str], None]]:
    """Yield a function that prints lines about pipelines, above a bar on a terminal.

    A terminal also shows that Spark is starting, and at the end where the result is: *place*.
    """
    if not is_watched():
        yield _say
        return
    # A copy of the present stderr: while Spark starts, its descriptor points to a file.
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as screen:
        shown = _Shown(screen)
        shown.say("starting Spark; this takes about half a minute")
        with shown:
            yield shown.tell
        if place is not None:
            shown.say(printable(f"see {place}"))


class _Shown:
    """Lines about a pipeline on a terminal, with a spinner below them, then bars."""

    def __init__(self, screen: TextIO) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            SpinnerColumn,
            TextColumn,
            TimeElapsedColumn,
        )

        self._console = Console(file=screen)
        name = TextColumn("{task.description}")
        self._life = Progress(
            *(SpinnerColumn(), name, TimeElapsedColumn()),
            console=self._console,
            transient=True,
            redirect_stdout=False,  # what Spark prints while it starts is not for the screen
            redirect_stderr=False,
        )
        self._bars = Progress(
            *(name, BarColumn(), MofNCompleteColumn()), console=self._console, transient=True
        )
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._life.add_task("working", total=None)
        self._life.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._life.stop()
        self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line above the spinner and the bars."""
        self._console.print(printable(line), markup=False, highlight=False, soft_wrap=True)

    def tell(self, line: str) -> None:
        """Print a line; if it is about a batch, move its pipeline's bar."""
        from braidmq.spark.pipelines.runs.progress import BatchLine

        if isinstance(line, BatchLine):
            self._move(line)
        self.say(line)

    def _move(self, line: "BatchLine") -> None:
        done = self._done[line.name] = self._done.get(line.name, 0) + line.rows
        total = done + line.lag
        if line.name in self._tasks:
            self._bars.update(self._tasks[line.name], completed=done, total=total)
        else:
            task = self._bars.add_task(line.name, completed=done, total=total)
            self._tasks[line.name] = task
        self._life.stop()
        self._bars.start()


def _say(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)
