"""The names of the topics in a range of ids, from the tables of the indexes, not their rows."""

from pathlib import Path

from braidmq.columnar.segments.views import DurableView


def topic_names(path: Path | str, start: int, end: int) -> tuple[set[str], int]:
    """Return the topics with messages from *start* to before *end*, and perhaps others.

    Others, because a table covers its whole segment. The second value is the end of the range
    that was examined: *end*, or the end of the durable log if that comes first. Lost ids are
    not reported here; a read of the range reports them.

    Raises:
        DamagedLogError: The log is damaged.
    """
    view = DurableView(path)
    behind = min(end, view.latest)
    found: set[str] = set()
    for first_id in view.first_ids(start, behind):
        segment = view.open(first_id)
        if segment is None:
            continue
        if not (segment.index.is_proof or segment.index.block_sums):
            # The topics of a growing index are only as reliable as its rows: verify those.
            for _ in segment.windows(start, behind):
                pass
        found.update(segment.names[1:])
    return found, behind
