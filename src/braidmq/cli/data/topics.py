"""`braidmq topic`: delete topics of a running broker; `braidmq topics` lists them."""

from typing import Annotated, Final

import typer
from typer import Argument, Option

from braidmq.base.printable import printable
from braidmq.cli.api import Url, api_at, path_of
from braidmq.cli.completion import topic_names
from braidmq.cli.terminal import AsJson, Yes, confirm, print_done

app = typer.Typer(help="Delete topics. `braidmq topics` lists them.", no_args_is_help=True)

LIST: Final = "braidmq topics"

Name = Annotated[
    str, Argument(metavar="NAME", help="Name of the topic.", autocompletion=topic_names)
]
Force = Annotated[bool, Option("--force", help="Also if it has subscriptions, which then end.")]


@app.callback()
def topic() -> None:
    """Delete topics. `braidmq topics` lists them."""


@app.command("delete")
def delete(
    name: Name,
    *,
    force: Force = False,
    yes: Yes = False,
    url: Url = None,
    as_json: AsJson = False,
) -> None:
    """Delete a topic, so that nothing gets its messages any more.

    A queue of that name has to be deleted first, with `braidmq queue delete`.
    """
    api = api_at(url)
    confirm("delete topic", name, yes=yes)
    path = path_of("api", "topics", name) + ("?force=true" if force else "")
    answer = api.work("DELETE", path, listed_by=LIST)
    print_done(answer, f"deleted topic {printable(name)}", as_json=as_json)
