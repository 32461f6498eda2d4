"""`braidmq queue`: create, list, show, purge and delete the queues of a running broker."""

from typing import Annotated, Final

import typer
from typer import Argument, Option

from braidmq.base.counts import counted
from braidmq.base.printable import printable
from braidmq.cli.api import Url, api_at, path_of
from braidmq.cli.completion import queue_names
from braidmq.cli.terminal import AsJson, Yes, confirm, print_done, print_json, print_rows

app = typer.Typer(help="Create, list, show and delete queues.", no_args_is_help=True)

QUEUES: Final = "/api/queues"
LIST: Final = "braidmq queue list"
DIGITS_MAX: Final = 18
"""More milliseconds than any broker accepts."""

_COLUMNS: Final = ("name", "deliveryMode", "messageCount", "inFlight", "subscriberCount")

Name = Annotated[
    str, Argument(metavar="NAME", help="Name of the queue.", autocompletion=queue_names)
]
DeliveryMode = Annotated[
    str | None,
    Option(
        metavar="MODE",
        help="Who gets a message: one consumer (RoundRobin, PriorityBased) or all of them "
        "(FanOutWithAck, FanOutWithoutAck). Default: RoundRobin.",
    ),
]
OverflowStrategy = Annotated[
    str | None,
    Option(
        metavar="STRATEGY",
        help="What a full queue does: DropOldest, DropNewest, BlockPublisher or RedirectToDlq.",
    ),
]


@app.command("create")
def create(
    name: Name,
    *,
    delivery_mode: DeliveryMode = None,
    max_queue_size: Annotated[
        int | None,
        Option(metavar="COUNT", help="Maximum number of waiting messages; default: unlimited."),
    ] = None,
    overflow_strategy: OverflowStrategy = None,
    message_ttl: Annotated[
        str | None,
        Option(metavar="TIME", help="How long messages live: milliseconds, or hh:mm:ss."),
    ] = None,
    max_retry_attempts: Annotated[
        int | None,
        Option(
            metavar="COUNT", help="Deliveries of a message before the queue gives up on it."
        ),
    ] = None,
    dead_letters: Annotated[
        bool | None,
        Option(
            "--dead-letters/--no-dead-letters", help="Keep messages that the queue gives up on."
        ),
    ] = None,
    dead_letter_queue: Annotated[
        str | None, Option(metavar="NAME", help="Queue for dead letters; default: dlq.NAME.")
    ] = None,
    durable: Annotated[
        bool | None,
        Option("--durable/--in-memory", help="Whether messages survive a broker restart."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Create a queue, unless it exists."""
    said = {
        "name": name,
        "deliveryMode": delivery_mode,
        "maxQueueSize": max_queue_size,
        "overflowStrategy": overflow_strategy,
        "messageTtl": _number_or_text(message_ttl),
        "maxRetryAttempts": max_retry_attempts,
        "enableDeadLetterQueue": dead_letters,
        "deadLetterQueueName": dead_letter_queue,
        "durable": durable,
    }
    given = {key: value for key, value in said.items() if value is not None}
    queue = api_at(url).ask("POST", QUEUES, given)
    print_done(queue, f"queue {printable(name)} exists", as_json=as_json)


@app.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the queues that your key may see."""
    print_rows(list(api_at(url).rows(QUEUES, "queues")), _COLUMNS, as_json=as_json)


@app.command("info")
def info(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Show the settings and counts of a queue."""
    queue = api_at(url).ask("GET", path_of("api", "queues", name), listed_by=LIST)
    if as_json:
        print_json(queue)
    else:
        rows = [{"field": field, "value": value} for field, value in queue.items()]
        print_rows(rows, ("field", "value"), as_json=False)


@app.command("delete")
def delete(name: Name, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Delete a queue and the messages in it. Its dead letters stay."""
    api = api_at(url)
    confirm("delete queue", name, yes=yes)
    answer = api.work("DELETE", path_of("api", "queues", name), listed_by=LIST)
    print_done(answer, f"deleted queue {printable(name)}", as_json=as_json)


@app.command("purge")
def purge(name: Name, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Delete all messages waiting in a queue."""
    api = api_at(url)
    confirm("purge queue", name, yes=yes)
    answer = api.work("POST", path_of("api", "queues", name, "purge"), listed_by=LIST)
    purged = counted(api.number_in(answer, "purged"), "message")
    done = f"purged {purged} from {printable(name)}"
    print_done(answer, done, as_json=as_json)


def _number_or_text(text: str | None) -> int | str | None:
    """Return milliseconds as a number, other text as it is: the broker validates it."""
    if text is not None and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return text
