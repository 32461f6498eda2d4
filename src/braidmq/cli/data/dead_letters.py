"""`braidmq dlq`: list, replay and purge the dead letters of a running broker."""

import http
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Annotated, Final
from urllib.parse import quote, urlencode

import typer
from typer import Argument, Option

from braidmq.base.counts import counted
from braidmq.base.printable import printable
from braidmq.cli.api import PAGE_SIZE, Api, HttpError, Url, api_at, path_of
from braidmq.cli.completion import letter_queue_names
from braidmq.cli.progress import Advance, progress, waiting
from braidmq.cli.terminal import AsJson, Yes, confirm, print_done, print_rows

app = typer.Typer(
    help="Dead letters: messages that their queue gave up on.", no_args_is_help=True
)

LETTERS: Final = "/api/dead-letters"
LETTERS_DEFAULT: Final = 100
LIST: Final = "braidmq dlq list"

LETTERS_AT_ONCE: Final = 1_000
"""Letters replayed per request. The response comes when all of them are committed, so smaller
requests make the progress bar move."""

_QUEUE_COLUMNS: Final = ("queue", "messageCount", "inFlight", "subscriberCount")
_COLUMNS: Final = ("offset", "id", "reason", "deathQueue", "attempts", "timestamp", "size")

Queue = Annotated[
    str,
    Argument(
        metavar="QUEUE",
        help="Dead-letter queue, as `dlq list` names it.",
        autocompletion=letter_queue_names,
    ),
]


@app.command("list")
def list_(
    queue: Annotated[
        str | None,
        Argument(
            metavar="QUEUE",
            help="List the letters in this dead-letter queue. Default: list the queues.",
            show_default=False,
            autocompletion=letter_queue_names,
        ),
    ] = None,
    *,
    count: Annotated[
        int, Option(min=1, metavar="N", help="Maximum number of letters to list.")
    ] = LETTERS_DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the dead-letter queues, or the letters in one of them."""
    api = api_at(url)
    if queue is None:
        print_rows(list(api.rows(LETTERS, "queues")), _QUEUE_COLUMNS, as_json=as_json)
    else:
        with _meant(api, queue):
            rows = list(islice(_letters(api, queue, count), count))
        print_rows(rows, _COLUMNS, as_json=as_json)


@app.command("replay")
def replay(
    queue: Queue,
    *,
    count: Annotated[
        int | None,
        Option(min=1, metavar="N", help="Send back this many, the oldest first. Default: all."),
    ] = None,
    offset: Annotated[
        int | None,
        Option(min=1, metavar="OFFSET", help="Send back the letter at this offset only."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the queues they came from."""
    api = api_at(url)
    if offset is not None:
        # If --count is given too, the broker refuses the pair and says why.
        with _meant(api, queue), waiting("sending the letter back"):
            sent = _send_back(api, queue, count=count, offset=offset)
    else:
        there = _waiting_in(api, queue)
        with _meant(api, queue), progress("sending letters back") as advance:
            total = there if count is None else min(count, there)
            sent = _send_back_in_parts(api, queue, total, advance)
    done = f"sent {counted(sent, 'letter')} back from {printable(queue)}"
    print_done({"queue": queue, "replayed": sent}, done, as_json=as_json)


@app.command("purge")
def purge(queue: Queue, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Delete all letters in a dead-letter queue."""
    api = api_at(url)
    # The broker would purge any queue; this command must not delete live messages.
    with _meant(api, queue):
        api.ask("GET", _page(queue, 1, 1), listed_by=LIST)
    confirm("purge dead letters", queue, yes=yes)
    answer = api.work("POST", path_of("api", "queues", queue, "purge"), listed_by=LIST)
    purged = counted(api.number_in(answer, "purged"), "letter")
    done = f"purged {purged} from {printable(queue)}"
    print_done(answer, done, as_json=as_json)


def _send_back_in_parts(api: Api, queue: str, total: int, advance: Advance) -> int:
    """Replay the *total* oldest letters, reporting progress; return how many were sent."""
    sent = stayed = 0
    advance(0, total)
    while True:
        # Letters without an origin cannot be replayed. They stay at the head of the queue, and
        # each request meets them again first: asking for as many others keeps that cheap.
        asked = min(stayed + max(stayed, LETTERS_AT_ONCE), total - sent)
        # With no letter waiting, the broker is asked anyway: its error says what is wrong.
        went = _send_back(api, queue, count=max(asked, 1))
        sent += went
        stayed = asked - went
        advance(sent + stayed, total)
        if sent + stayed >= total:
            return sent


def _send_back(api: Api, queue: str, *, count: int | None, offset: int | None = None) -> int:
    asked = {"queue": queue, "count": count, "offset": offset}
    answer = api.work("POST", f"{LETTERS}/replay", asked, listed_by=LIST)
    return api.number_in(answer, "replayed")


def _waiting_in(api: Api, queue: str) -> int:
    """Return how many letters wait in a queue; 0 if it is not a dead-letter queue."""
    row = _row_of(api, queue)
    return 0 if row is None else api.number_in(row, "messageCount")


def _row_of(api: Api, queue: str) -> dict[str, object] | None:
    # A key that may replay sees the queue in this list, but perhaps not on its own page. The
    # list is sorted, so begin just before the name, and stop behind it.
    for row in api.rows(LETTERS, "queues", after=queue[:-1]):
        name = str(row.get("queue"))
        if name >= queue:
            return row if name == queue else None
    return None


@contextmanager
def _meant(api: Api, queue: str) -> Iterator[None]:
    """If *queue* is where letters came from, name its dead-letter queue in the error."""
    try:
        yield
    except HttpError as error:
        if error.status != http.HTTPStatus.NOT_FOUND:
            raise
        with suppress(HttpError):  # the first error says more
            letters = _letters_of(api, queue)
            if _row_of(api, letters) is not None:
                told = f"{printable(queue)} is not a dead-letter queue"
                error = HttpError(f"{told}; did you mean {printable(letters)}?", error.status)
        raise error from None


def _letters_of(api: Api, queue: str) -> str:
    name: object = None
    with suppress(HttpError):  # it may be a topic: those have dead letters too
        name = api.ask("GET", path_of("api", "queues", queue)).get("deadLetterQueueName")
    return str(name or f"dlq.{queue}")


def _letters(api: Api, queue: str, count: int) -> Iterator[dict[str, object]]:
    offset: object = 1
    while offset is not None:
        page = api.ask("GET", _page(queue, offset, min(count, PAGE_SIZE)), listed_by=LIST)
        yield from api.rows_in(page, "letters")
        offset = page.get("next")


def _page(queue: str, offset: object, limit: int) -> str:
    query = {"queue": queue, "from": offset, "limit": limit}
    return f"{LETTERS}?{urlencode(query, quote_via=quote)}"
