"""The names of topics in a range of ids, by the indexes' tables: hardly a row is looked at."""

from pathlib import Path

from braidmq.columnar.segments.views import View


def topic_names(path: Path | str, start: int, end: int) -> tuple[set[str], int]:
    """Return the topics that have messages from *start* to before *end*, and perhaps others.

    The second is the end of what was looked at: *end*, or the end of the durable log if that
    comes first. What is lost is no matter here; whoever reads the range is told.

    Raises:
        DamagedLogError: The log is damaged.
    """
    view = View(path)
    behind = min(end, view.latest)
    found: set[str] = set()
    for first_id in view.first_ids(start, behind):
        segment = view.open(first_id)
        if segment is None:
            continue
        if not (segment.index.is_proof or segment.index.block_sums):
            # The topics of a growing index are as good as its rows, so they are verified.
            for _ in segment.windows(start, behind):
                pass
        found.update(segment.names[1:])
    return found, behind
