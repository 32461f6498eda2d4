"""The dashboard: how soon it is there, what a page of many topics costs, and what being open.

One broker with many topics. What a browser shows of it, and when, is in `first_page`.
Publishing is measured in turn with the dashboard closed and open; open is what the page does
then: it reads the live numbers, and the overview now and then.
"""

import http.client
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Final

from bench import blip, first_page, report
from bench.servers import Broker
from bench.streams import BrokenRunError, Sample

NAME: Final = "dashboard"
TOPICS: Final = 10_000
PAGE_BAR_MS: Final = 50.0
OPEN_BAR: Final = 0.97
PAGES: Final = 30
"""How often each page is asked for; the slowest of the medians counts."""

PATHS: Final = (
    "/api/topics",
    "/api/topics?limit=1000",
    "/api/topics?search=topic-99",
    "/api/topics?sort=messages",
)
OVERVIEW_EVERY_S: Final = 5.0
HTTP_S_MAX: Final = 20.0
_KEY: Final = {"Authorization": f"Bearer {blip.KEY.decode()}"}


def rows(directory: Path, messages: int, rounds: int) -> Iterator[report.Row]:
    """Measure, and give the rows."""
    with Broker(directory) as broker, blip.open_connection(broker) as connection:
        blip.publish_each(connection, [b"topic-%d" % number for number in range(TOPICS)])
        slowest_ms = max(_page_ms(broker, path) for path in PATHS)
        yield report.amount_row(
            f"a page of /api/topics, of {TOPICS:,}", slowest_ms, "ms", bar=PAGE_BAR_MS
        )
        yield from first_page.rows(broker)
        watched: list[Sample] = []
        alone: list[Sample] = []
        for _ in range(rounds):
            alone.append(
                broker.measure(messages, lambda: blip.publish_all(connection, messages))
            )
            with _dashboard(broker):
                watched.append(
                    broker.measure(messages, lambda: blip.publish_all(connection, messages))
                )
    yield report.rate_row(
        "Dashboard open, publish, fsynced",
        watched,
        peer_name="closed",
        peer_samples=alone,
        bar=OPEN_BAR,
    )


def _page_ms(broker: Broker, path: str) -> float:
    connection = _connection(broker)
    taken = []
    for _ in range(PAGES):
        started = time.perf_counter()
        _get(connection, path).read()
        taken.append((time.perf_counter() - started) * 1000)
    connection.close()
    return statistics.median(taken)


@contextmanager
def _dashboard(broker: Broker) -> Iterator[None]:
    """Have somebody look at the overview."""
    over = Event()
    threads = [Thread(target=look, args=(broker, over)) for look in (_listen, _look)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _listen(broker: Broker, over: Event) -> None:
    connection = _connection(broker)
    numbers = _get(connection, "/api/events")
    while not over.is_set():
        numbers.readline()  # a second at the most: there is a point each second
    connection.close()


def _look(broker: Broker, over: Event) -> None:
    connection = _connection(broker)
    while True:
        _get(connection, "/api/overview").read()
        if over.wait(OVERVIEW_EVERY_S):
            break
    connection.close()


def _connection(broker: Broker) -> http.client.HTTPConnection:
    host, _, port = broker.http.rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=HTTP_S_MAX)


def _get(connection: http.client.HTTPConnection, path: str) -> http.client.HTTPResponse:
    connection.request("GET", path, headers=_KEY)
    found = connection.getresponse()
    if found.status != http.client.OK:
        raise BrokenRunError(f"{path} was answered with {found.status}")
    return found
