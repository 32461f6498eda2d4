"""`braidmq completion`, and completion of topic and queue names in the shell.

The user has pressed Tab and is waiting: the broker is asked once, with a short timeout, and any
error means that nothing is offered.
"""

from enum import StrEnum
from typing import Annotated, Final
from urllib.parse import quote, urlencode

import typer
from typer.completion import get_completion_script  # type: ignore[attr-defined] # it is documented nowhere, and stable

from braidmq.base.errors import BraidError
from braidmq.cli.api import api_at

COMPLETE_S_MAX: Final = 0.5
NAMES_MAX: Final = 100


class Shell(StrEnum):
    """Shells with completion."""

    BASH = "bash"
    FISH = "fish"
    POWERSHELL = "powershell"
    ZSH = "zsh"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Shell that the script is for.")],
) -> None:
    """Print a script that completes what you type in a shell."""
    print(
        get_completion_script(
            prog_name="braidmq", complete_var="_BRAIDMQ_COMPLETE", shell=shell.value
        )
    )


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics that begin with *incomplete*."""
    return _names(context, incomplete, "topics")


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return queues that begin with *incomplete*."""
    return _names(context, incomplete, "queues")


def letter_queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return dead-letter queues that begin with *incomplete*."""
    query: dict[str, str | int] = {"limit": NAMES_MAX}
    return _found(context, incomplete, "dead-letters", query, field="queues", name="queue")


def _names(context: typer.Context, incomplete: str, kind: str) -> list[str]:
    query: dict[str, str | int] = {"search": incomplete, "limit": NAMES_MAX}
    return _found(context, incomplete, kind, query, field=kind, name="name")


def _found(
    context: typer.Context,
    incomplete: str,
    kind: str,
    query: dict[str, str | int],
    *,
    field: str,
    name: str,
) -> list[str]:
    asked = f"/api/{kind}?{urlencode(query, quote_via=quote)}"
    try:
        api = api_at(context.params.get("url"))
        page = api.ask("GET", asked, timeout_s=COMPLETE_S_MAX)
        found = [str(row.get(name, "")) for row in api.rows_in(page, field)]
    except BraidError:
        return []
    # A name with a blank, a quote or a control character would need quoting; it is left out.
    return [one for one in found if one.startswith(incomplete) and _is_plain(one)]


def _is_plain(name: str) -> bool:
    return name.isprintable() and not any(c in name for c in " \t'\"\\$`:")
