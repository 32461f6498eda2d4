"""`braidmq completion`, and the rest of a name when a shell asks: names that the broker knows.

A key is pressed and somebody waits: it gets one short question, and when that fails, nothing.
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
    """Shells that can ask."""

    BASH = "bash"
    FISH = "fish"
    POWERSHELL = "powershell"
    ZSH = "zsh"


def completion(
    shell: Annotated[Shell, typer.Argument(help="Not only the one that it is typed in.")],
) -> None:
    """Print what lets a shell complete commands and names."""
    print(
        get_completion_script(
            prog_name="braidmq", complete_var="_BRAIDMQ_COMPLETE", shell=shell.value
        )
    )


def topic_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return topics that begin so."""
    return _names(context, incomplete, "topics")


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return queues that begin so."""
    return _names(context, incomplete, "queues")


def letter_queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """Return queues of dead letters that begin so."""
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
    # A name with a blank or a control character cannot be typed as it is.
    return [one for one in found if one.startswith(incomplete) and _is_plain(one)]


def _is_plain(name: str) -> bool:
    return name.isprintable() and not any(c in name for c in " \t'\"\\$`:")
