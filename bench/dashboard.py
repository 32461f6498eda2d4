"""The dashboard: the cost of a page of many topics, and of keeping it open.

One broker with many topics; the load time in a browser is measured by `first_page`. Pages are
requested with a key that may see all topics, and with one whose patterns are compared with
every name. Publishing is measured in turn with the dashboard closed and open: an open page
reads the live numbers, and now and then the overview and the list of topics.
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
from braidmq.server.access.keys import hash_key

NAME: Final = "dashboard"
TOPICS: Final = 10_000
PAGE_BAR_MS: Final = 50.0
OPEN_BAR: Final = 0.97
PAGES: Final = 30
"""Requests per page; the slowest median counts."""

PATHS: Final = (
    "/api/topics",
    "/api/topics?limit=1000",
    "/api/topics?search=topic-99",
    "/api/topics?sort=messages",
    "/api/topics?sort=last",
)
WATCHED: Final = ("/api/overview", "/api/topics?limit=50")
"""What the page polls while it shows the topics, besides the live numbers."""

WATCH_EVERY_S: Final = 5.0
HTTP_S_MAX: Final = 20.0
ALL_KEY: Final = blip.KEY
SOME_KEY: Final = "bench-key"
CONFIG: Final = f"""\
[[auth.keys]]
name = "some"
hash = "{hash_key(SOME_KEY)}"
publish = ["jobs.*", "metrics.*", "topic-9*"]
subscribe = ["orders.*", "alarms.*", "*.eu.*", "topic-*7"]
"""
"""A key that may see a fifth of the topics; for the others every pattern is tried."""


def rows(directory: Path, messages: int, rounds: int) -> Iterator[report.Row]:
    """Measure and return the rows."""
    with start(directory) as broker, blip.open_connection(broker) as connection:
        blip.publish_each(connection, [f"topic-{number}" for number in range(TOPICS)])
        slowest_ms = max(
            _page_ms(broker, path, key) for path in PATHS for key in (ALL_KEY, SOME_KEY)
        )
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


def start(directory: Path) -> Broker:
    """Start a broker with both keys."""
    directory.mkdir(parents=True)
    config = directory / "braidmq.toml"
    config.write_text(CONFIG)
    return Broker(directory, settings={"BRAIDMQ_CONFIG": str(config)})


def _page_ms(broker: Broker, path: str, key: str) -> float:
    connection = connect(broker)
    taken = []
    for _ in range(PAGES):
        started = time.perf_counter()
        get(connection, path, key).read()
        taken.append((time.perf_counter() - started) * 1000)
    connection.close()
    return statistics.median(taken)


@contextmanager
def _dashboard(broker: Broker) -> Iterator[None]:
    """Keep a client open that requests what the page requests."""
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
    connection = connect(broker)
    numbers = get(connection, "/api/events", ALL_KEY)
    while not over.is_set():
        numbers.readline()  # at most a second: there is one event per second
    connection.close()


def _look(broker: Broker, over: Event) -> None:
    connection = connect(broker)
    while True:
        for path in WATCHED:
            get(connection, path, ALL_KEY).read()
        if over.wait(WATCH_EVERY_S):
            break
    connection.close()


def connect(broker: Broker) -> http.client.HTTPConnection:
    """Return an HTTP connection."""
    host, _, port = broker.http.rpartition(":")
    return http.client.HTTPConnection(host, int(port), timeout=HTTP_S_MAX)


def get(
    connection: http.client.HTTPConnection, path: str, key: str
) -> http.client.HTTPResponse:
    """Send a request and return the response, with its body unread.

    Raises:
        BrokenRunError: It is not a good one.
    """
    connection.request("GET", path, headers={"Authorization": f"Bearer {key}"})
    found = connection.getresponse()
    if found.status != http.client.OK:
        raise BrokenRunError(f"{path} was answered with {found.status}")
    return found
