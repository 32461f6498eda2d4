"""`braidmq dlq`: look at the dead letters of a running broker, send them back, let them go."""

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final
from urllib.parse import quote, urlencode

import typer

from braidmq.cli.api import PAGE_SIZE, Api, Url, api_at, path_of
from braidmq.cli.completion import letter_queue_names
from braidmq.cli.config import AsJson
from braidmq.cli.confirmation import Yes, confirm
from braidmq.cli.progress import waiting
from braidmq.cli.tables import print_done, print_rows, printable

app = typer.Typer(help="Dead letters of a running broker.", no_args_is_help=True)

LETTERS: Final = "/api/dead-letters"
LETTERS_DEFAULT: Final = 100
LIST: Final = "braidmq dlq list"

REPLAY_TIMEOUT_S: Final = 600.0
"""A replay is answered when all of it is committed, and all of it may be much."""

_QUEUE_COLUMNS: Final = ("queue", "messageCount", "inFlight", "subscriberCount")
_COLUMNS: Final = ("offset", "id", "reason", "deathQueue", "attempts", "timestamp", "size")

Queue = Annotated[
    str,
    typer.Argument(
        metavar="QUEUE", help="As `dlq list` names it.", autocompletion=letter_queue_names
    ),
]


@app.command("list")
def list_(
    queue: Annotated[
        str | None,
        typer.Argument(
            metavar="[QUEUE]", help="List the letters in it.", autocompletion=letter_queue_names
        ),
    ] = None,
    *,
    count: Annotated[int, typer.Option(min=1, help="Letters at most.")] = LETTERS_DEFAULT,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """List the queues of dead letters, or the letters that wait in one, oldest first."""
    api = api_at(url)
    if queue is None:
        print_rows(list(api.rows(LETTERS, "queues")), _QUEUE_COLUMNS, as_json=as_json)
    else:
        rows = list(islice(_letters(api, queue, count), count))
        print_rows(rows, _COLUMNS, as_json=as_json)


@app.command("replay")
def replay(
    queue: Queue,
    *,
    count: Annotated[
        int | None, typer.Option(min=1, help="So many of the oldest; default: all.")
    ] = None,
    offset: Annotated[
        int | None, typer.Option(min=1, help="Only the letter at this offset.")
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Send dead letters back to the queues that they came from."""
    asked = {"queue": queue, "count": count, "offset": offset}
    with waiting("sending letters back"):
        answer = api_at(url).ask(
            "POST", f"{LETTERS}/replay", asked, listed_by=LIST, timeout_s=REPLAY_TIMEOUT_S
        )
    done = f"sent {answer.get('replayed')} letters back from {printable(queue)}"
    print_done(answer, done, as_json=as_json)


@app.command("purge")
def purge(queue: Queue, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Let go of all letters that wait in a queue of dead letters."""
    api = api_at(url)
    # A purge takes any queue; this one is not meant for messages that are still alive.
    api.ask("GET", _page(queue, 1, 1), listed_by=LIST)
    confirm("purge dead letters", queue, yes=yes)
    answer = api.ask("POST", path_of("api", "queues", queue, "purge"), listed_by=LIST)
    done = f"purged {answer.get('purged')} letters from {printable(queue)}"
    print_done(answer, done, as_json=as_json)


def _letters(api: Api, queue: str, count: int) -> Iterator[dict[str, object]]:
    offset: object = 1
    while offset is not None:
        page = api.ask("GET", _page(queue, offset, min(count, PAGE_SIZE)), listed_by=LIST)
        yield from api.rows_in(page, "letters")
        offset = page.get("next")


def _page(queue: str, offset: object, limit: int) -> str:
    query = {"queue": queue, "from": offset, "limit": limit}
    return f"{LETTERS}?{urlencode(query, quote_via=quote)}"
