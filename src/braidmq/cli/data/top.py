"""`braidmq topics` lists the topics; `braidmq top` is a live view of a running broker.

The numbers of the view are those of `/api/events`, which the broker sends once a second; a
topic's rate is the difference of two requests to `/api/topics`. On a terminal the view takes
the whole screen and waits for a broker that is restarting. In a pipe each update is a block of
plain lines, with --json one object per line, and it ends when the broker does.
"""

import http
import sys
import time
from collections.abc import Iterator
from typing import Annotated, Final

from typer import Option

from braidmq.cli.api import Api, HttpError, Url, api_at
from braidmq.cli.data.top_view import View, plain, point_of, print_drawn
from braidmq.cli.terminal import AsJson, print_json, print_rows

EVENTS: Final = "/api/events"
OVERVIEW: Final = "/api/overview"
TOPICS: Final = "/api/topics?sort=last&limit=100"
"""The topics published to most recently: the busiest are among them."""

_COLUMNS: Final = ("name", "messages", "last_offset", "subscriptions")

INTERVAL_S_MAX: Final = 3_600
RETRY_S: Final = 1.0
_AWAY: Final = frozenset({0, http.HTTPStatus.SERVICE_UNAVAILABLE})
"""No answer, or none yet: a broker that is stopping, gone, or recovering its log."""


def topics(url: Url = None, as_json: AsJson = False) -> None:
    """List the topics that your key may see."""
    print_rows(list(api_at(url).rows("/api/topics", "topics")), _COLUMNS, as_json=as_json)


def top(
    *,
    once: Annotated[bool, Option("--once", help="Print one update and exit.")] = False,
    interval: Annotated[
        float,
        Option(
            min=1,
            max=INTERVAL_S_MAX,
            metavar="SECONDS",
            help="Time between updates, in whole seconds.",
        ),
    ] = 1.0,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Watch the broker live: rates, latency, backlog, busiest topics."""
    api, every = api_at(url), round(interval)
    try:
        if once:
            _print(next(_views(api, every=every)), as_json=as_json)
        elif as_json or not sys.stdout.isatty():
            for view in _views(api, every=every):
                _print(view, as_json=as_json)
        else:
            _draw(api, every=every)
    except KeyboardInterrupt:
        return  # the normal way to leave


def _views(api: Api, *, every: int) -> Iterator[View]:
    """Yield an update every *every* seconds."""
    counts: dict[str, int] = {}
    looked_s = time.monotonic()
    behind = every - 1  # so that the first is shown at once
    for name, data in api.events(EVENTS):
        point = point_of(name, data)
        if point is None:
            continue
        behind += 1
        if behind < every:
            continue
        behind = 0
        now_s = time.monotonic()
        found = api.rows_in(api.ask("GET", TOPICS), "topics")
        fresh = {str(row["name"]): _whole(row.get("messages")) for row in found}
        yield View(
            place=api.place,
            overview=api.ask("GET", OVERVIEW),
            point=point,
            topics=_rates(counts, fresh, now_s - looked_s),
        )
        counts, looked_s = fresh, now_s


def _rates(
    before: dict[str, int], now: dict[str, int], seconds: float
) -> list[tuple[str, float | None, int]]:
    """Return topics with their rate and number of messages, the busiest first.

    The first update has no rates yet, and sorts by the number of messages.
    """
    rows: list[tuple[str, float | None, int]] = [
        # A topic that was not on the last page has been published to since, at least once.
        (name, max(0, count - before.get(name, count - 1)) / seconds if before else None, count)
        for name, count in now.items()
    ]
    return sorted(rows, key=lambda row: (-(row[1] or 0.0), -row[2], row[0]))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _print(view: View, *, as_json: bool) -> None:
    if as_json:
        print_json(view.as_json())
    elif sys.stdout.isatty():
        print_drawn(view)
    else:
        print(plain(view))
    sys.stdout.flush()


def _draw(api: Api, *, every: int) -> None:
    from rich.live import Live

    from braidmq.cli.data.top_view import away, drawn

    has_been_there = False
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            try:
                for view in _views(api, every=every):
                    live.update(drawn(view, height=live.console.height), refresh=True)
                    has_been_there = True
            except HttpError as error:
                if not has_been_there or error.status not in _AWAY:
                    raise
                live.update(away(str(error)), refresh=True)
                time.sleep(RETRY_S)
