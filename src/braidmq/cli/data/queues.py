"""`braidmq queue`: make, list, look at, empty and delete the queues of a running broker."""

from typing import Annotated, Final

import typer

from braidmq.base.counts import counted
from braidmq.cli.api import Url, api_at, path_of
from braidmq.cli.broker.config import AsJson
from braidmq.cli.completion import queue_names
from braidmq.cli.confirmation import Yes, confirm
from braidmq.cli.tables import print_done, print_json, print_rows, printable

app = typer.Typer(help="Queues of a running broker.", no_args_is_help=True)

QUEUES: Final = "/api/queues"
LIST: Final = "braidmq queue list"
DIGITS_MAX: Final = 18
"""More milliseconds than any broker takes."""

_COLUMNS: Final = ("name", "deliveryMode", "messageCount", "inFlight", "subscriberCount")

Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=queue_names)]


@app.command("create")
def create(
    name: Name,
    *,
    delivery_mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE", help="RoundRobin, FanOutWithAck, FanOutWithoutAck, PriorityBased."
        ),
    ] = None,
    max_queue_size: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Waiting messages; default: no bound.")
    ] = None,
    overflow_strategy: Annotated[
        str | None,
        typer.Option(
            metavar="STRATEGY", help="DropOldest, DropNewest, BlockPublisher, RedirectToDlq."
        ),
    ] = None,
    message_ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="Milliseconds, or hh:mm:ss.")
    ] = None,
    max_retry_attempts: Annotated[
        int | None, typer.Option(metavar="COUNT", help="Deliveries of one message.")
    ] = None,
    dead_letters: Annotated[
        bool | None,
        typer.Option("--dead-letters/--no-dead-letters", help="Keep what is given up on."),
    ] = None,
    dead_letter_queue: Annotated[
        str | None, typer.Option(metavar="NAME", help="Where; default: dlq.NAME.")
    ] = None,
    durable: Annotated[
        bool | None,
        typer.Option("--durable/--in-memory", help="Whether messages survive a restart."),
    ] = None,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Declare a queue; what is not said has its default."""
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
    print_done(queue, f"queue {printable(name)} is there", as_json=as_json)


@app.command("list")
def list_(url: Url = None, as_json: AsJson = False) -> None:
    """List the queues that the key may see."""
    print_rows(list(api_at(url).rows(QUEUES, "queues")), _COLUMNS, as_json=as_json)


@app.command("info")
def info(name: Name, url: Url = None, as_json: AsJson = False) -> None:
    """Print everything about one queue."""
    queue = api_at(url).ask("GET", path_of("api", "queues", name), listed_by=LIST)
    if as_json:
        print_json(queue)
    else:
        rows = [{"field": field, "value": value} for field, value in queue.items()]
        print_rows(rows, ("field", "value"), as_json=False)


@app.command("delete")
def delete(name: Name, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Delete a queue with all that waits in it; its dead letters stay."""
    api = api_at(url)
    confirm("delete queue", name, yes=yes)
    answer = api.work("DELETE", path_of("api", "queues", name), listed_by=LIST)
    print_done(answer, f"deleted queue {printable(name)}", as_json=as_json)


@app.command("purge")
def purge(name: Name, *, yes: Yes = False, url: Url = None, as_json: AsJson = False) -> None:
    """Let go of everything that waits in a queue."""
    api = api_at(url)
    confirm("purge queue", name, yes=yes)
    answer = api.work("POST", path_of("api", "queues", name, "purge"), listed_by=LIST)
    purged = counted(api.number_in(answer, "purged"), "message")
    done = f"purged {purged} from {printable(name)}"
    print_done(answer, done, as_json=as_json)


def _number_or_text(text: str | None) -> int | str | None:
    """Return milliseconds as the number they are; the broker judges everything else."""
    if text is not None and len(text) <= DIGITS_MAX and text.isascii() and text.isdigit():
        return int(text)
    return text
