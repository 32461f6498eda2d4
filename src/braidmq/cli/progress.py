"""Progress of long work: a bar on stderr where a person looks, and nothing anywhere else."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self, TextIO

from braidmq.cli.tables import printable

if TYPE_CHECKING:  # rich is not needed to print --help
    from rich.progress import TaskID

    from braidmq.spark.pipelines.runs.progress import BatchLine

Advance = Callable[[int, int], None]
"""Told how much is done, and of how much; the second may grow. From any thread."""


def is_watched() -> bool:
    """Say whether a person sees what is written to stderr."""
    return sys.stderr.isatty()


@contextmanager
def progress(title: str, *, in_bytes: bool = False) -> Iterator[Advance]:
    """Give a function that moves a bar; the bar is gone when the work is done."""
    if not is_watched():
        yield _nowhere
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
            bar.stop()  # what follows has the screen to itself
        elif not bar.live.is_started:
            bar.start()

    try:
        yield advance
    finally:
        bar.stop()


@contextmanager
def waiting(title: str) -> Iterator[None]:
    """Show that something is being waited for, when nobody can say how long it takes."""
    if not is_watched():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(title):
        yield


@contextmanager
def telling(place: Path | None = None) -> Iterator[Callable[[str], None]]:
    """Give a function that prints lines about pipelines, above a bar where a person looks.

    A person is also told what is waited for, and in the end that the result is in *place*.
    """
    if not is_watched():
        yield _say
        return
    with _terminal() as screen:
        shown = _Shown(screen)
        shown.say("starting Spark, which takes about half a minute")
        with shown:
            yield shown.tell
        if place is not None:
            shown.say(printable(f"see {place}"))


@contextmanager
def _terminal() -> Iterator[TextIO]:
    """Give stderr as it is now: while Spark comes up, a file stands in its place."""
    with os.fdopen(os.dup(sys.stderr.fileno()), "w", encoding="utf-8") as screen:
        yield screen


class _Shown:
    """Lines about a pipeline on a terminal, and below them a sign of life, then bars."""

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
            redirect_stdout=False,  # what Spark says while it comes up is not for the screen
            redirect_stderr=False,
        )
        self._bars = Progress(
            *(name, BarColumn(), MofNCompleteColumn()), console=self._console, transient=True
        )
        self._tasks: dict[str, TaskID] = {}
        self._done: dict[str, int] = {}

    def __enter__(self) -> Self:
        self._life.add_task("at work", total=None)
        self._life.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._life.stop()
        self._bars.stop()

    def say(self, line: str) -> None:
        """Print a line above what is moving."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tell(self, line: str) -> None:
        """Print a line, and move the bar of its pipeline if it is about a batch."""
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
    print(line, file=sys.stderr, flush=True)


def _nowhere(_done: int, _total: int) -> None:
    """Say nothing: nobody looks."""
