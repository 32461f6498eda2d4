"""Progress of long work: a bar on stderr where a person looks, and nothing anywhere else."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from braidmq.cli.tables import printable

if TYPE_CHECKING:  # rich is not needed to print --help
    from rich.progress import TaskID

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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def say(line: str) -> None:
        bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def tell(line: str) -> None:
        from braidmq.spark.pipelines.progress import BatchLine

        say(line)
        if isinstance(line, BatchLine):
            # Only now: while Spark comes up, it has stderr for itself.
            bar.start()
            task = tasks.get(line.name)
            if task is None:
                task = tasks[line.name] = bar.add_task(line.name)
            done = bar.tasks[list(tasks).index(line.name)].completed + line.rows
            bar.update(task, completed=done, total=done + line.lag, refresh=True)

    say("starting Spark, which takes some seconds")
    try:
        yield tell
    finally:
        bar.stop()
    if place is not None:
        say(printable(f"see {place}"))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _nowhere(_done: int, _total: int) -> None:
    """Say nothing: nobody looks."""
